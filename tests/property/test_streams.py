"""Streams at random widths, with kills and restarts at random steps: each sample once, in the same order."""

from __future__ import annotations

import pytest
from hypothesis import given as cases
from hypothesis import settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sublet.train.streams import streamed as module  # noqa: E402
from sublet_lab.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402
from tests.rigs.streams import Kept, Numbers, given, order_of, streamed, through_a_checkpoint  # noqa: E402

STRIKES = st.tuples(
    st.sampled_from(["resize", "kill", "restart"]),
    st.integers(1, 12),  # steps until then
    st.integers(1, 6),  # the width from there on
    st.randoms(use_true_random=False),
)


class Job:
    """All workers of a training, without the training."""

    def __init__(self, dataset, batch, micro_batch):
        self.dataset, self.batch, self.micro_batch = dataset, batch, micro_batch
        self.workers, self.step, self.rows = [self.worker()], 0, []
        self.saved = (0, through_a_checkpoint(self.workers[0].state_dict()))

    def worker(self):
        return streamed(self.dataset, batch=self.batch)

    def take(self):
        """One step by all workers, as they are given it; not applied."""
        world = len(self.workers)
        threads, found = Threads(), []
        meshes = ThreadsMesh.all_of(threads, world)
        works = {
            str(rank): lambda w=worker, m=mesh: w.exchange(m, self.step)
            for rank, (worker, mesh) in enumerate(zip(self.workers, meshes, strict=True))
        }
        assert not any(threads.run(works).values())
        for rank, worker in enumerate(self.workers):
            found += given(worker, self.step, rank, world, batch=self.batch, micro_batch=self.micro_batch)
        return found

    def train(self, steps):
        for _ in range(steps):
            self.rows.append(self.take())
            self.step += 1

    def strike(self, what, width, rng):
        if what == "restart":
            self.workers, (self.step, state) = [], self.saved
            del self.rows[self.step :]
        else:
            if what == "kill":
                self.take()  # given, and never applied
            state = through_a_checkpoint(self.workers[0].state_dict())
            if rng.random() < 0.5:
                self.saved = (self.step, state)
            self.workers = rng.sample(self.workers, min(width, rng.randint(1, len(self.workers))))
        while len(self.workers) < width:
            new = self.worker()
            new.check(state)
            new.load_state_dict(through_a_checkpoint(state))
            self.workers.insert(rng.randint(0, len(self.workers)), new)


@settings(max_examples=examples(80), deadline=None)
@cases(st.lists(STRIKES, max_size=6), st.sampled_from([3, 6, 16]), st.sampled_from([None, 1, 2]), st.booleans())
def test_each_sample_is_read_once_in_one_order(strikes, batch, micro_batch, keeps):
    was, module.MARKED_EVERY = module.MARKED_EVERY, 4
    try:
        job, calm = (Job((Kept if keeps else Numbers)(), batch, each) for each in (micro_batch, None))
        for what, steps, width, rng in strikes:
            job.train(steps)
            job.strike(what, width, rng)
        job.train(3)
        calm.train(job.step)
    finally:
        module.MARKED_EVERY = was
    assert [[row[0] for row in rows] for rows in job.rows] == order_of(job.step, batch=batch, lanes=min(4, batch))
    assert job.rows == calm.rows  # what is drawn, too
