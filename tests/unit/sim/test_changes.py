"""What changes of shape cost in the simulated world, and runs that end at a horizon."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Change
from sublet.domain.plan import Plan
from sublet.domain.shape import Grid, Shape
from sublet.errors import InvalidValue
from sublet.perf.speedup import ConstantRate, Linear
from sublet.sim.record import Segment
from sublet.sim.report.plots import grid_labels
from sublet.sim.runs import TrainingRun
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer

OFFER = an_offer("o", gpus=1, pool="p")


@dataclass(frozen=True)
class Listening:
    """Pauses of ten seconds, and what is left; it notes what it was asked."""

    heard: list[Change] = field(default_factory=list)
    lead_s: float = 0.0

    def pause_s(self, change):
        self.heard.append(change)
        return change.left_s if change.is_of_spares else 10.0 + change.left_s


@dataclass(frozen=True)
class Columns(ConstantRate):
    """One sample a second for each copy."""

    copies: int = 1

    def bound_to(self, shape):
        return Columns(shape.grid.copies)

    def rate(self, gpu, spread, done):
        return float(self.copies)


@dataclass(frozen=True)
class Follow:
    """All that there is, in copies of two parts."""

    most: int = 99
    parts: int = 2

    def decide(self, snapshot):
        gpus = int(min(self.most, snapshot.offers["o"].most))
        copies = gpus // self.parts
        shape = Shape("p", gpus, grid=Grid(copies, self.parts)) if copies else None
        return Plan(shapes={"a": shape}, hold={"o": gpus})


def ride(market, *, notice_s=0.0, until_s=100.0, policy=None, **facts):
    """The pauses that one job asked for on this market, as (time, nodes), and its row."""
    pauses = Listening()
    job = a_job(work=math.inf, gpus=2, max_gpus=99, **{"speed": Columns(), "pauses": pauses, "survives": True, **facts})
    changes = Changes(AvailabilityChanged(float(at_s), "o", nodes) for at_s, nodes in market)
    cloud = Cloud(offers=(OFFER,), physics=Physics(notice_s=notice_s), market=changes)
    run = simulate([job], policy or Follow(), cloud, until_s=until_s, checked=True)
    return pauses.heard, run.record.jobs["a"], run


def p(gpus):
    return Shape("p", gpus, grid=Grid(gpus // 2, 2))


def test_a_start_is_a_change_from_nothing_and_work_is_counted_at_the_horizon():
    heard, row, run = ride([(0, 4)])
    assert heard == [Change(was=None, now=p(4))]
    assert row.done == 2 * 90.0
    assert (row.finish_s, run.unfinished) == (None, ("a",))
    assert run.metrics.usd == pytest.approx(4 * 100 / 3600)  # nodes are paid for until then


def test_several_nodes_that_are_lost_at_one_instant_are_one_change():
    heard, row, _ = ride([(0, 8), (50, 5)])
    assert heard[1:] == [Change(was=p(8), now=p(5), lost=3)]
    assert row.done == 4 * 40.0 + 2 * 40.0  # and nothing is redone
    assert row.resizes == 1


def test_a_segment_knows_the_grid_and_the_picture_has_it_where_there_is_room():
    _, _, run = ride([(0, 8), (50, 5), (53, 4)])
    assert run.record.segments == [
        Segment("a", 0.0, 50.0, 8, Grid(4, 2)),
        Segment("a", 50.0, 53.0, 5, Grid(2, 2)),
        Segment("a", 53.0, 100.0, 4, Grid(2, 2)),
    ]
    other = Segment("b", 0.0, 100.0, 3)
    found = grid_labels([other, *run.record.segments], ["b", "a"])
    assert found == [(25.0, 3 + 4.0, "4 x 2"), (76.5, 3 + 2.0, "2 x 2")]


def test_the_rest_of_a_pause_survives_a_loss():
    heard, row, _ = ride([(0, 8), (4, 6)])
    assert heard[1:] == [Change(was=p(8), now=p(6), lost=2, left_s=6.0)]
    assert row.done == 3 * (100.0 - 4.0 - 16.0)


def test_other_spares_are_no_resize_and_no_pause():
    heard, row, _ = ride([(0, 4), (3, 5), (50, 4)])
    assert [change.is_of_spares for change in heard] == [False, True, False]
    assert heard[1] == Change(was=p(4), now=p(5), left_s=7.0)
    assert heard[2].lost == 1  # who is lost is chance: it may have trained
    assert row.resizes == 1
    assert row.done == 2 * (40.0 + 40.0)


def test_without_pauses_of_its_own_spares_cost_nothing_either():
    _, row, _ = ride([(0, 4), (50, 5)], pauses=None, restart_s=10.0)
    assert (row.resizes, row.done) == (0, 2 * 90.0)


def test_who_is_noticed_trains_on_and_leaves_in_time_prepared_for_what_comes_then():
    heard, row, _ = ride([(0, 8), (50, 6)], notice_s=20.0)
    assert heard[1:] == [Change(was=p(8), now=p(6), lost=2, ready_s=18.0)]  # two seconds before they are taken
    assert row.done == 4 * 38.0 + 3 * 42.0
    assert (row.losses, row.resizes) == (0, 1)


def test_whoever_writes_down_what_it_knows_leaves_so_much_earlier():
    pauses = Listening(lead_s=12.0)
    heard, row, _ = ride([(0, 8), (50, 6)], notice_s=20.0, pauses=pauses)
    assert not heard
    assert [change.ready_s for change in pauses.heard] == [0.0, 6.0]
    assert row.done == 4 * 26.0 + 3 * 54.0


def test_where_the_notice_is_too_short_for_that_it_leaves_at_once():
    pauses = Listening(lead_s=19.0)
    _, row, _ = ride([(0, 8), (50, 6)], notice_s=20.0, pauses=pauses)
    assert [change.ready_s for change in pauses.heard] == [0.0, 0.0]
    assert row.done == 4 * 20.0 + 3 * 60.0


def test_whoever_does_not_survive_a_loss_leaves_at_the_notice():
    _, row, _ = ride([(0, 8), (50, 6)], notice_s=20.0, survives=False)
    assert row.done == 4 * 20.0 + 3 * 60.0


def test_what_was_prepared_for_another_grid_is_of_no_use():
    heard, _, _ = ride([(0, 8), (50, 6), (55, 4)], notice_s=20.0)
    assert [(change.now, change.lost, change.ready_s) for change in heard[1:]] == [(p(4), 4, 13.0)]  # told anew at 35
    heard, _, _ = ride([(0, 8), (40, 12), (50, 6)], notice_s=20.0, until_s=45.0)
    assert heard[1:] == [Change(was=p(8), now=p(10), lost=2)]  # it leaves for more than it had, and was told of less


@pytest.mark.parametrize(("shape", "ready_s"), [(p(6), 10.0), (p(7), 10.0), (p(4), 0.0)])
def test_spares_are_not_prepared_for_and_another_grid_is(shape, ready_s):
    pauses = Listening()
    run = TrainingRun(a_job(pauses=pauses, survives=True))
    run.shape = p(8)
    run.prepare(p(6), 5.0)
    run.change_to(shape, 15.0)
    assert pauses.heard == [Change(was=p(8), now=shape, ready_s=ready_s)]


def test_what_was_prepared_for_one_change_is_of_no_use_to_the_next():
    heard, _, _ = ride([(0, 8), (50, 6), (60, 8), (62, 6)], notice_s=3.0)
    assert [(change.now, change.lost, change.ready_s) for change in heard[1:]] == [
        (p(6), 2, 1.0),
        (p(8), 0, 0.0),
        (p(6), 2, 0.0),
    ]


def test_where_nothing_is_left_the_checkpoint_is_all_there_is():
    _, row, _ = ride([(0, 4), (55, 0), (60, 4)], checkpoint_every_s=20.0)
    assert row.done == 2 * 40.0 + 2 * 30.0  # two intervals of twenty seconds, and a start anew
    _, row, _ = ride([(0, 4), (20, 2), (55, 0), (60, 2)])
    assert row.done == 30.0  # no checkpoint was ever written: what survivors had is gone with them


def test_work_is_redone_by_whoever_does_not_survive():
    _, row, _ = ride([(0, 4), (50, 2)], survives=False, checkpoint_every_s=15.0)
    assert row.done == 2 * 30.0 + 40.0


@dataclass(frozen=True)
class Even:
    """As many as there are, or one less: it has no use for an odd one."""

    def decide(self, snapshot):
        gpus = int(snapshot.offers["o"].most) // 2 * 2
        return Plan(shapes={"a": Shape("p", gpus)}, hold={"o": gpus})


def test_moves_of_one_instant_are_weighed_from_where_it_began():
    """Survivors go on by themselves at the loss, and the plan of this instant moves them again."""
    pauses, row = rise_and_fall(survives=False)
    weighed = [Change(was=Shape("p", 4), now=Shape("p", 3), lost=1), Change(was=Shape("p", 3), now=Shape("p", 4))]
    assert pauses.heard[1:3] == weighed  # against the boot of a new node
    assert pauses.heard[3:] == [
        Change(was=Shape("p", 4), now=Shape("p", 3), lost=1),
        Change(was=Shape("p", 4), now=Shape("p", 2), lost=1),
    ]
    assert row.done == 2 * 40.0


def test_survivors_that_keep_their_state_wait_for_the_plan_of_the_instant():
    pauses, row = rise_and_fall(survives=True)
    assert pauses.heard[1:] == [Change(was=Shape("p", 4), now=Shape("p", 2), lost=1)]
    assert row.done == 4 * 40.0 + 2 * 40.0


def rise_and_fall(*, survives):
    pauses = Listening()
    job = a_job(work=math.inf, gpus=2, min_gpus=1, max_gpus=99, pauses=pauses, survives=survives)
    changes = Changes(AvailabilityChanged(at_s, "o", nodes) for at_s, nodes in ((0.0, 4), (50.0, 3)))
    cloud = Cloud(offers=(an_offer("o", gpus=1, pool="p", boot_s=60.0),), physics=Physics(notice_s=0.0), market=changes)
    return pauses, simulate([job], Even(), cloud, until_s=100.0).record.jobs["a"]


def test_a_timer_rings_until_the_horizon():
    @dataclass
    class Asking:
        at_s: list[float] = field(default_factory=list)

        def decide(self, snapshot):
            self.at_s.append(snapshot.now_s)
            plan = Follow().decide(snapshot)
            return Plan(shapes=plan.shapes, hold=plan.hold, ask_again_s=snapshot.now_s + 30.0)

    policy = Asking()
    ride([(0, 4)], policy=policy)
    assert [at_s for at_s in policy.at_s if at_s] == [30.0, 60.0, 90.0]


def test_jobs_that_end_before_the_horizon_end_as_ever():
    cloud = Cloud(offers=(OFFER,))
    run = simulate([a_job(work=10.0, speed=Linear())], Follow(most=1, parts=1), cloud, until_s=1000.0)
    assert run.metrics.finished == 1
    assert run.record.jobs["a"].done == 10.0
    assert run.metrics.usd == pytest.approx(10 / 3600)


@pytest.mark.parametrize("until_s", [math.inf, math.nan, -1.0])
def test_a_job_without_an_end_needs_a_horizon(until_s):
    with pytest.raises(InvalidValue, match="until_s"):
        simulate([a_job(work=math.inf)], Follow(), Cloud(offers=(OFFER,)), until_s=until_s)


@pytest.mark.parametrize(
    ("survives", "kept"), [(True, [0.0, 100.0, 100.0, 200.0]), (False, [60.0, 120.0, 180.0, 240.0])]
)
def test_changes_among_peers_do_not_put_the_next_checkpoint_off(survives, kept):
    run = TrainingRun(a_job(work=1e6, speed=Linear(), survives=survives, checkpoint_every_s=100.0))
    run.gpu, run.spread, run.shape = "T4", (1,), Shape("p", 1)
    saved = []
    for change in range(4):  # every minute; who does not survive writes a checkpoint then
        run.resumes_s = 70.0 * change
        run.halt(70.0 * change + 60.0)
        if not survives:
            run.save()
        saved.append(run.saved)
    assert saved == kept
    run.resumes_s = 300.0
    assert run.saved_at(350.0) == (200.0 if survives else 240.0)
    run.halt(370.0)
    run.step_back()
    assert run.done == (300.0 if survives else 240.0)
