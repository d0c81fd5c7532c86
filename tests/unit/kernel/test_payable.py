"""What policies see of jobs whose purses are low, GPU by GPU: worked out by hand.

Two GPUs at 1 USD an hour, which are left within a quarter of an hour: twice what that costs is kept back, 0.25 a GPU.
In the dear pool it is 1 a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.events import PurseSet
from sublet.domain.money import Money, Price
from sublet.domain.plan import JobState, Phase
from sublet.domain.purses import Holder, Level
from sublet.domain.shape import Shape
from sublet.kernel.kernel import Kernel
from sublet.kernel.payable import PurseView
from sublet.kernel.waiting import Waiting
from sublet.testing.values import a_job, an_offer

VISION, ANN = Holder(Level.TEAM, "vision"), Holder(Level.USER, "ann")


def offer(name, usd_per_h):
    cap = Price.from_usd_per_h(usd_per_h)
    return an_offer(name, gpus=2, usd_per_h=usd_per_h, pool=name, wind_down_s=900.0, cap=cap)


def job(job_id="a", **facts):
    facts = {"team": "vision", "user": "ann", "gpus": 3, "min_gpus": 2, "max_gpus": 8, "pools": ("p",), **facts}
    return a_job(job_id, **facts)


def waiting(**facts):
    return JobState(job=job(**facts), seq=0)


class World:
    """A kernel with these purses, in USD by holder."""

    def __init__(self, purses, *, offers=(("p", "1"),)):
        self.kernel = Kernel([offer(*each) for each in offers])
        for holder, amount in purses.items():
            self.kernel.handle(PurseSet(0.0, holder, Money.from_usd(amount), None, 0.0))
        self.tree = self.kernel.purses

    def view(self, active=(), now_s=0.0):
        return PurseView(self.tree, self.kernel.supply, active, now_s)


def width(shown):
    return None if shown is None else (shown.job.gpus, shown.job.max_gpus)


@pytest.mark.parametrize(
    ("usd", "found"),
    [
        ("0.49", None),
        ("0.5", (2, 2)),
        ("0.74", (2, 2)),
        ("0.75", (3, 3)),
        ("1.99", (3, 7)),
        ("2", (3, 8)),
        ("9", (3, 8)),
    ],
)
def test_who_waits_is_shown_as_wide_as_its_purse_can_pay_for(usd, found):
    view, state = World({VISION: usd}).view(), waiting()
    assert width(view.shown(state)) == found
    assert view.held_by(state.job) == (VISION if found is None else None)
    if found == (3, 8):
        assert view.shown(state) is state  # nothing to be changed


def test_whom_no_purse_limits_is_shown_as_it_is():
    view, state = World({VISION: "0.01"}).view(), waiting(team="speech")
    assert view.shown(state) is state
    assert view.held_by(state.job) is None


def test_of_several_purses_the_lowest_counts_and_is_named():
    view = World({VISION: "9", ANN: "0.75"}).view()
    assert width(view.shown(waiting())) == (3, 3)
    low = World({VISION: "0.4", ANN: "9"}).view()
    assert low.held_by(job()) == VISION
    low = World({VISION: "9", ANN: "0.4"}).view()
    assert (low.held_by(job()), low.shown(waiting())) == (ANN, None)


def test_what_was_promised_and_is_not_held_yet_is_spoken_for():
    """Another was promised three GPUs and holds one of them: two are to come, which takes 0.5."""
    world, shape = World({VISION: "1.5"}), Shape("p", 3)
    other = JobState(job=job("b"), seq=1, shape=shape, runs_in=Shape("p", 1), gpus=1, phase=Phase.RUNNING)
    assert width(world.view([other]).shown(waiting())) == (3, 4)
    elsewhere = replace(other, runs_in=Shape("q", 1))  # what it holds in another pool is none of that
    assert width(world.view([elsewhere]).shown(waiting())) == (3, 3)
    assert width(world.view([replace(other, gpus=3)]).shown(waiting())) == (3, 6)
    assert width(world.view([replace(other, gpus=5)]).shown(waiting())) == (3, 6)  # more than it was promised
    assert width(world.view([replace(other, shape=None)]).shown(waiting())) == (3, 6)
    assert width(world.view([replace(other, shape=Shape("gone", 3))]).shown(waiting())) == (3, 6)
    stranger = replace(other, job=job("b", team="speech", user="bob"))
    assert width(world.view([stranger]).shown(waiting())) == (3, 6)


def test_who_has_a_shape_is_never_shown_narrower_than_that():
    world = World({VISION: "0.5"})
    state = replace(waiting(), shape=Shape("p", 4), gpus=3)
    assert width(world.view().shown(state)) == (3, 6)  # two more than the four that it was promised
    assert width(world.view().shown(replace(state, gpus=5))) == (3, 7)
    broke = World({VISION: "0.1"})
    assert width(broke.view().shown(state)) == (3, 4)
    assert broke.view().active({"a": state})["a"].job.max_gpus == 4
    broke.tree.put_aside("a", 0.0)
    world.tree.put_aside("a", 0.0)
    assert width(world.view().shown(state)) == (3, 4)  # it was denied more at this very instant
    assert width(world.view(now_s=1.0).shown(state)) == (3, 6)


def test_who_was_denied_at_this_instant_is_not_shown():
    world = World({VISION: "9"})
    world.tree.put_aside("a", 0.0)
    view = world.view()
    assert (view.shown(waiting()), view.held_by(job())) == (None, ANN if ANN in world.tree.allowed else VISION)
    assert world.view(now_s=1.0).shown(waiting()) is not None


def test_a_purse_that_runs_out_lets_no_more_jobs_in_than_it_says():
    world = World({VISION: "9"})
    world.tree.allowed[VISION] = replace(world.tree.allowed[VISION], most=1)
    assert world.view().shown(waiting()) is not None  # nobody holds anything yet
    world.tree.allowed[VISION] = replace(world.tree.allowed[VISION], most=0)
    assert (world.view().shown(waiting()), world.view().held_by(job())) == (None, VISION)


def test_it_may_run_where_it_can_be_paid_for():
    world = World({VISION: "2"}, offers=(("p", "1"), ("dear", "4")))
    both = ("p", "dear")
    shown = world.view().shown(waiting(pools=both))
    assert (shown.job.pools, shown.job.max_gpus) == (both, 2)  # two of the dear ones
    shown = world.view().shown(waiting(pools=both, min_gpus=3))
    assert (shown.job.pools, shown.job.max_gpus) == (("p",), 8)
    shown = world.view().shown(waiting(pools=()))
    assert (shown.job.pools, shown.job.max_gpus) == ((), 2)
    shown = world.view().shown(waiting(pools=(), min_gpus=3))
    assert (shown.job.pools, shown.job.max_gpus) == (("p",), 8)
    assert (
        world.view().shown(waiting(pools=("p", "gone"))).job.max_gpus == 8
    )  # a pool that is not there counts for nothing


def test_what_costs_nothing_to_leave_may_be_as_wide_as_it_likes():
    free = an_offer("p", gpus=2, pool="p", wind_down_s=0.0)
    kernel = Kernel([free])
    kernel.handle(PurseSet(0.0, VISION, Money.from_usd("0.01"), None, 0.0))
    state = waiting()
    assert PurseView(kernel.purses, kernel.supply, (), 0.0).shown(state) is state


def test_of_those_that_wait_only_those_who_can_be_paid_for_are_seen_and_counted():
    line = Waiting()
    for seq, least in enumerate((2, 5, 3)):
        line.add(JobState(job=job(f"j{seq}", gpus=5, min_gpus=least), seq=seq))
    payable = World({VISION: "1"}).view().waiting(line)
    assert len(payable) == 2
    assert len(payable) == 2  # counted once
    assert [state.job.id for state in payable.by(lambda state: -state.seq)] == ["j2", "j0"]
    frozen = payable.frozen()
    assert [(state.job.id, state.job.max_gpus) for state in frozen.by(lambda state: state.seq)] == [
        ("j0", 4),
        ("j2", 4),
    ]
