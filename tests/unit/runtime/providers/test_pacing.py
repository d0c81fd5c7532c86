"""Turns at a cloud's door, in virtual time."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest

from sublet.errors import InvalidValue, NoAnswer, RentFailed, StaleController, TooManyCalls
from sublet.runtime.providers.pacing import LONGEST_PAUSE_S, LONGEST_TOLD_S, PacedProvider, Rate, Rates, Turns
from sublet_lab.world.heap import World
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import HostClock, WorldRng, WorldWall


@pytest.fixture
def process():
    return LoopProcess(World(7), "controller", "here", lambda *_: None)


def played(process, work, until_s=10_000.0):
    task = process.spawn(work)
    process.world.run(process.world.now_s + until_s, stop=task.done)
    return task.result()


def machine(process):
    return {"wall": WorldWall(process, HostClock()), "rng": WorldRng(process.world)}


class Door:
    """A cloud with a bucket of its own, which counts what it is asked."""

    offers = ()

    def __init__(self, world, *, per_s, burst, retry_after_s=None):
        self._world, self._per_s, self._burst, self._retry_after_s = world, per_s, burst, retry_after_s
        self._level, self._at_s = float(burst), world.now_s
        self.rented, self.refused = {}, 0

    async def rent(self, node_id, offer_id, token):
        await asyncio.sleep(0.1)
        now_s = self._world.now_s
        self._level = min(self._burst, self._level + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._level < 1.0:
            self.refused += 1
            raise TooManyCalls("rent", "429", wait_s=self._retry_after_s)
        self._level -= 1.0
        self.rented[node_id] = now_s

    async def release(self, node_id):
        return None

    async def list(self):
        return []


class Heard:
    def __init__(self):
        self.refusals, self.waits_s = 0, []

    def throttled(self, call):
        self.refusals += 1

    def waits(self, call, waiting, last_s):
        self.waits_s.append((call, waiting, last_s))


def test_a_burst_goes_at_once_and_the_rest_at_the_pace_in_the_order_in_which_it_came(process):
    world, came = process.world, []
    turns = Turns(Rate(per_s=2.0, burst=3), **machine(process))

    async def one(number):
        assert await turns.turn(str(number))
        came.append((number, world.age_s))

    async def all_of_them():
        await asyncio.gather(*(one(number) for number in range(9)))

    played(process, all_of_them())
    assert [number for number, _ in came] == list(range(9))
    assert [round(at_s, 1) for _, at_s in came] == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


@pytest.mark.parametrize("retry_after_s", [None, 5.0])
def test_500_at_a_door_that_lets_in_two_a_second_are_all_let_in_and_few_are_turned_away(process, retry_after_s):
    door, heard = Door(process.world, per_s=2.0, burst=5, retry_after_s=retry_after_s), Heard()
    provider = PacedProvider(door, ear=heard, **machine(process))  # nobody has said what this cloud allows

    async def storm():
        await asyncio.gather(*(provider.rent(f"n{i}", "spot", f"t{i}") for i in range(500)))

    played(process, storm())
    assert len(door.rented) == 500
    assert process.world.age_s <= 2 * 250.0  # such a door needs 250 s for them
    assert door.refused == heard.refusals <= 1.2 * 500  # the first rush, and then a few
    assert max(waiting for _, waiting, _ in heard.waits_s) >= 490


def test_with_the_pace_known_nobody_is_turned_away_at_all(process):
    door, heard = Door(process.world, per_s=2.0, burst=5), Heard()
    rates = Rates(rent=Rate(per_s=1.9, burst=4))
    provider = PacedProvider(door, rates, ear=heard, **machine(process))

    async def storm():
        await asyncio.gather(*(provider.rent(f"n{i}", "spot", f"t{i}") for i in range(500)))

    played(process, storm())
    assert len(door.rented) == 500
    assert door.refused == 0


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_call_that_went_well(process):
    turns = Turns(Rate(), **machine(process) | {"rng": SimpleNamespace(random=lambda: 0.5)})
    pauses = []

    async def scene():
        for _ in range(9):
            turns.refuse()
            before_s = process.world.now_s
            assert await turns.turn("n")
            pauses.append(round(process.world.now_s - before_s))
        turns.accept()
        turns.refuse()
        before_s = process.world.now_s
        assert await turns.turn("n")
        pauses.append(process.world.now_s - before_s < LONGEST_PAUSE_S / 2)

    played(process, scene())
    assert pauses[:6] == sorted(pauses[:6])
    assert pauses[0] <= 2
    assert pauses[8] == LONGEST_PAUSE_S
    assert pauses[9] is True


@pytest.mark.parametrize(
    ("told_s", "longest_s"),
    [(7.0, 7.0), (1e7, LONGEST_TOLD_S), (math.inf, LONGEST_TOLD_S), (math.nan, 1.5), (-9.0, 1.5)],
    ids=["a while", "115 days", "for ever", "no number", "before"],
)
def test_no_word_of_a_cloud_keeps_a_release_waiting_for_longer_than_a_bound(process, told_s, longest_s):
    """Whatever waits costs until it is made."""
    turns = Turns(Rate(), **machine(process))

    async def scene():
        began_s = process.monotonic()
        turns.refuse(told_s)
        assert await turns.turn("n1")
        return process.monotonic() - began_s

    waited_s = played(process, scene())
    assert 0.0 < waited_s <= longest_s + 0.6  # and the token that it takes then
    assert told_s != 7.0 or waited_s >= 7.0


def test_those_on_their_way_when_the_door_closes_close_it_once(process):
    turns = Turns(Rate(per_s=8.0, burst=9), **machine(process))
    for _ in range(9):
        turns.refuse()
    assert turns.per_s == 2.0


def test_the_pace_comes_back_with_calls_that_go_well(process):
    turns = Turns(Rate(per_s=4.0), **machine(process))
    turns.refuse()
    assert turns.per_s == 2.0
    for _ in range(8):
        turns.accept()
    assert turns.per_s == 4.0


def test_a_rent_that_nobody_wants_any_more_is_not_made(process):
    door, heard = Door(process.world, per_s=5.0, burst=1), Heard()
    provider = PacedProvider(door, Rates(rent=Rate(per_s=1.0)), ear=heard, **machine(process))

    async def scene():
        rents = [asyncio.create_task(provider.rent(f"n{i}", "spot", f"t{i}")) for i in range(4)]
        await asyncio.sleep(0.5)
        provider.withdraw("n2")
        provider.withdraw("of nobody")
        answers = await asyncio.gather(*rents, return_exceptions=True)
        assert [type(answer) for answer in answers] == [type(None), type(None), NoAnswer, type(None)]
        assert list(door.rented) == ["n0", "n1", "n3"]
        await provider.rent("n2", "spot", "t2")  # somebody wants it again

    played(process, scene())
    assert list(door.rented) == ["n0", "n1", "n3", "n2"]


def test_a_rent_that_is_turned_away_after_it_was_withdrawn_is_not_asked_again(process):
    door, heard = Door(process.world, per_s=0.01, burst=1), Heard()
    provider = PacedProvider(door, ear=heard, **machine(process))

    async def scene():
        await provider.rent("n1", "spot", "t1")
        late = asyncio.create_task(provider.rent("n2", "spot", "t2"))
        await asyncio.sleep(0.05)  # it is on its way
        provider.withdraw("n2")
        with pytest.raises(NoAnswer, match="withdrawn"):
            await late

    played(process, scene())
    assert list(door.rented) == ["n1"]
    assert process.world.age_s < 1.0


def test_whoever_gives_up_waiting_is_in_nobodys_way(process):
    door = Door(process.world, per_s=5.0, burst=1)
    provider = PacedProvider(door, Rates(rent=Rate(per_s=1.0)), ear=Heard(), **machine(process))

    async def scene():
        rents = [asyncio.create_task(provider.rent(f"n{i}", "spot", f"t{i}")) for i in range(4)]
        await asyncio.sleep(0.5)
        rents[1].cancel()
        rents[2].cancel()
        await asyncio.gather(*rents, return_exceptions=True)

    played(process, scene())
    assert list(door.rented) == ["n0", "n3"]
    assert process.world.age_s < 2.0


def test_what_a_cloud_refuses_for_other_reasons_is_its_callers(process):
    class SoldOut(Door):
        async def rent(self, node_id, offer_id, token):
            raise RentFailed(offer_id, "sold out")

    provider = PacedProvider(SoldOut(process.world, per_s=1.0, burst=1), ear=Heard(), **machine(process))
    with pytest.raises(RentFailed, match="sold out"):
        played(process, provider.rent("n1", "spot", "t1"))


def test_a_call_that_may_not_be_made_any_more_when_its_turn_comes_is_not_made(process):
    door, stale = Door(process.world, per_s=5.0, burst=5), []

    def insist():
        if stale:
            raise StaleController("log.sqlite", life=1, now=2)

    rates = Rates(rent=Rate(per_s=1.0))
    provider = PacedProvider(door, rates, ear=Heard(), insist=insist, **machine(process))

    async def scene():
        rents = [asyncio.create_task(provider.rent(f"n{i}", "spot", f"t{i}")) for i in range(3)]
        await asyncio.sleep(0.5)
        stale.append(True)
        answers = await asyncio.gather(*rents, return_exceptions=True)
        assert [type(answer) for answer in answers] == [type(None), StaleController, StaleController]

    played(process, scene())
    assert list(door.rented) == ["n0"]


def test_a_pace_is_positive_and_a_burst_at_least_one():
    with pytest.raises(InvalidValue, match="per_s"):
        Rate(per_s=0.0)
    with pytest.raises(InvalidValue, match="burst"):
        Rate(per_s=1.0, burst=0)
