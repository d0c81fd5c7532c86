"""Nothing is half applied and nothing is sent by who has it not, wherever workers die."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sublet.train.grid.meeting import NOTHING, Move, Standing, meet, moves

UNITS = st.sets(st.integers(0, 5))


@given(st.lists(st.tuples(UNITS, UNITS), min_size=1, max_size=7))
def test_everybody_gets_what_it_wants_from_those_who_have_it(workers):
    have, want = [set(each) for each, _ in workers], [each for _, each in workers]
    sizes = {unit: 10 + unit for unit in range(6)}
    found = moves(have, want, sizes)
    lost = set().union(*want) - set().union(*have)
    if found is None:
        assert lost
        return
    assert not lost
    for number in range(max((move.round for move in found), default=-1) + 1):
        now = [move for move in found if move.round == number]
        for move in now:
            assert move.unit in have[move.giver]
            assert move.unit not in have[move.taker]
        for move in now:
            have[move.taker].add(move.unit)
    assert all(wanted <= held for wanted, held in zip(want, have, strict=True))
    assert len(found) == sum(len(want[at] - workers[at][0]) for at in range(len(workers)))


@given(st.integers(1, 30))
def test_one_holder_gives_to_many_in_a_tree(takers):
    found = moves([{0}, *[set()] * takers], [set(), *[{0}] * takers], {0: 1})
    assert max(move.round for move in found) + 1 == math.ceil(math.log2(takers + 1))


def test_two_holders_share_the_sending():
    found = moves([{0, 1}, {0, 1}, set()], [set(), set(), {0, 1}], {0: 5, 1: 5})
    assert {move.giver for move in found} == {0, 1}


def test_large_units_first_leaves_no_giver_with_most_of_the_bytes():
    sizes = {0: 1, 1: 1, 2: 1, 3: 3}
    found = moves([{0, 1, 2, 3}, {0, 1, 2, 3}, set()], [set(), set(), {0, 1, 2, 3}], sizes)
    sent = [sum(sizes[move.unit] for move in found if move.giver == giver) for giver in (0, 1)]
    assert sent == [3, 3]


# ---------------------------------------------------------------------------------------------- a twin of the protocol


@given(st.data())
def test_what_is_left_of_a_grid_has_applied_each_step_once_or_knows_that_a_part_is_lost(data):
    """Sums and answers are missed by anybody, anybody dies anywhere; those who are left meet, again and again."""
    copies, parts = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    units = {part: {part} for part in range(parts)}
    workers = [_Worker(part) for _ in range(copies) for part in range(parts)]
    for worker in workers:
        worker.held, worker.applied = dict.fromkeys(units[worker.part], ()), 0
    for _ in range(data.draw(st.integers(1, 6))):
        step = workers[0].applied
        assert all(worker.applied == step for worker in workers)
        _one_step(workers, step, parts, data)
        workers = [worker for worker in workers if not worker.dead]
        newcomers = [_Worker(data.draw(st.integers(0, parts - 1))) for _ in range(data.draw(st.integers(0, 2)))]
        workers += newcomers
        if not workers:
            return
        if not _come_together(workers, units):
            held = {unit for worker in workers if worker.held for unit in worker.held}
            assert held < set(range(parts)) or not held, "everything was there"
            return
        for worker in workers:
            for history in worker.held.values():
                assert history == tuple(range(worker.applied)), "a step is missing, or twice"


class _Worker:
    def __init__(self, part):
        self.part, self.held, self.applied, self.pending, self.dead = part, {}, NOTHING, NOTHING, False

    def apply(self):
        self.held = {unit: (*history, self.applied) for unit, history in self.held.items()}
        self.applied, self.pending = self.applied + 1, NOTHING


def _one_step(workers, step, parts, data):
    """A collective is complete for somebody only if all have entered it; whoever misses its end goes no further."""
    chance = st.sampled_from(["on", "on", "on", "on", "misses", "dies"])
    for part in range(parts):
        members = [worker for worker in workers if worker.part == part]
        entered = [data.draw(chance) == "on" or _fall(worker, data) for worker in members]
        for worker in members:
            if all(entered) and not worker.dead and data.draw(chance) == "on":
                worker.pending = step
    if all(not worker.dead and worker.pending == step for worker in workers):
        for worker in workers:
            fate = data.draw(chance)
            if fate == "on":
                worker.apply()
                worker.dead = data.draw(st.booleans()) and data.draw(st.booleans())
            elif fate == "dies":
                worker.dead = True


def _fall(worker, data):
    worker.dead = data.draw(st.booleans())
    return False


def _come_together(workers, units):
    standings = [
        Standing(applied=worker.applied, pending=worker.pending, units=frozenset(worker.held)) for worker in workers
    ]
    met = meet(standings, [units[worker.part] for worker in workers], dict.fromkeys(range(len(units)), 1))
    if met is None:
        return False
    for number in met.roll:
        assert workers[number].pending == met.applied - 1 >= 0, "there is nothing that it could apply"
        workers[number].apply()
    for number in met.empty:
        workers[number].held = {}
    given = {(move.taker, move.unit) for move in met.moves}
    for number, worker in enumerate(workers):
        if met.anew:
            worker.held = {unit: () for unit in units[worker.part] if (number, unit) not in given}
    for move in met.moves:
        workers[move.taker].held[move.unit] = workers[move.giver].held[move.unit]
    for worker in workers:
        worker.held = {unit: worker.held[unit] for unit in units[worker.part]}
        worker.applied, worker.pending = met.applied, NOTHING
    return True


# ---------------------------------------------------------------------------------------------- by hand


def test_who_has_it_pending_rolls_forward_with_the_numbers_of_who_applied_it():
    sizes = {0: 1, 1: 1}
    met = meet(
        [Standing(applied=4, pending=4, units={0}), Standing(applied=5, units={1})],
        [{0}, {1}],
        sizes,
    )
    assert (met.applied, met.speaker, met.roll, met.empty, met.moves) == (5, 1, (0,), (), ())


def test_a_step_that_nobody_left_has_applied_is_thrown_away():
    met = meet([Standing(applied=4, pending=4, units={0}), Standing(applied=4, units={1})], [{0}, {1}], {0: 1, 1: 1})
    assert (met.applied, met.roll) == (4, ())


def test_one_that_was_away_gives_nothing_and_gets_what_it_wants():
    met = meet([Standing(applied=9, units={0}), Standing(applied=3, units={0})], [{0}, {0}], {0: 1})
    assert met.empty == (1,)
    assert met.moves == (Move(0, 0, 1, 0),)


def test_one_behind_without_its_sums_is_empty():
    met = meet([Standing(applied=5, units={0}), Standing(applied=4, units={0})], [{0}, {0}], {0: 1})
    assert (met.roll, met.empty) == ((), (1,))
    assert met.moves == (Move(0, 0, 1, 0),)


def test_who_comes_before_the_first_step_has_none_to_apply():
    met = meet([Standing(applied=0, units={0}), Standing()], [{0}, {0}], {0: 1})
    assert (met.applied, met.speaker, met.roll, met.empty) == (0, 0, (), ())
    assert met.moves == (Move(0, 0, 1, 0),)
    first = meet([Standing(applied=1, units={0}), Standing(applied=0, pending=0, units={0})], [{0}, {0}], {0: 1})
    assert first.roll == (1,)


def test_a_part_that_nobody_holds_is_lost():
    assert meet([Standing(applied=9, units={0}), Standing()], [{0}, {1}], {0: 1, 1: 1}) is None


def test_where_nobody_has_anything_all_begin():
    met = meet([Standing(), Standing()], [{0}, {1}], {0: 1, 1: 1})
    assert met.anew
    assert (met.applied, met.moves) == (0, ())


@given(st.lists(UNITS, min_size=1, max_size=7))
def test_where_nobody_has_anything_each_unit_is_made_by_one_and_all_have_that(want):
    met = meet([Standing() for _ in want], want, {unit: 10 + unit for unit in range(6)})
    given = {(move.taker, move.unit) for move in met.moves}
    made = [unit for worker, units in enumerate(want) for unit in units if (worker, unit) not in given]
    assert met.anew
    assert sorted(made) == sorted(set().union(*want))
    assert len(given) == len(met.moves)
