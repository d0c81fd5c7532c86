"""The parts of the prediction that need no processes: scenarios, what was seen of a run, draws and their interval."""

from __future__ import annotations

import pytest

from sublet.domain.job import Change
from sublet.domain.shape import Shape
from sublet.market.traces import load_trace
from sublet.perf.live.rows import StepRow
from sublet.runtime.profiles.store import script_digest
from sublet_lab.studies.live.foretelling import QUICK, Seen, told
from sublet_lab.studies.live.known import Frictions, Known, frictions_from
from sublet_lab.studies.live.predict import Draw, RegroupPauses, foretell, foretold_from
from sublet_lab.studies.live.scenarios import BATCH, BOOT_S, SCENARIOS, SPEEDUP, Arrival, Scenario

FRICTIONS = Frictions(boots=(0.1,), plans=(0.0,), starts=(1.0,), grows=(0.5,), shrinks=(0.1,))


def rows(step_s):
    """Whatever the width, a step takes as long: two workers are twice as fast."""
    return tuple(
        StepRow(gpu="T4", gpus=gpus, nodes=gpus, samples=BATCH // gpus, step_s=step_s / gpus, piece_s=step_s / gpus)
        for gpus in (1, 2, 4)
    )


def known(step_s=0.16):
    return Known(rows=rows(step_s), frictions=FRICTIONS)


def test_every_scenario_has_a_market_that_both_worlds_can_read_and_jobs_of_one_script(tmp_path):
    for number, scenario in enumerate(SCENARIOS):
        settings = scenario.settings(tmp_path / str(number))
        changes = [
            (at_s, nodes)
            for name in settings.market
            for at_s, _, nodes in load_trace(name, polarity=settings.polarity).events(0.0, 10_000.0)
        ]
        assert changes == (list(scenario.supply) if len(scenario.supply) > 1 else [])
        assert len({(script_digest(spec), spec.name) for _, spec in scenario.jobs(0.2)}) == 1
        assert all(script_digest(spec) for _, spec in scenario.jobs(0.2))


def test_a_shorter_scenario_keeps_its_proportions():
    whole = Scenario(name="x", arrivals=(Arrival(100.0, 640, 2),), supply=((0.0, 4), (50.0, 1)), notice_s=60.0)
    half = whole.shorter(0.5)
    assert half.arrivals == (Arrival(50.0, 320, 2),)
    assert half.supply == ((0.0, 4), (25.0, 1))
    assert half.notice_s == 60.0  # what clouds promise does not depend on the job


def event(kind, at_s, *, workers=None, node_id="", job_id="a"):
    return {"kind": kind, "at_s": at_s * SPEEDUP, "workers": workers, "node_id": node_id, "job_id": job_id}


def test_what_starting_and_regrouping_take_is_read_off_the_events():
    events = [
        event("JobSubmitted", 1.0),
        event("RentNode", 1.25, node_id="n1"),
        event("NodeReady", 1.75 + BOOT_S / SPEEDUP, node_id="n1"),
        event("StartJob", 3.0, workers=1),
        event("StartJob", 3.0, workers=1, job_id="b"),
        event("JobStarted", 3.5, workers=1),
        event("JobStarted", 4.0, workers=1, job_id="b"),
        event("ResizeJob", 5.0, workers=3),
        event("JobResized", 6.0, workers=3),
        event("ResizeJob", 7.0, workers=2),
        event("JobResized", 7.25, workers=2),
    ]
    found = frictions_from(events)
    assert (found.plans, found.starts, found.grows, found.shrinks) == ((0.25,), (0.5, 1.0), (1.0,), (0.25,))
    assert found.boots == (pytest.approx(0.5),)


@pytest.mark.parametrize(
    ("was", "now", "lost", "pause_s"),
    [
        (None, 2, 0, 30.0),
        (2, 1, 2, 30.0),  # nobody is left who knows anything
        (4, 2, 0, 3.0),
        (4, 2, 2, 3.0),
        (2, 4, 0, 3.0 + 12.0 / 2),  # newcomers load for 12 s, in which half of the new speed is there
        (1, 4, 0, 3.0 + 12.0 * 3 / 4),
    ],
)
def test_a_pause_is_as_long_as_its_kind_of_change(was, now, lost, pause_s):
    pauses = RegroupPauses(start_s=30.0, grow_s=15.0, shrink_s=3.0)
    change = Change(was=None if was is None else Shape("box", was), now=Shape("box", now), lost=lost)
    assert pauses.pause_s(change) == pytest.approx(pause_s)


def test_the_prediction_is_the_median_and_its_interval_holds_eight_of_ten_draws():
    draws = [Draw(float(number), float(number) / 100.0) for number in range(101)]
    found = foretold_from(draws)
    assert (found.makespan_s, found.makespan_range) == (50.0, (10.0, 90.0))
    assert (found.usd, found.usd_range) == (pytest.approx(0.5), (pytest.approx(0.1), pytest.approx(0.9)))


def test_one_job_takes_what_its_steps_take_and_what_starting_takes():
    scenario = Scenario(name="one", arrivals=(Arrival(0.0, 100 * BATCH, 1),))
    found = foretell(scenario, known(step_s=0.16), draws=5)
    start_s = BOOT_S + SPEEDUP * (0.1 + 1.0)
    assert found.makespan_s == pytest.approx(100 * 0.16 * SPEEDUP + start_s, rel=0.05)  # rows are off by 5 %
    assert found.makespan_range[0] < found.makespan_s < found.makespan_range[1]


def test_the_table_says_how_far_off_it_was_and_the_check_holds_it_to_the_goal():
    scenario = Scenario(name="one", arrivals=(Arrival(0.0, 16, 1),))
    said = foretold_from([Draw(100.0, 1.0)])
    runs = (Draw(110.0, 1.2), Draw(114.0, 1.2), Draw(150.0, 1.2))
    found = told([Seen(scenario=scenario, foretold=said, runs=runs, finished=3)], known())
    assert [check.ok for check in found.checks] == [True, True, False]
    assert [row[-1] for row in found.tables[0].rows] == ["+14.0%", "+20.0%"]


def test_a_short_study_names_the_scenarios_that_it_left_out():
    said, runs = foretold_from([Draw(100.0, 1.0)]), (Draw(110.0, 1.2),)
    all_seen = [Seen(scenario=each, foretold=said, runs=runs, finished=1) for each in SCENARIOS]
    some = [each for each in all_seen if each.scenario.name in QUICK]
    assert 0 < len(some) < len(all_seen)
    left_out = told(some, known()).notes[-1]
    assert left_out.startswith("not run: ")
    assert [each.name in left_out for each in SCENARIOS] == [each.name not in QUICK for each in SCENARIOS]
    assert len(told(all_seen, known()).notes) == 1
