"""Grids train bitwise as one process does, through every change of the grid and every death (oracles E1 to E3)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.meeting import NOTHING  # noqa: E402
from sublet.train.grid.member import Member  # noqa: E402
from sublet.train.grid.stages import Staged, Stages, parts_of  # noqa: E402
from sublet_lab.grid.model import CLIP, SIZE, Net, a_net, adam, momentum, plainly  # noqa: E402
from sublet_lab.threads_mesh import Threads  # noqa: E402
from tests.rigs.grid_worker import Worker, assert_as_plain, generation  # noqa: E402
from tests.rigs.grids_of import assert_same, next_word, trained  # noqa: E402
from tests.rigs.sizes import FULL  # noqa: E402


@pytest.mark.parametrize("make", [adam, momentum] if FULL else [adam])
@pytest.mark.parametrize(
    "grid", [Grid(1, 1), Grid(1, 2), Grid(1, 3), Grid(1, 4), Grid(2, 1), Grid(2, 2), Grid(2, 3)], ids=str
)
def test_a_grid_is_one_process_to_the_bit(grid, make):
    threads = Threads()
    workers = [Worker(threads, f"w{number}", make=make) for number in range(grid.gpus)]
    assert set(generation(threads, workers, grid, 4).values()) == {"done"}
    assert_as_plain(workers, grid, lambda _: grid.copies, 4, make)


def test_momentum_is_one_process_to_the_bit_too():
    threads, grid = Threads(), Grid(2, 2)
    workers = [Worker(threads, f"w{number}", make=momentum) for number in range(4)]
    assert set(generation(threads, workers, grid, 4).values()) == {"done"}
    assert_as_plain(workers, grid, lambda _: 2, 4, momentum)


@pytest.mark.parametrize("grid", [Grid(1, 3), Grid(2, 2)], ids=str)
def test_tied_weights_are_one_process_within_rounding(grid):
    """Each end of the model adds up its atoms first."""
    threads = Threads()
    workers = [Worker(threads, f"w{number}", tied=True) for number in range(grid.gpus)]
    assert set(generation(threads, workers, grid, 4).values()) == {"done"}
    _, weights = plainly(lambda _: grid.copies, 4, tied=True)
    first, last = workers[0].model, workers[grid.parts - 1].model
    assert torch.equal(first.first.weight, last.last.head.weight)
    assert torch.allclose(first.first.weight, weights["first.weight"], rtol=0.0, atol=1e-12)
    assert torch.allclose(last.last.norm.weight, weights["last.norm.weight"], rtol=0.0, atol=1e-12)


class Scaled(nn.Module):
    """With a parameter that is one number, as the optimizer's counters are."""

    def __init__(self, inner):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(())), inner

    def forward(self, x):
        return self.inner(x) * self.scale


def test_a_parameter_may_be_one_number():
    """Its moments move with it."""

    def make():
        model = a_net()
        return Stages(model.first, map(Scaled, model.blocks), model.last)

    loss = next_word(lambda _: 4)
    alone = trained(make, loss, Grid(1, 1), Grid(1, 1))
    assert_same(trained(make, loss, Grid(1, 2), Grid(1, 4)), alone)


@pytest.mark.parametrize("grid", [Grid(1, 2), Grid(1, 4)], ids=str)
def test_tied_weights_are_one_process_to_the_bit_where_a_copy_has_one_micro_batch(grid):
    """One process adds both uses of each micro-batch, and then these; ends that add up their own have another order."""
    loss, tied = next_word(lambda _: 4), lambda: Net(tied=True)
    alone = trained(tied, loss, Grid(1, 1), steps=4, clip_norm=CLIP, micro_batch=SIZE)
    assert_same(trained(tied, loss, grid, steps=4, clip_norm=CLIP, micro_batch=SIZE), alone)


def test_tied_weights_of_several_micro_batches_are_one_process_within_rounding_of_single_precision():
    """Of sums of twice as many terms as micro-batches: nothing else differs."""
    loss, tied = next_word(lambda _: 4), lambda: Net(tied=True)
    alone = trained(tied, loss, Grid(1, 1), steps=4, clip_norm=CLIP)
    cut = trained(tied, loss, Grid(1, 4), steps=4, clip_norm=CLIP)
    assert cut.losses == pytest.approx(alone.losses, rel=1e-6)
    assert cut.losses[0] == alone.losses[0]


@pytest.mark.parametrize(
    "grids",
    [[Grid(1, 3), Grid(2, 2), Grid(1, 4)], [Grid(2, 1), Grid(1, 2), Grid(2, 2)], [Grid(1, 4), Grid(1, 1), Grid(2, 2)]],
)
def test_any_sequence_of_grids_is_one_process_to_the_bit(grids):
    threads = Threads()
    workers = [Worker(threads, f"w{number}") for number in range(max(grid.gpus for grid in grids))]
    for number, grid in enumerate(grids):
        members, givers = workers[: grid.gpus], workers[grid.gpus :]
        assert set(generation(threads, members, grid, 2 * number + 2, givers).values()) == {"done"}
    assert_as_plain(workers, grids[-1], lambda step: grids[step // 2].copies, 6)


def test_copies_change_what_is_computed_in_the_last_bits_alone():
    """Otherwise the test above could not tell a right grid from another."""
    (losses, one), (others, other) = plainly(lambda _: 1, 3), plainly(lambda _: 2, 3)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert losses == pytest.approx(others, abs=1e-5)


POINTS = ["forward 0", "backward 0", "before sum", "pending", "agreed", "applied"]


PLACES = [(point, place) for point in POINTS for place in range(4)]
SOME = [(point, number % 4) for number, point in enumerate(POINTS)]


@pytest.mark.parametrize(("point", "place"), PLACES if FULL else SOME)
def test_one_of_two_copies_may_die_anywhere_and_nothing_is_lost(point, place):
    """2 x 2, a spare steps in: the same grid, the same bits."""
    threads, grid, at = Threads(), Grid(2, 2), 2 if point != "applied" else 3
    workers = [Worker(threads, f"w{number}", [(point, at, "dies")] if number == place else ()) for number in range(4)]
    outcomes = generation(threads, workers, grid, 5)
    assert outcomes[f"w{place}"] == "Died"
    left = [worker for worker in workers if not worker.dead]
    seats = [*left[:place], Worker(threads, "spare"), *left[place:]]
    assert set(generation(threads, seats, grid, 5).values()) == {"done"}
    assert_as_plain(seats, grid, lambda _: 2, 5)


def test_those_who_missed_the_answer_roll_forward():
    """Both of copy 0 miss it, one of copy 1 dies after it has applied the step: nothing is done again."""
    threads, grid = Threads(), Grid(2, 2)
    faults = [[("agreed", 2, "misses")], [("agreed", 2, "misses")], [("applied", 3, "dies")], []]
    workers = [Worker(threads, f"w{number}", fault) for number, fault in enumerate(faults)]
    generation(threads, workers, grid, 5)
    assert [worker.member.applied for worker in workers] == [2, 2, 3, 3]
    assert [worker.member.pending for worker in workers[:2]] == [2, 2]
    seats = [workers[0], workers[1], Worker(threads, "spare"), workers[3]]
    assert set(generation(threads, seats, grid, 5).values()) == {"done"}
    assert_as_plain(seats, grid, lambda _: 2, 5)


def test_a_step_that_only_the_dead_had_applied_is_made_again():
    threads, grid = Threads(), Grid(1, 2)
    faults = [[("applied", 3, "dies")], [("agreed", 2, "misses")]]
    workers = [Worker(threads, f"w{number}", fault) for number, fault in enumerate(faults)]
    generation(threads, workers, grid, 5)
    assert workers[1].member.pending == 2
    again = generation(threads, [Worker(threads, "spare"), workers[1]], grid, 5)
    assert set(again.values()) == {"PartLost"}, "with it went the only copy of its part"


@pytest.mark.parametrize("grid", [Grid(2, 2), Grid(3, 1), Grid(1, 3)])
def test_what_each_process_has_built_need_not_be_the_same(grid):
    """A script that seeds nothing: of each unit all have what the first of them made, weights of both ends too."""
    threads, seeds = Threads(), iter(range(9))

    def unseeded(tied=False):
        torch.manual_seed(next(seeds))
        return Net(tied=tied)

    workers = [Worker(threads, f"w{number}", net=unseeded, tied=False) for number in range(grid.gpus)]
    assert set(generation(threads, workers, grid, 3).values()) == {"done"}
    held = {}
    for worker in workers:
        for name, weight in worker.weights().items():
            assert torch.equal(held.setdefault(name, weight), weight), name
    assert held.keys() == dict(a_net().named_parameters()).keys()


@pytest.mark.parametrize("copies", [2, 1])
def test_who_comes_before_the_first_step_is_made_makes_the_same_steps_as_the_others(tmp_path, copies):
    """The first grid breaks before it has made one, as where the model does not fit uncut, and a late one joins."""
    threads, grid = Threads(), Grid(copies, 4 // copies)
    workers = [Worker(threads, f"w{number}", directory=tmp_path) for number in range(4)]
    assert set(generation(threads, workers[:2], Grid(1, 2), 0, generation=1).values()) == {"done"}
    assert set(generation(threads, workers, grid, 3, generation=2).values()) == {"done"}
    for worker in workers:
        worker.member.vault.close()
    assert [worker.progress.steps for worker in workers] == [3, 3, 3, 3]
    assert [sorted(worker.told) for worker in workers] == [[0, 1, 2]] * 4
    assert_as_plain(workers, grid, lambda _: copies, 3)


def test_a_newcomer_that_dies_while_it_receives_is_replaced():
    threads, grid = Threads(), Grid(1, 3)
    workers = [Worker(threads, f"w{number}") for number in range(3)]
    generation(threads, workers, grid, 2)
    fresh = Worker(threads, "fresh", [("moving", -1, "dies")])
    outcomes = generation(threads, [fresh, *workers[1:]], grid, 4, givers=[workers[0]])
    assert outcomes["fresh"] == "Died"
    other = Worker(threads, "other")
    assert set(generation(threads, [other, *workers[1:]], grid, 4, givers=[workers[0]]).values()) == {"done"}
    assert_as_plain([other, *workers[1:]], grid, lambda _: 1, 4)


@pytest.mark.parametrize("who", range(4))
def test_whoever_misses_that_all_have_moved_has_what_it_received_and_what_it_had(who):
    """A part moves to a newcomer, and one of the four does not hear that all have it."""
    threads, grid = Threads(), Grid(1, 3)
    workers = [Worker(threads, f"w{number}") for number in range(3)]
    generation(threads, workers, grid, 2)
    there = [Worker(threads, "fresh"), workers[1], workers[2], workers[0]]
    there[who]._faults = [("moved", NOTHING if who == 0 else 2, "misses")]
    generation(threads, there[:3], grid, 4, givers=[there[3]])
    assert set(generation(threads, there[:3], grid, 4, givers=[there[3]]).values()) == {"done"}
    assert_as_plain(there[:3], grid, lambda _: 1, 4)


def test_what_a_worker_does_not_hold_takes_no_memory():
    threads = Threads()
    workers = [Worker(threads, f"w{number}") for number in range(4)]
    generation(threads, workers, Grid(1, 4), 2)
    worker = workers[1]
    held = {name for unit in worker.member.holdings.arenas for name in worker.staged.units[unit].names}
    for name, parameter in worker.model.named_parameters():
        stored = parameter.untyped_storage().nbytes()
        assert (stored > parameter.element_size()) == (name in held)
        assert bool(parameter.isnan().all()) == (name not in held), "of others nothing is to be computed"
    assert len(worker.member.holdings.optimizer.state) == len(held)


def test_who_begins_with_others_draws_other_numbers_than_they(monkeypatch):
    """All scripts begin with one seed. The first worker goes on with what its script draws."""
    thrown = []
    monkeypatch.setattr(torch, "manual_seed", thrown.append)
    threads, grid = Threads(), Grid(2, 2)
    workers = [Worker(threads, f"w{number}") for number in range(4)]
    thrown.clear()  # those of the nets
    assert set(generation(threads, workers, grid, 2).values()) == {"done"}
    assert (len(thrown), len(set(thrown))) == (3, 3)
    seats = [workers[0], Worker(threads, "new"), *workers[2:]]
    before = set(thrown)
    thrown.clear()
    assert set(generation(threads, seats, grid, 3, givers=workers[1:2]).values()) == {"done"}
    assert len(thrown) == 1
    assert thrown[0] not in before


def test_more_parts_than_blocks_are_refused():
    with pytest.raises(InvalidValue, match="parts"):
        parts_of(3, 4)


def test_an_optimizer_that_is_not_elementwise_is_refused():
    model = a_net()
    with pytest.raises(InvalidValue, match="Adafactor"):
        Member(Staged(model), torch.optim.Adafactor(model.parameters()), seed=1)


def places(*workers):
    return [(worker.member.new, worker.member.speaker) for worker in workers]


def test_a_worker_that_takes_a_state_is_new_until_its_first_step_and_one_that_was_there_speaks():
    threads, grid = Threads(), Grid(2, 1)
    first, second, third, fourth = (Worker(threads, f"w{number}") for number in range(4))
    generation(threads, [first, second], grid, 2)
    assert places(first, second) == [(False, None)] * 2, "all have begun together"
    generation(threads, [second, first], grid, 2)
    assert places(first, second) == [(False, None)] * 2, "both were there"
    generation(threads, [third, second], grid, 2)
    assert places(third, second) == [(True, 1), (False, 1)]
    generation(threads, [third, fourth], grid, 2, givers=[second])
    assert places(third, fourth) == [(True, None)] * 2, "of those who were there nobody is left to speak"
    generation(threads, [third, fourth], grid, 3)
    assert places(third, fourth) == [(False, None)] * 2


def test_a_worker_that_missed_the_answer_is_not_new():
    threads, grid = Threads(), Grid(2, 1)
    faults = [[("applied", 3, "dies")], [("agreed", 2, "misses")], []]
    workers = [Worker(threads, f"w{number}", fault) for number, fault in enumerate(faults)]
    generation(threads, workers[:2], grid, 5)
    generation(threads, [workers[2], workers[1]], grid, workers[1].member.applied)
    assert places(workers[2], workers[1]) == [(True, 1), (False, 1)]


def test_all_are_new_who_go_back_to_a_checkpoint_and_nobody_is_who_begins_with_one(tmp_path):
    threads, grid = Threads(), Grid(1, 2)
    facts = {"directory": tmp_path}
    workers = [Worker(threads, f"w{number}", **facts) for number in range(2)]
    generation(threads, workers, grid, 3, saves=(None,))
    later = [Worker(threads, f"w{number}", **facts) for number in range(2, 5)]
    generation(threads, later[:2], grid, 4)
    assert [worker.met.source for worker in later[:2]] == ["checkpoint"] * 2
    assert places(*later[:2]) == [(False, None)] * 2
    generation(threads, [later[0], later[2]], grid, 3)
    assert later[0].met.lost
    assert places(later[0], later[2]) == [(True, None)] * 2
