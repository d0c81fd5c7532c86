"""A part that another keeps outlives its only copy: what is kept is what was trained, to the bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.stages import parts_of  # noqa: E402
from sublet_lab.grid.model import CLIP, MICRO, SIZE, WORK  # noqa: E402
from sublet_lab.threads_mesh import Threads  # noqa: E402
from tests.rigs.grid_worker import Worker, assert_as_plain, generation  # noqa: E402

GRID, STEPS = Grid(1, 3), 4
RING, NOTHING_KEPT = ((2,), (0,), (1,)), ()  # each keeps the part before it


def workers_of(threads, faults=(None, None, None), clip=CLIP):
    """One for each; a fault is a point, a step, and whether the worker dies there."""
    return [Worker(threads, f"w{at}", [each] if each else (), clip=clip) for at, each in enumerate(faults)]


def lived(threads, workers, keeps=NOTHING_KEPT, grid=GRID):
    return generation(threads, workers, grid, STEPS, keeps=keeps)


def assert_trained(workers):
    assert_as_plain(workers, Grid(1, len(workers)), lambda _: 1, STEPS)


def assert_as_alone(workers):
    """To the bit, where nothing is clipped."""
    threads = Threads()
    [alone] = workers_of(threads, [None], clip=None)
    assert lived(threads, [alone], grid=Grid(1, 1)) == {"w0": "done"}
    truth = alone.weights()
    for worker in workers:
        assert all(torch.equal(found, truth[name]) for name, found in worker.weights().items())


def test_what_is_kept_is_what_is_trained():
    threads = Threads()
    workers = workers_of(threads)
    assert set(lived(threads, workers, RING).values()) == {"done"}
    assert_trained(workers)
    blocks = [{name.split(".")[1] for name in worker.weights() if name.startswith("blocks")} for worker in workers]
    assert blocks == [{"0", "2", "3"}, {"0", "1"}, {"1", "2", "3"}], "its own, and those of the part before"


@pytest.mark.parametrize("point", ["forward 1", "backward 1", "before sum", "pending", "agreed", "applied"])
def test_the_only_copy_of_a_part_dies_and_who_keeps_it_hands_it_on(point):
    threads = Threads()
    workers = workers_of(threads, [None, (point, 3 if point == "applied" else 2, "dies"), None])
    assert lived(threads, workers, RING)["w1"] == "Died"
    workers[1] = Worker(threads, "spare")
    assert set(lived(threads, workers, RING).values()) == {"done"}
    assert_trained(workers)


def test_one_that_only_keeps_takes_the_place_of_the_dead_and_nothing_moves():
    threads = Threads()
    workers = workers_of(threads, [None, ("pending", 2, "dies"), None, None])
    lived(threads, workers, ((), (), (), (1,)))
    hot = workers[3]
    before = {unit: arena.memory.data_ptr() for unit, arena in hot.member.holdings.arenas.items()}
    seats = [workers[0], hot, workers[2]]
    assert set(lived(threads, seats).values()) == {"done"}
    assert_trained(seats)
    assert before == {unit: arena.memory.data_ptr() for unit, arena in hot.member.holdings.arenas.items()}


def test_what_was_added_up_in_a_step_that_broke_is_in_no_later_one_where_nothing_is_clipped():
    """Gradients of one copy are nobody else's, and lie elsewhere."""
    threads = Threads()
    workers = workers_of(threads, [None, ("backward 1", 2, "misses"), None], clip=None)
    assert lived(threads, workers)["w1"] == "Broken"
    assert set(lived(threads, workers).values()) == {"done"}
    assert_as_alone(workers)


def test_sums_are_where_replicas_are_sent_them_from_where_nothing_is_clipped():
    """Only gradients that nobody else needs lie elsewhere: whoever keeps a part needs them."""
    threads = Threads()
    workers = workers_of(threads, clip=None)
    assert set(lived(threads, workers, RING).values()) == {"done"}
    assert_as_alone(workers)
    assert all(len(worker.member.holdings.arenas) > 2 for worker in workers), "each keeps a part"


def test_gradients_are_where_sums_look_for_them_once_there_is_another_copy():
    """Nothing is ever so long that it is clipped in the other training."""
    found = []
    for limit in (None, 1e9):
        threads = Threads()
        workers = workers_of(threads, [("before sum", 2, "misses"), None], clip=limit)
        assert lived(threads, workers[:1], grid=Grid(1, 1)) == {"w0": "Broken"}
        assert set(lived(threads, workers, grid=Grid(2, 1)).values()) == {"done"}
        found += [worker.weights() for worker in workers]
    for other in found[1:]:
        assert all(torch.equal(found[0][name], weight) for name, weight in other.items())


def test_a_newcomer_hears_the_loss_that_one_alone_had_not_looked_at():
    threads = Threads()
    alone, fresh = workers_of(threads, [("before sum", 2, "misses"), ("forward 0", 2, "misses")], clip=None)
    assert lived(threads, [alone], grid=Grid(1, 1)) == {"w0": "Broken"}
    assert lived(threads, [alone, fresh], grid=Grid(2, 1))["w1"] == "Broken"
    assert fresh.member.loss == alone.member.loss > 0.0


def test_a_part_and_its_replica_that_die_together_are_lost():
    threads = Threads()
    workers = workers_of(threads, [None, ("pending", 2, "dies"), ("pending", 2, "dies")])
    lived(threads, workers, RING)
    seats = [workers[0], Worker(threads, "a"), Worker(threads, "b")]
    assert set(lived(threads, seats, RING).values()) == {"PartLost"}


def test_a_cut_is_where_it_is_told_to_be():
    assert [(part.low, part.high) for part in parts_of(6, 3, (1, 5, 6))] == [(0, 1), (1, 5), (5, 6)]
    for ends in ((1, 5), (1, 1, 6), (1, 5, 7), (0, 5, 6)):
        with pytest.raises(InvalidValue, match="ends"):
            parts_of(6, 3, ends)


class Late(Worker):
    """One that notes how much each step ended with, and is told at step 1 to keep more."""

    def __init__(self, threads, name, keep=()):
        super().__init__(threads, name)
        self.keep, self.held = keep, {}

    def live(self, mesh, seat, until):
        self.met = self.member.meet(mesh, seat)
        while (step := self.member.applied) < until:
            if step == 1 and self.keep:
                self.member.keep(seat, self.keep)
            found = self.member.step(mesh, seat, WORK, offset=step * SIZE, size=SIZE, micro_batch=MICRO)
            self.held[step], self.told[step] = len(self.member.holdings.arenas), found.loss
        return "done"


def test_who_is_told_to_keep_a_part_has_it_two_boundaries_later_and_it_is_what_was_trained():
    """Said before step 1, known to all after it, there when step 2 begins."""
    threads = Threads()
    workers = [Late(threads, "w0", keep=(1, 2)), Late(threads, "w1"), Late(threads, "w2")]
    assert set(lived(threads, workers).values()) == {"done"}
    own, units = workers[0].held[0], len(workers[0].staged.units)
    assert (own < units, workers[0].held) == (True, {0: own, 1: own, 2: units, 3: units})
    assert workers[1].held[3] == workers[1].held[0]
    assert_trained(workers)


def test_a_replica_is_filled_after_the_first_step_of_the_new_grid_and_not_in_its_meeting():
    """One who only keeps comes to a grid that trains: nothing is sent for it while all wait."""
    threads = Threads()
    workers = workers_of(threads, [None, ("before sum", 1, "misses"), None])
    lived(threads, workers)
    hot = Late(threads, "hot")
    assert set(lived(threads, [*workers, hot], ((), (), (), (1,))).values()) == {"done"}
    assert (hot.met.moved_bytes, hot.held[1]) == (0, 0)
    assert 0 < hot.held[2] == hot.held[3]
    assert_trained([*workers, hot])
