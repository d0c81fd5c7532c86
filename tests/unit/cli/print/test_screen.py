"""The live view fits its screen, shows what matters, and does without a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sublet.cli.print.figures import loss, money, percent, quantiles, span
from sublet.cli.print.report import timeline
from sublet.cli.print.screen import frame, plain_lines, watch_controller
from sublet.cli.status import ControllerStatus, status_reader
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import spec_to_json
from tests.rigs.in_memory_api import RUNNING, row_from, served

SPEC = job_from_command(["true"], name="a-job-with-a-very-long-name", workers=(1, 4))
HEALTH = {"now_s": 3720.0, "speedup": 60.0, "policy": "price"}
BUDGET = {"spent_usd": 1.0, "purse_usd": 5.0, "burn_usd_per_h": 0.6, "burn_limit_usd_per_h": 2.0}
NODE = {
    "id": "n1",
    "market": "spot",
    "phase": "noticed",
    "usd_per_h": 0.3,
    "until_s": 3800.0,
    "job_ids": ["j0"],
}


def event(n):
    return {"seq": n + 1, "at_s": 60.0 * n, "job_id": "", "node_id": "n7", "text": f"event {n} " + "long " * 30}


def look(jobs=3, nodes=5, events=20):
    rows = [{**row_from(f"j{number}", SPEC), **RUNNING, "workers_wanted": 4} for number in range(jobs)]
    return ControllerStatus(
        health=HEALTH,
        budget=BUDGET,
        jobs=rows,
        nodes=[{**NODE, "id": f"n{number}", "phase": "ready" if number else "noticed"} for number in range(nodes)],
        events=[event(n) for n in range(events)],
    )


def drawn(seen, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(frame(seen))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("jobs", [0, 1, 3, 40])
def test_no_line_is_wider_than_the_screen_and_the_picture_fits_it(width, jobs):
    lines = drawn(look(jobs=jobs, nodes=jobs), width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 40


def test_what_matters_is_there_at_80_columns():
    text = drawn(look(jobs=1), 80)
    for word in ("1h02m at 60x", "price", "USD 1.00 of 5.00 spent", "0.60 of 2.00 per hour", "a-job-w…name", "running"):
        assert word in text
    for word in ("40%", "2→4", "100", "1.23", "2m00s", "lost in 1m20s", "n7: event 19", "event 14"):
        assert word in text
    assert "event 13" not in text


def test_large_numbers_fit_80_columns_too():
    wide = {"global_batch": 1_048_576, "loss": 0.000055141, "usd_total": 1234.56, "eta_s": {"p50": 86_000.0}}
    wide |= {"phase": "out-of-budget", "workers": 128, "workers_wanted": 256, "progress": 1.0}
    rows = [{**row_from("j", SPEC), **wide}]
    text = drawn(ControllerStatus(health=HEALTH, budget=BUDGET, jobs=rows, nodes=[], events=[]), 80)
    for word in ("1048576", "5.51e-05", "1234.56", "23h53m", "128→256", "100%"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_long_history_is_not_told_from_its_beginning(capsys):
    watch_controller(lambda: look(events=100), until=lambda _: True)
    out = capsys.readouterr().out
    assert "event 80 " in out
    assert "event 79 " not in out


def test_lines_do_where_there_is_no_terminal(capsys):
    seen = iter([look(events=2), look(events=3), look(events=3)])
    ended = iter([False, False, True])
    watch_controller(lambda: next(seen), until=lambda _: next(ended))
    out = capsys.readouterr().out
    assert [out.count(f"event {n} ") for n in range(3)] == [1, 1, 1]  # each is told once
    assert "running, 2 workers, 40%, loss 1.234, USD 1.00, 2m00s left" in out
    assert "\x1b" not in out


def test_a_look_asks_only_for_what_is_new(tmp_path):
    with served(tmp_path) as there:
        there.client.post("/v1/jobs", {"job": spec_to_json(SPEC, secrets=True)})
        look_now = status_reader(there.client)
        assert len(look_now().events) == 1
        there.api.tell("Note", "", "more")
        second = look_now()
    assert [event["seq"] for event in second.events] == [1, 2]
    assert not second.over
    assert plain_lines(second)[1].startswith("  a-job-with-a-very-long-name: queued, 0 workers, -, loss -, USD 0.00")


def test_it_is_over_when_no_job_can_go_on_by_itself():
    assert look(jobs=0).over
    assert not look(jobs=1).over
    resting = [{**row_from("a", SPEC), "phase": phase} for phase in ("finished", "failed", "paused", "out-of-budget")]
    assert ControllerStatus(health=HEALTH, budget=BUDGET, jobs=resting, nodes=[], events=[]).over


def test_a_timeline_is_a_picture_also_of_nothing():
    lost = {"kind": "NodeLost", "job_id": "j", "workers": 2, "nodes_held": 3, "usd_total": 0.5, "at_s": 60.0}
    for events in ([], [lost], [lost, {**lost, "at_s": 9000.0, "job_id": "", "workers": None}]):
        assert timeline(events, {"j": "job $ name"}).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (money(None), "-"), (money(0.0), "USD 0.00"), (money(1.234), "USD 1.23"), (money(0.0012), "USD 0.0012"),
        (span(None), "-"), (span(0.2), "<1s"), (span(59.0), "59s"), (span(3599.0), "59m59s"), (span(7260.0), "2h01m"),
        (span(200_000.0), "2d07h"), (percent(0.999), "99%"), (percent(1.0), "100%"), (percent(None), "-"),
        (loss(12.3456), "12.35"), (quantiles(None, span), "-"),
        (quantiles({"p10": 1.0, "p50": 2.0, "p90": 60.0}, span), "2s (1s to 1m00s)"),
    ],
)  # fmt: skip
def test_figures_read_as_people_read_them(text, expected):
    assert text == expected


def test_nothing_heavy_is_imported_for_a_verb_until_it_runs():
    source = Path("src/sublet/cli/print/screen.py").read_text()
    assert "\nfrom rich" not in source
