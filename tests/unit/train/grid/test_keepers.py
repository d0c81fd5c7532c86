"""A part that another keeps outlives its only copy: what is kept is what was trained, to the bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dataclasses import replace  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.meeting import Lost  # noqa: E402
from sublet.train.grid.member import Member  # noqa: E402
from sublet.train.grid.stages import NO_PLACE, Seat, Staged, parts_of  # noqa: E402
from sublet.train.link.following import Broken  # noqa: E402
from sublet_lab.grid.model import BLOCKS, CLIP, MICRO, SEED, SIZE, WORK, a_net, adam, plainly  # noqa: E402
from sublet_lab.threads_mesh import Threads, ThreadsMesh  # noqa: E402

GRID, STEPS = Grid(1, 3), 4
RING = ((2,), (0,), (1,))  # each keeps the part before it


class Died(BaseException):
    pass


class Worker:
    def __init__(self, name, dies_at=None, clip=CLIP, fate=Died):
        self.name, self._dies_at, self._fate = name, dies_at, fate
        self.model = a_net()
        self.staged = Staged(self.model)
        self.member = Member(self.staged, adam(self.model), seed=SEED, clip_norm=clip, point=self._at)

    def _at(self, point):
        if (point, self.member.applied) == self._dies_at:
            self._dies_at = None
            raise self._fate("pretended")

    def live(self, mesh, seat):
        try:
            self.member.meet(mesh, seat)
            while self.member.applied < STEPS:
                step = self.member.applied
                self.member.step(mesh, seat, WORK, offset=step * SIZE, size=SIZE, micro_batch=MICRO)
        except (Died, Broken, Lost) as error:
            mesh.hang_up()
            return type(error).__name__
        return "done"

    def weights(self):
        named = dict(self.model.named_parameters())
        return {name: named[name] for unit in self.member.holdings.arenas for name in self.staged.units[unit].names}


def generation(threads, workers, keeps, grid=GRID):
    meshes = ThreadsMesh.all_of(threads, len(workers))
    works = {}
    for rank, worker in enumerate(workers):
        seat = Seat.of(rank % grid.gpus, grid, BLOCKS)
        seat = replace(seat, keeps=keeps[rank], world=len(workers))
        if rank >= grid.gpus:
            seat = replace(seat, copy=NO_PLACE, part=NO_PLACE)
        works[worker.name] = lambda worker=worker, rank=rank, seat=seat: worker.live(meshes[rank], seat)
    return threads.run(works)


def assert_as_plain(workers):
    _, truth = plainly(lambda _: 1, STEPS)
    for worker in workers:
        assert worker.member.applied == STEPS
        for name, found in worker.weights().items():
            assert torch.equal(found, truth[name]), f"{name} of {worker.name}"


def test_what_is_kept_is_what_is_trained():
    threads, workers = Threads(), [Worker(f"w{number}") for number in range(3)]
    assert set(generation(threads, workers, RING).values()) == {"done"}
    assert_as_plain(workers)
    blocks = [{name.split(".")[1] for name in worker.weights() if name.startswith("blocks")} for worker in workers]
    assert blocks == [{"0", "2", "3"}, {"0", "1"}, {"1", "2", "3"}], "its own, and those of the part before"


@pytest.mark.parametrize("point", ["forward 1", "backward 1", "before sum", "pending", "agreed", "applied"])
def test_the_only_copy_of_a_part_dies_and_who_keeps_it_hands_it_on(point):
    threads = Threads()
    workers = [Worker("w0"), Worker("w1", (point, 3 if point == "applied" else 2)), Worker("w2")]
    assert generation(threads, workers, RING)["w1"] == "Died"
    workers[1] = Worker("spare")
    assert set(generation(threads, workers, RING).values()) == {"done"}
    assert_as_plain(workers)


def test_one_that_only_keeps_takes_the_place_of_the_dead_and_nothing_moves():
    threads = Threads()
    workers = [Worker("w0"), Worker("w1", ("pending", 2)), Worker("w2"), Worker("hot")]
    keeps = ((), (), (), (1,))
    generation(threads, workers, keeps)
    hot = workers[3]
    before = {unit: arena.memory.data_ptr() for unit, arena in hot.member.holdings.arenas.items()}
    seats = [workers[0], hot, workers[2]]
    assert set(generation(threads, seats, ((), (), ())).values()) == {"done"}
    assert_as_plain(seats)
    assert before == {unit: arena.memory.data_ptr() for unit, arena in hot.member.holdings.arenas.items()}


def test_what_was_added_up_in_a_step_that_broke_is_in_no_later_one_where_nothing_is_clipped():
    """Gradients of one copy are nobody else's, and lie elsewhere."""
    threads, nothing = Threads(), ((), (), ())
    workers = [Worker(f"w{at}", ("backward 1", 2) if at == 1 else None, None, Broken) for at in range(3)]
    assert generation(threads, workers, nothing)["w1"] == "Broken"
    assert set(generation(threads, workers, nothing).values()) == {"done"}
    alone = Worker("alone", clip=None)
    assert generation(threads, [alone], ((),), Grid(1, 1)) == {"alone": "done"}
    truth = alone.weights()
    for worker in workers:
        assert all(torch.equal(found, truth[name]) for name, found in worker.weights().items())


def test_sums_are_where_keepers_are_sent_them_from_where_nothing_is_clipped():
    """Only gradients that nobody else needs lie elsewhere: whoever keeps a part needs them."""
    threads, workers = Threads(), [Worker(f"w{at}", clip=None) for at in range(3)]
    assert set(generation(threads, workers, RING).values()) == {"done"}
    alone = Worker("alone", clip=None)
    assert generation(threads, [alone], ((),), Grid(1, 1)) == {"alone": "done"}
    truth = alone.weights()
    for worker in workers:
        assert len(worker.member.holdings.arenas) > 2, "it keeps a part"
        assert all(torch.equal(found, truth[name]) for name, found in worker.weights().items())


def test_gradients_are_where_sums_look_for_them_once_there_is_another_copy():
    """Nothing is ever so long that it is clipped in the other training."""
    found = []
    for limit in (None, 1e9):
        threads, workers = Threads(), [Worker(f"w{at}", ("before sum", 2), limit, Broken) for at in range(2)]
        assert generation(threads, workers[:1], ((),), Grid(1, 1)) == {"w0": "Broken"}
        workers[1] = Worker("w1", clip=limit)
        assert set(generation(threads, workers, ((), ()), Grid(2, 1)).values()) == {"done"}
        found += [worker.weights() for worker in workers]
    for other in found[1:]:
        assert all(torch.equal(found[0][name], weight) for name, weight in other.items())


def test_a_newcomer_hears_the_loss_that_one_alone_had_not_looked_at():
    threads = Threads()
    alone, fresh = Worker("w0", ("before sum", 2), None, Broken), Worker("w1", ("forward 0", 2), None, Broken)
    assert generation(threads, [alone], ((),), Grid(1, 1)) == {"w0": "Broken"}
    assert generation(threads, [alone, fresh], ((), ()), Grid(2, 1))["w1"] == "Broken"
    assert fresh.member.loss == alone.member.loss > 0.0


def test_a_part_and_its_keeper_that_die_together_are_lost():
    threads = Threads()
    workers = [Worker("w0"), Worker("w1", ("pending", 2)), Worker("w2", ("pending", 2))]
    generation(threads, workers, RING)
    seats = [workers[0], Worker("a"), Worker("b")]
    assert set(generation(threads, seats, RING).values()) == {"Lost"}


def test_a_cut_is_where_it_is_told_to_be():
    assert [(part.low, part.high) for part in parts_of(6, 3, (1, 5, 6))] == [(0, 1), (1, 5), (5, 6)]
    for ends in ((1, 5), (1, 1, 6), (1, 5, 7), (0, 5, 6)):
        with pytest.raises(InvalidValue, match="ends"):
            parts_of(6, 3, ends)


class Late(Worker):
    """One that notes what each step began with, and is told at step 1 to keep more."""

    def __init__(self, name, keep=()):
        super().__init__(name)
        self.keep, self.held, self.moved_bytes = keep, {}, None

    def live(self, mesh, seat):
        self.moved_bytes = self.member.meet(mesh, seat).moved_bytes
        while (step := self.member.applied) < STEPS:
            if step == 1 and self.keep:
                self.member.keep(seat, self.keep)
            self.member.step(mesh, seat, WORK, offset=step * SIZE, size=SIZE, micro_batch=MICRO)
            self.held[step] = len(self.member.holdings.arenas)
        return "done"


def test_who_is_told_to_keep_a_part_has_it_two_boundaries_later_and_it_is_what_was_trained():
    """Said before step 1, known to all after it, there when step 2 begins."""
    threads, workers = Threads(), [Late("w0", keep=(1, 2)), Late("w1"), Late("w2")]
    assert set(generation(threads, workers, ((), (), ())).values()) == {"done"}
    own, units = workers[0].held[0], len(workers[0].staged.units)
    assert (own < units, workers[0].held) == (True, {0: own, 1: own, 2: units, 3: units})
    assert workers[1].held[3] == workers[1].held[0]
    assert_as_plain(workers)


def test_a_keeper_is_filled_after_the_first_step_of_the_new_grid_and_not_in_its_meeting():
    """One who only keeps comes to a grid that trains: nothing is sent for it while all wait."""
    threads, workers = (
        Threads(),
        [Worker(f"w{at}", ("before sum", 1) if at == 1 else None, fate=Broken) for at in range(3)],
    )
    generation(threads, workers, ((), (), ()))
    late = [Late(worker.name) for worker in workers]
    for new, old in zip(late, workers, strict=True):
        new.member, new.model, new.staged = old.member, old.model, old.staged
    hot = Late("hot")
    assert set(generation(threads, [*late, hot], ((), (), (), (1,))).values()) == {"done"}
    assert (hot.moved_bytes, hot.held[1]) == (0, 0)
    assert 0 < hot.held[2] == hot.held[3]
    assert_as_plain([*late, hot])
