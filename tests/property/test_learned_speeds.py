"""Where speeds are learned, a policy sees nothing of the speed that a job really has, nor in which order jobs wait."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.plan import Plan
from sublet.perf.measured import MODELS, measured_goodput
from sublet.perf.speedup import Amdahl
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.sia_learned import Learned
from sublet_lab.studies.learning import LearnsSpeeds
from tests.rigs.sizes import examples

KIND, GPUS = "T4", 4


class Asks:
    """Ranks jobs that wait by how long they take, and by their name; keeps what it heard."""

    def __init__(self):
        self.heard = []

    def decide(self, snapshot):
        def takes_s(state):
            return state.job.speed.seconds(KIND, (1,), state.done, state.job.work)

        for key in (takes_s, lambda state: -takes_s(state), lambda state: sum(map(ord, state.job.id))):
            self.heard.append([(state.job.id, key(state)) for state in snapshot.waiting.by(key)])
        return Plan()


class Line(list):
    """Jobs that wait, as the kernel ranks them."""

    def by(self, key):
        return iter(sorted(self, key=lambda state: (key(state), state.seq)))

    def orders(self, *keys):
        return tuple(list(self.by(key)) for key in keys)


models = st.lists(st.sampled_from(MODELS), min_size=2, max_size=6)
shares = st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6)


@settings(max_examples=examples(60))
@given(models, shares, st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6))
def test_jobs_that_wait_are_ranked_by_what_is_seen_of_them_alone(models, shares, parallel):
    jobs = [
        a_job(f"{at}", work=share * measured_goodput(model).ends[-1], speed=measured_goodput(model), model=model)
        for at, (model, share) in enumerate(zip(models, shares, strict=False))
    ]
    driver = Driver([an_offer("o", gpus=GPUS, gpu=KIND)])
    driver.submit(*jobs)
    told = driver.kernel.snapshot()
    states = list(told.waiting.by(lambda state: state.seq))
    others = Line(
        replace(state, job=replace(state.job, speed=Amdahl(parallel=each, kinds={KIND: 1.0 + 9.0 * each})))
        for state, each in zip(states, parallel, strict=False)
    )
    heard = []
    for waiting in (told.waiting, others):
        asks = Asks()
        notebook = Learned(dict.fromkeys((job.id for job in jobs), 64), {KIND: GPUS}, source="pollux")
        LearnsSpeeds(policy=asks, notebook=notebook).decide(replace(told, waiting=waiting))
        heard.append(asks.heard)
    assert len(heard[0][0]) == len(jobs)
    assert heard[0] == heard[1]
    for ranked in heard[0]:
        assert [value for _, value in ranked] == sorted(value for _, value in ranked)
