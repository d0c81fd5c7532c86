"""What `sublet demo --grid` and the study of live grids say of a run, from what its workers wrote down."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace

import pytest

from sublet.demo.grid import demo
from sublet.demo.grid.day import at_rates, restarting, same_day, starting, struck_supply
from sublet.demo.grid.demo import places_svg, places_text
from sublet.demo.grid.diaries import Row, Span, accounts, read_rows, spans, steps_per_s
from sublet.demo.grid.moves import RESTART, moves_seen
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Change
from sublet.domain.plan import Phase
from sublet.domain.shape import Grid, Shape
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.live_grids import LiveGrids
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet.runtime.settings import Settings
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.gridded.restarting import CheckpointRestart

SAMPLES, BATCH = 8, 4


def row(worker, step, place, samples, *, grid=(2, 2), generation=1, loss="0x1"):
    at = {"since_s": float(step), "at_s": step + 0.9}
    return Row(
        worker=worker, generation=generation, step=step, grid=grid, place=place, samples=samples, loss=loss, **at
    )


def an_epoch():
    """Two steps of 2 x 2: each copy takes two samples, and both of its parts say so."""
    taken = {0: ((5, 2), (7, 0)), 1: ((1, 3), (4, 6))}
    return [
        row(f"w{copy}{part}", step, (copy, part), taken[step][copy])
        for step in taken
        for copy in (0, 1)
        for part in (0, 1)
    ]


def counted(rows, steps=2):
    return accounts(rows, steps=steps, batch=BATCH, samples=SAMPLES)


def test_an_epoch_in_which_each_sample_was_taken_once_is_clean():
    assert counted(an_epoch()).clean
    again = [replace(each, step=each.step + 2) for each in an_epoch()]
    assert counted([*an_epoch(), *again], steps=4).clean


def test_one_part_of_a_copy_is_enough_to_say_what_it_took():
    assert counted([each for each in an_epoch() if each.worker != "w11"]).clean


def test_what_no_copy_says_is_missing():
    found = counted([each for each in an_epoch() if each.place[0] == 0])
    assert (found.missing, found.twice, found.clean) == (4, 0, False)
    assert counted(an_epoch()[:4]).missing == 4


def test_what_two_copies_took_was_taken_twice_and_another_is_missing():
    rows = [replace(each, samples=(5, 2)) if each.step == 0 else each for each in an_epoch()]
    found = counted(rows)
    assert (found.missing, found.twice, found.clean) == (2, 2, False)


def test_what_a_copy_took_counts_though_it_could_not_say_that_it_was_applied_unless_it_was_made_again(tmp_path):
    """The second copy of the last step has gone before it could: once it was heard to the end, once it was not."""

    def read_back(name, rows, gone):
        (tmp_path / name).mkdir()
        for each in [*rows, *gone]:
            facts = asdict(each)
            if each in gone:
                del facts["loss"], facts["at_s"]
            with (tmp_path / name / each.worker).open("a") as diary:
                diary.write(json.dumps(facts) + "\n")
        return read_rows(tmp_path / name)

    gone = [each for each in an_epoch() if (each.step, each.place[0]) == (1, 1)]
    rest = [each for each in an_epoch() if each not in gone]
    assert counted(rest).missing == 2
    half = [replace(each, samples=each.samples[:1]) for each in gone]
    assert counted(read_back("heard", rest, [*half, *gone])).clean
    assert counted(read_back("half", rest, half)).missing == 1
    again = [replace(each, samples=(1, 3, 4, 6), generation=2, grid=(1, 2)) if each.step else each for each in rest]
    assert read_back("again", again, gone) == again
    assert counted(again).clean


@pytest.mark.parametrize("otherwise", [{"loss": "0x2"}, {"samples": (2, 5)}])
def test_workers_that_say_different_things_of_a_step_are_told_of(otherwise):
    rows = an_epoch()
    assert counted([replace(rows[0], **otherwise), *rows[1:]]).disputed == 1


def test_what_was_made_before_all_went_back_to_a_checkpoint_is_undone():
    """In 1 x 2 the first time, where one copy took all; and by one alone, which is half of a step."""
    once = [row(f"w0{part}", 1, (0, part), (1, 3, 4, 6), grid=(1, 2), loss="0x3") for part in (0, 1)]
    again = [replace(each, generation=3) if each.step else each for each in an_epoch()]
    found = counted([*once, *again])
    assert (found.clean, found.steps, found.again) == (True, 2, 1)
    alone = [replace(each, generation=3) for each in an_epoch() if each.place == (0, 0)]
    found = counted([*an_epoch(), *alone])
    assert (found.missing, found.again) == (4, 2)


def test_rows_are_read_as_they_were_written_but_for_a_line_that_has_no_end(tmp_path):
    first = an_epoch()[0]
    facts = asdict(first)
    (tmp_path / "w00").write_text(f"{json.dumps(facts)}\n{json.dumps(facts)[:20]}")
    assert read_rows(tmp_path) == [first]


def test_a_place_that_was_empty_meanwhile_is_two_spans():
    rows = [row("a", step, (0, 0), ()) for step in (0, 1, 4, 5)] + [row("b", step, (0, 0), ()) for step in (6, 7)]
    assert spans(rows) == [Span((0, 0), "a", 0.0, 1.9), Span((0, 0), "a", 4.0, 5.9), Span((0, 0), "b", 6.0, 7.9)]


def test_a_change_is_of_the_kind_that_its_members_made():
    def seats(generation, grid, *workers):
        parts = grid[1]
        return [
            row(worker, generation * 2, divmod(at, parts), (), grid=grid, generation=generation)
            for at, worker in enumerate(workers)
        ]

    rows = [
        *seats(1, (2, 2), "a", "b", "c", "d"),
        *seats(2, (1, 2), "a", "d"),  # one of each part is left
        *seats(3, (1, 2), "d", "a"),  # they change parts
        *seats(4, (1, 2), "d", "a"),  # nothing
        *seats(5, (1, 3), "d", "a", "e"),
    ]
    events = [{"kind": "ResizeJob", "at_s": 10.0 * (2.0 * step - 0.5)} for step in (2, 3, 4, 5)]
    found = moves_seen(events, rows, 10.0, 0.0)
    assert [(each.kind, each.was, each.now) for each in found] == [
        ("within", (2, 2), (1, 2)),
        ("between", (1, 2), (1, 2)),
        ("depth", (1, 2), (1, 3)),
    ]
    assert [each.decided_s for each in found] == [0.5, 0.5, 0.5]
    assert found[0].paused_s == pytest.approx(4.0 - 2.9)


SEEN = [Span((0, 0), "a", 0.0, 6.0), Span((0, 0), "b", 6.0, 10.0), Span((0, 1), "c<", 0.0, 4.0)]


def test_the_picture_has_a_row_for_each_place_and_a_colour_for_each_worker():
    root = ET.fromstring(places_svg(SEEN, [(3.0, "notice"), (5.0, "kill")], ends_s=10.0, title="a < b"))  # noqa: S314 - our own
    boxes = [each for each in root if each.tag.endswith("rect")]
    assert len(boxes) == len({each.get("fill") for each in boxes}) == 3
    assert len({each.get("y") for each in boxes}) == 2
    a, b, c = boxes
    assert float(a.get("width")) == pytest.approx(1.5 * float(b.get("width")), abs=0.2)
    assert float(a.get("x")) + float(a.get("width")) == pytest.approx(float(b.get("x")), abs=0.2)
    assert float(a.get("x")) == float(c.get("x"))
    assert len([each for each in root if each.tag.endswith("line")]) == 2


def test_the_picture_for_a_terminal_says_the_same():
    found = places_text(SEEN, [(3.0, "notice"), (5.0, "kill")], ends_s=10.0, columns=10)
    assert found == ["copy 1 part 1  AAAAAACCCC", "copy 1 part 2  BBBB......", "                  n k"]


def test_what_a_script_takes_is_not_in_the_supply_until_it_is_given_back(tmp_path):
    settings = Settings(state_dir=str(tmp_path), strikes=("20:kill:2", "30:restore:1"))
    supply = [AvailabilityChanged(at_s, "spot", nodes) for at_s, nodes in ((0.0, 5), (25.0, 6), (40.0, 3))]
    found = [(each.at_s, each.nodes) for each in struck_supply(settings, iter(supply))]
    assert found == [(0.0, 5), (20.0, 3), (25.0, 4), (30.0, 5), (40.0, 2)]


# ---------------------------------------------------------------------- checkpoint and restart, and the same day


def test_where_nobody_stayed_it_is_a_restart_and_begins_with_the_stop():
    old = [row("a", 0, (0, 0), (1,), grid=(1, 2)), row("b", 0, (0, 1), (1,), grid=(1, 2))]
    new = [row("c", 9, (0, 0), (1,), grid=(1, 2), generation=2), row("d", 9, (0, 1), (1,), grid=(1, 2), generation=2)]
    events = [{"kind": "StopJob", "at_s": 4.0}, {"kind": "NodeLost", "at_s": 6.0}]
    (move,) = moves_seen(events, [*old, *new], 1.0, 0.0)
    assert (move.kind, move.decided_s) == (RESTART, 5.0)


def test_a_run_is_as_fast_in_a_grid_as_its_steps_there_took_together():
    wide = [replace(row("a", step, (0, 0), ()), at_s=at_s) for step, at_s in ((0, 1.0), (1, 2.0), (2, 4.0))]
    deep = [replace(row("a", step, (0, 0), (), grid=(1, 4), generation=2), at_s=9.0 + step) for step in (3, 4)]
    assert steps_per_s([*wide, *deep]) == {(2, 2): 2 / 3.0, (1, 4): 1.0}


KNOWN = LiveGrids(most_gpus=7, depths=(3,), guess=1e-4).profile()
PARTED = a_job("g", work=1.0, speed=Gridded(KNOWN), pauses=LivePauses(KNOWN), gpus=7, min_gpus=3, max_gpus=7)


def test_a_start_takes_what_it_took_and_a_change_what_it_did():
    job, grid = starting(PARTED, 300.0), Shape("p", 6, grid=Grid(2, 3))
    assert job.pause_s(Change(was=None, now=grid)) == 300.0
    change = Change(was=Shape("p", 3, grid=Grid(1, 3)), now=grid)
    assert job.pause_s(change) == PARTED.pause_s(change) < 300.0


def test_a_job_goes_as_fast_as_it_did_in_grids_that_it_was_in():
    job, other = at_rates(PARTED, {(1, 3): 0.5}), Shape("p", 6, grid=Grid(2, 3))
    assert job.speed_on(Shape("p", 3, grid=Grid(1, 3))).rate("T4", (1,) * 3, 0.0) == 0.5
    assert job.speed_on(other).rate("T4", (1,) * 6, 0.0) == PARTED.speed_on(other).rate("T4", (1,) * 6, 0.0)


def test_a_grid_is_changed_by_a_stop_in_which_its_nodes_are_held_and_a_start():
    driver, policy = Driver([an_offer("o", gpus=1, pool="p")]), CheckpointRestart()
    driver.tell(AvailabilityChanged(0.0, "o", 6))
    driver.submit(PARTED)
    driver.settle(policy)
    assert driver.kernel.jobs["g"].shape == Shape("p", 6, grid=Grid(2, 3))
    driver.tell(AvailabilityChanged(10.0, "o", 7))
    assert policy.decide(driver.kernel.snapshot()).shapes == {"g": Shape("p", 7, grid=Grid(2, 3))}, "a spare"
    driver.settle(policy)
    driver.tell(AvailabilityChanged(20.0, "o", 5))
    plan = policy.decide(driver.kernel.snapshot())
    assert plan.shapes == {"g": None}
    assert plan.hold == {"o": 5}
    driver.settle(policy)
    state = driver.kernel.jobs["g"]
    assert (state.phase, state.shape) == (Phase.RUNNING, Shape("p", 5, grid=Grid(1, 3)))


def test_in_the_simulator_it_makes_less_than_live_changes_by_what_restarts_take():
    settings = Settings(state_dir="/", market=("bamboo-p3",), market_start_s=19_800.0, market_share=0.22, most_nodes=7)
    job = replace(PARTED, work=float("inf"))

    def done(each, policy):
        return same_day(settings, each, policy, boot_s=10.0, until_s=3600.0).record.jobs["g"].done

    live, dear = done(job, Fastest()), done(restarting(job, 200.0), CheckpointRestart())
    cheap = done(restarting(job, 1.0), CheckpointRestart())
    assert dear < cheap <= live * 1.01


@pytest.mark.parametrize("pause_s", [0.1, 0.3])
def test_the_day_of_the_demonstration_is_wide_again_soon_after_supply_is(tmp_path, pause_s):
    """Nine nodes become four within ten minutes, and six of them are to be had again two minutes later.

    That nodes come and go is no reason to wait where a change takes some tenths of a second, of which 36 are one here.
    """
    settings = demo.demo_settings(tmp_path)
    units = (0.001, *[demo.JOB.unit_ms / 1000.0] * demo.JOB.blocks, 0.001)
    guess = 1.0 / (12 * sum(units)) / demo.JOB.steps / settings.speedup / 2.0  # a machine that others use
    known = LiveGrids(
        most_gpus=9,
        depths=(3, 4, 5),
        guess=guess,
        atoms=12,
        blocks=(152_000,) * demo.JOB.blocks,
        units=units,
        speedup=settings.speedup,
    ).profile()
    restart_s = pause_s * settings.speedup
    job = a_job("g", work=1.0, speed=Gridded(known), pauses=LivePauses(known), gpus=9, min_gpus=3, max_gpus=9)
    run = same_day(settings, replace(job, restart_s=restart_s), Liveput(), boot_s=100.0)
    grids = [(each.start_s, str(each.grid)) for each in run.record.segments if each.grid is not None]
    narrow_s = next(at_s for at_s, grid in grids if grid == "1 x 3")
    wide_s = next(at_s for at_s, grid in grids if at_s > narrow_s and grid == "2 x 3")
    assert wide_s < 1_860.0 + 300.0  # to be had, and booted
    assert {"3 x 3", "2 x 3", "1 x 5", "1 x 3"} <= {grid for _, grid in grids}
