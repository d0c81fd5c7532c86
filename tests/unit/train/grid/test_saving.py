"""Checkpoints of grids: any grid goes on from what any other has saved, to the bit, and none is ever torn."""

from __future__ import annotations

import random
import threading

import pytest

torch = pytest.importorskip("torch")
obstore_store = pytest.importorskip("obstore.store")


from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import BadInput  # noqa: E402
from sublet.machine.remote import RemoteObjects  # noqa: E402
from sublet.train.checkpoint.bucket import Bucket  # noqa: E402
from sublet.train.checkpoint.checkpoints import newest  # noqa: E402
from sublet.train.checkpoint.commit import Directory  # noqa: E402
from sublet.train.checkpoint.disk import DISK  # noqa: E402
from sublet.train.grid import member, saving  # noqa: E402
from sublet.train.state.state import Progress, State  # noqa: E402
from sublet.wire.files import Saved, SaveFailed  # noqa: E402
from sublet_lab.grid.model import SEED, a_net, adam, momentum, plainly  # noqa: E402
from sublet_lab.threads_mesh import Threads  # noqa: E402
from tests.rigs.grid_worker import SAMPLES, SIZE, Worker, assert_as_plain, generation  # noqa: E402
from tests.rigs.sizes import FULL  # noqa: E402

GRIDS = [Grid(copies, parts) for copies in (1, 2) for parts in (1, 2, 3, 4)]


def fresh(threads, grid, prefix, directory, faults=None, **more):
    faults = faults or {}
    return [
        Worker(threads, f"{prefix}{number}", faults.get(number, ()), directory=directory, **more)
        for number in range(grid.gpus)
    ]


def closed(*groups):
    for workers in groups:
        for worker in workers:
            worker.member.vault.close()


def said(workers, kind):
    return [message for worker in workers for message in worker.link.said if isinstance(message, kind)]


@pytest.mark.parametrize("seed", range(24 if FULL else 3))
def test_any_grid_goes_on_from_what_any_other_has_saved_to_the_bit(tmp_path, seed):
    rng, threads = random.Random(seed), Threads()
    make, in_objects = rng.choice([adam, momentum]), rng.random() < 0.5
    objects = RemoteObjects("memory://kept", obstore_store.MemoryStore())
    grids, ends = [rng.choice(GRIDS) for _ in range(3)], [2, 3, 5]
    for number, (grid, end) in enumerate(zip(grids, ends, strict=True)):
        store = Bucket(objects) if in_objects else None
        workers = fresh(threads, grid, f"g{number}.", tmp_path, make=make, store=store)
        outcomes = generation(threads, workers, grid, end, saves=[None], generation=number + 1)
        assert set(outcomes.values()) == {"done"}
        assert {worker.met.source for worker in workers} == {"checkpoint" if number else "fresh"}
        assert {worker.member.applied for worker in workers} == {end}
        closed(workers)
    copies = [grids[next(number for number, end in enumerate(ends) if step < end)].copies for step in range(5)]
    assert_as_plain(workers, grids[-1], lambda step: copies[step], 5, make)


def test_each_part_is_written_by_its_own_worker_beside_the_training_and_committed_once(tmp_path):
    threads, grid = Threads(), Grid(2, 3)
    workers = fresh(threads, grid, "w", tmp_path)
    assert set(generation(threads, workers, grid, 5, saves=[2], generation=7).values()) == {"done"}
    closed(workers)
    assert [(message.worker_id, message.part, message.step) for message in said(workers, Saved)] == [
        ("w0", 0, 3),
        ("w1", 1, 3),
        ("w2", 2, 3),
    ]
    [whole, *parts] = said(workers, Saved)
    assert whole.size_bytes > sum(part.size_bytes for part in parts) > 0
    assert Directory(tmp_path).steps() == [3]
    assert not list((tmp_path / "staging").iterdir())
    _, weights = plainly(lambda _: 2, 3)
    for name, weight in newest(tmp_path).state["model"].items():
        assert torch.equal(weight, weights[name])


def test_a_worker_alone_reads_what_a_grid_has_saved(tmp_path):
    """2 x 3, by the plain session's own way to load, moments and counters too."""
    threads, grid = Threads(), Grid(2, 3)
    workers = fresh(threads, grid, "w", tmp_path)
    generation(threads, workers, grid, 3, saves=[None])
    closed(workers)
    model, progress = a_net(), Progress(samples=SAMPLES, batch=SIZE)
    optimizer = adam(model)
    State(model, optimizer, [], None, SEED).restore(newest(tmp_path).state, progress)
    assert (progress.steps, progress.offset) == (3, 3 * SIZE)
    _, weights = plainly(lambda _: 2, 3)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, weights[name])
    for worker in workers:
        named = dict(model.named_parameters())
        for name, held in worker.weights().items():
            ours, its = optimizer.state[named[name]], worker.member.holdings.optimizer.state[held]
            assert ours.keys() == its.keys()
            assert all(torch.equal(ours[key], its[key]) for key in ours), name
    steps = [optimizer.state[each]["step"].data_ptr() for each in model.parameters()]
    assert len(set(steps)) == len(steps), "each parameter counts by itself"


def test_each_worker_goes_on_with_the_random_numbers_of_its_rank_and_a_newcomer_with_none_of_theirs(
    tmp_path, monkeypatch
):
    """2 x 1, then 3 x 1: one process has one state, so here each worker says a number in place of it."""
    numbers, heard = iter(range(10, 200, 10)), []
    monkeypatch.setattr(saving, "own_rng", lambda: torch.tensor([next(numbers)], dtype=torch.uint8))
    monkeypatch.setattr(member, "restore_rng", lambda row: heard.append(row.tolist()))
    threads, grid = Threads(), Grid(2, 1)
    first = fresh(threads, grid, "a", tmp_path)
    generation(threads, first, grid, 2, saves=[None], generation=1)
    closed(first)
    saved = newest(tmp_path).state["rng"].tolist()
    assert sorted(saved) == [[10], [20]]
    wider = Grid(3, 1)
    second = fresh(threads, wider, "b", tmp_path)
    generation(threads, second, wider, 3, generation=2)
    closed(second)
    assert sorted(heard) == sorted(saved)


CRASHES = [(point, who) for point in ("saving", "written") for who in range(3)]


@pytest.mark.parametrize(("point", "who"), CRASHES if FULL else [("saving", 1), ("written", 0), ("written", 2)])
def test_a_checkpoint_that_is_not_committed_is_never_loaded(tmp_path, point, who):
    """Whoever dies between the writing of parts and the commit: the one before stays, and all go on from there."""
    threads, grid = Threads(), Grid(1, 3)
    first = fresh(threads, grid, "a", tmp_path)
    generation(threads, first, grid, 2, saves=[None], generation=1)
    closed(first)
    second = fresh(threads, grid, "b", tmp_path, {who: [(point, 4, "dies")]})
    outcomes = generation(threads, second, grid, 4, saves=[None], generation=2)
    assert outcomes[f"b{who}"] == "Died"
    closed(second)
    assert Directory(tmp_path).steps() == [2]
    third = fresh(threads, grid, "c", tmp_path)
    assert set(generation(threads, third, grid, 5, generation=3).values()) == {"done"}
    assert {worker.met.meeting.applied for worker in third} == {2}
    closed(third)
    assert_as_plain(third, grid, lambda _: 1, 5)


def test_a_commit_that_fails_is_told_and_leaves_the_one_before(tmp_path):
    threads, grid = Threads(), Grid(1, 2)
    first = fresh(threads, grid, "a", tmp_path)
    generation(threads, first, grid, 2, saves=[None], generation=1)
    closed(first)
    second = fresh(threads, grid, "b", tmp_path)
    second[0].member.vault.saver._kept.disk = NoRename()
    assert set(generation(threads, second, grid, 4, saves=[None], generation=2).values()) == {"done"}
    closed(second)
    assert [message.step for message in said(second, SaveFailed)] == [4]
    assert Directory(tmp_path).steps() == [2]


class NoRename:
    def __getattr__(self, name):
        return getattr(DISK, name)

    def rename(self, source, target):
        raise OSError(5, "pretended")


def test_a_part_that_cannot_be_written_is_told_and_nothing_is_committed(tmp_path):
    threads, grid = Threads(), Grid(1, 3)
    workers = fresh(threads, grid, "w", tmp_path)
    workers[2].member.vault.saver._kept.disk = Full()
    assert set(generation(threads, workers, grid, 5, saves=[1], generation=1).values()) == {"done"}
    closed(workers)
    assert {message.worker_id for message in said(workers, SaveFailed)} == {"w0", "w2"}
    assert Directory(tmp_path).steps() == []
    assert not list((tmp_path / "staging").iterdir())
    assert_as_plain(workers, grid, lambda _: 1, 5)


def test_a_checkpoint_is_not_counted_before_each_has_written_its_part(tmp_path):
    """The last has a slow disk: the others go on with their steps, and nobody waits for it."""
    threads, grid = Threads(), Grid(1, 3)
    workers = fresh(threads, grid, "w", tmp_path)
    last, slow = workers[2], Slow()
    last.member.vault.saver._kept.disk = slow

    def before(_, step):
        last.waits = step >= 5
        if last.waits:
            slow.goes_on.set()

    last._before = before
    assert set(generation(threads, workers, grid, 7, saves=[1], generation=1).values()) == {"done"}
    closed(workers)
    assert slow.were == {True}
    assert Directory(tmp_path).steps() == [2]


class Slow:
    """Until it is told to go on, or it is too late."""

    def __init__(self):
        self.goes_on, self.were = threading.Event(), set()

    def __getattr__(self, name):
        return getattr(DISK, name)

    def create(self, path):
        self.were.add(self.goes_on.wait(120))
        return DISK.create(path)


class Full:
    def __getattr__(self, name):
        return getattr(DISK, name)

    def create(self, path):
        raise OSError(28, "No space left on device", str(path))


def test_a_save_that_is_asked_for_as_all_hear_of_one_that_failed_is_made_after_it(tmp_path):
    """The first member's disk is full for a moment. It alone says why: the others find its folder gone."""
    threads, grid = Threads(), Grid(1, 3)
    workers = fresh(threads, grid, "w", tmp_path)
    first, full = workers[0], FullOnce()
    first.member.vault.saver._kept.disk = full

    def before(_, step):
        if step == 2:
            first.member.vault.saver._pending._future.exception(120)

    def until_it_failed(_, step):
        while step >= 2 and not full.failed.is_set():
            threads.turn.wait(0.01)  # the first may not have begun to write: its turn is to come

    first._before = before
    for other in workers[1:]:
        other._before = until_it_failed
    assert set(generation(threads, workers, grid, 6, saves=[1, 2], generation=1).values()) == {"done"}
    closed(workers)
    assert [(message.worker_id, message.step) for message in said(workers, SaveFailed)] == [("w0", 2)]
    assert Directory(tmp_path).steps() == [4]
    assert not list((tmp_path / "staging").iterdir())


class FullOnce:
    def __init__(self):
        self.failed = threading.Event()

    def __getattr__(self, name):
        return getattr(DISK, name)

    def create(self, path):
        if not self.failed.is_set():
            self.failed.set()
            raise OSError(28, "No space left on device", str(path))
        return DISK.create(path)


def test_a_grid_that_changes_meanwhile_begins_its_checkpoint_again(tmp_path):
    threads = Threads()
    workers = fresh(threads, Grid(1, 3), "w", tmp_path)
    generation(threads, workers, Grid(1, 3), 2, saves=[1], generation=1)  # asked for, begun, and not counted yet
    again = generation(threads, workers[:2], Grid(1, 2), 8, givers=workers[2:], generation=2)
    assert set(again.values()) == {"done"}
    closed(workers)
    assert not said(workers, SaveFailed)
    steps = [message.step for message in said(workers, Saved) if not message.part]
    assert len(steps) == 1
    assert steps[0] > 2
    assert Directory(tmp_path).steps() == steps


def test_where_a_part_and_who_keeps_it_are_gone_all_go_back(tmp_path):
    """1 x 3: the only copy of the first part dies, and with it the one that keeps it, as a rack does."""
    threads, grid, ring = Threads(), Grid(1, 3), ((2,), (0,), (1,))
    workers = fresh(threads, grid, "w", tmp_path, {0: [("applied", 4, "dies")]})
    generation(threads, workers, grid, 2, keeps=ring, saves=[None], generation=1)
    assert generation(threads, workers, grid, 6, keeps=ring, generation=2)["w0"] == "Died"
    left, top = workers[2], workers[2].member.applied
    seats = [Worker(threads, "x0", directory=tmp_path), Worker(threads, "x1", directory=tmp_path), left]
    assert set(generation(threads, seats, grid, 6, keeps=ring, generation=3).values()) == {"done"}
    assert top > 2
    assert {(worker.met.source, worker.met.lost) for worker in seats} == {("checkpoint", True)}
    assert {(worker.met.meeting.applied, worker.met.redone) for worker in seats} == {(2, top - 2)}
    closed(workers, seats)
    assert_as_plain(seats, grid, lambda _: 1, 6)


def test_without_a_checkpoint_who_lost_a_part_says_so(tmp_path):
    threads, grid = Threads(), Grid(1, 2)
    workers = fresh(threads, grid, "w", tmp_path)
    generation(threads, workers, grid, 2, generation=1)
    others = [Worker(threads, "x", directory=tmp_path), workers[1]]
    assert set(generation(threads, others, grid, 4, generation=2).values()) == {"PartLost"}
    closed(workers, others)


def test_where_a_disk_is_a_nodes_own_the_first_member_writes_all(tmp_path, monkeypatch):
    """Each has a directory of its own here, and only that of the first has a checkpoint: the others read it there."""
    monkeypatch.setenv("SUBLET_CHECKPOINT_TIER", "disk")
    threads, grid = Threads(), Grid(1, 3)
    workers = [Worker(threads, f"w{number}", directory=tmp_path / str(number)) for number in range(3)]
    assert set(generation(threads, workers, grid, 3, saves=[None], generation=1).values()) == {"done"}
    closed(workers)
    assert [Directory(tmp_path / str(number)).steps() for number in range(3)] == [[3], [], []]
    others = [Worker(threads, f"x{number}", directory=tmp_path / str(number)) for number in range(2)]
    assert set(generation(threads, others, Grid(1, 2), 5, generation=2).values()) == {"done"}
    closed(others)
    assert_as_plain(others, Grid(1, 2), lambda _: 1, 5)


def test_a_checkpoint_of_another_model_is_refused_in_words(tmp_path):
    threads, grid = Threads(), Grid(1, 2)
    workers = fresh(threads, grid, "w", tmp_path)
    generation(threads, workers, grid, 2, saves=[None], generation=1)
    closed(workers)
    other = Worker(threads, "x", directory=tmp_path, tied=True)
    other.model.extra = torch.nn.Parameter(torch.zeros(3))
    whole, loaded = other.member.vault.whole, newest(tmp_path)
    with pytest.raises(BadInput, match="another model: extra"):
        whole.beside(loaded.state)
    with pytest.raises(BadInput, match=r"blocks\.0\.ln\.weight is \(6,\) of torch.float32"):
        whole.fill(torch.zeros(10_000, dtype=torch.uint8), 0, loaded.state, stepped=True)
