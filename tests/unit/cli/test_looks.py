"""How answers read: names that tell jobs apart, numbers without odd signs, plurals, and what matters on the screen."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sublet.cli.main import run
from sublet.cli.print import report as live_report
from sublet.cli.print.bill import bill_rows, bill_sentence, print_bill
from sublet.cli.print.figures import fine, money
from sublet.cli.print.jobs import print_jobs, saved_of
from sublet.cli.print.screen import frame, plain_lines
from sublet.cli.status import ControllerStatus
from sublet.cli.work import controller_process
from sublet.errors import SubletError
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.providers.local.build import build
from sublet.runtime.settings import Settings
from sublet.sim.report import plots
from tests.rigs.in_memory_api import BILL, RUNNING, cost_from, row_from, served

HEALTH = {"now_s": 60.0, "speedup": 1.0, "policy": "price"}
BUDGET = {"spent_usd": 1.0, "purse_usd": None, "burn_usd_per_h": 0.6, "burn_limit_usd_per_h": None}


def job(job_id, name="mlp", **facts):
    return {**row_from(job_id, job_from_command(["true"], name=name)), **RUNNING, **facts}


def look(jobs):
    return ControllerStatus(health=HEALTH, budget=BUDGET, jobs=jobs, nodes=[], events=[])


def bill(jobs, **facts):
    rows = [{**cost_from(each), "name": each["name"]} for each in jobs]
    whole = {name: sum(row[name] for row in rows) for name in row_names(rows)}
    return {**rows[0], **whole, "jobs": rows, **facts}


def row_names(rows):
    return [name for name in rows[0] if name in BILL or (name.startswith("usd_") and name != "usd_on_demand")]


def drawn(seen):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(frame(seen))
    return console.file.getvalue()


def test_the_bill_says_what_each_tier_of_checkpoints_cost_and_saved(capsys):
    tier = {"commits": 3, "size_bytes": 1.5e9, "blocked_s": 0.25, "usd_blocked": 0.5}
    tier |= {"resumes": 1, "steps_kept": 40, "usd_kept": 2.0, "newest": 2}
    print_bill(bill([job("mlp-1")], tiers=[{"tier": "anchor", **tier}]))
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("anchor")]
    assert row == ["anchor", "3", "1.5", "0.25", fine(0.5), "1", "40", fine(2.0), "2", "jobs"]
    print_bill(bill([job("mlp-1")]))
    assert "checkpoints" not in capsys.readouterr().out  # none was made


def test_ps_shows_the_grid_of_a_model_that_is_cut_and_who_waits_beside_it(tmp_path, monkeypatch, capsys):
    with served(tmp_path) as there:
        monkeypatch.setenv("SUBLET_STATE", str(there.state.path))
        there.api.rows["a-1"] = job("a-1", "a")
        run(["ps"])
        assert "grid" not in capsys.readouterr().out, "a column for nothing"
        there.api.rows["b-1"] = job("b-1", "b", grid="2 x 3", spares=1)
        there.api.rows["c-1"] = job("c-1", "c", grid="1 x 4")
        run(["ps"])
        lines = capsys.readouterr().out.splitlines()
        assert "grid" in lines[0]
        assert ["2 x 3 + 1 spare" in line for line in lines if line.startswith(("a-1", "b-1", "c-1"))] == [0, 1, 0]
        assert ["1 x 4" in line for line in lines if line.startswith(("a-1", "b-1", "c-1"))] == [0, 0, 1]


def test_the_bill_says_what_changes_of_grids_cost_by_kind(capsys):
    moves = [
        {"kind": "within", "count": 3, "size_bytes": 0, "seconds": 0.25},
        {"kind": "between", "count": 1, "size_bytes": 2.5e9, "seconds": 1.5},
    ]
    print_bill(bill([job("gpt-1")], moves=moves))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("within", "between"))]
    assert rows == [["within", "3", "0", "0.25"], ["between", "1", "2.5", "1.50"]]
    print_bill(bill([job("mlp-1")]))
    assert "grid changed" not in capsys.readouterr().out


# ---------------------------------------------------------------------- names


def test_jobs_of_one_name_go_by_their_ids_wherever_there_is_room_for_one_word():
    jobs = [job("mlp-1"), job("mlp-2"), job("gpt-1", "gpt")]
    _, rows = bill_rows(bill(jobs))
    assert [row[0] for row in rows] == ["mlp-1", "mlp-2", "gpt", "no job", "all"]
    assert [line.split(":")[0].strip() for line in plain_lines(look(jobs))[1:]] == ["mlp-1", "mlp-2", "gpt"]
    for name in ("mlp-1", "mlp-2", "gpt "):
        assert name in drawn(look(jobs))


def test_a_long_id_keeps_its_end():
    jobs = [job(f"a-job-with-a-long-name-{number}", "a-job-with-a-long-name") for number in (1, 2)]
    assert "a-job-w…me-1" in drawn(look(jobs))
    assert "a-job-w…me-2" in drawn(look(jobs))


# ---------------------------------------------------------------------- numbers and words


def test_nothing_has_no_sign():
    jobs = [job("a-1", "a"), job("b-1", "b")]
    less = bill(jobs, usd_idle=sum(each["usd_idle"] for each in jobs) - 1e-12)
    _, rows = bill_rows(less)
    assert "-0.0000" not in {cell for row in rows for cell in row}
    assert (money(-1e-9), money(0.0), money(-0.5), money(0.001)) == ("USD 0.00", "USD 0.00", "USD -0.50", "USD 0.0010")


def test_of_nothing_nothing_need_be_said():
    note = "nothing says that the work was kept"
    assert note not in bill_sentence(bill([job("a-1", "a")], usd_unknown=3e-5))
    assert f"of USD 0.0001 {note}" in bill_sentence(bill([job("a-1", "a")], usd_unknown=1e-4))


def test_one_is_not_many():
    one = bill([job("a-1", "a")], steps_lost=1, preemptions_noticed=1, preemptions_unnoticed=0)
    assert bill_sentence(one).endswith("1 step lost in 1 preemption with notice and 0 without")
    assert "1 worker," in "\n".join(plain_lines(look([job("a-1", "a", workers=1)])))


@pytest.mark.parametrize(("phase", "reason"), [("finished", "finished"), ("cancelled", "cancelled")])
def test_a_phase_is_not_its_own_reason(tmp_path, monkeypatch, capsys, phase, reason):
    with served(tmp_path) as there:
        monkeypatch.setenv("SUBLET_STATE", str(there.state.path))
        there.api.rows["a-1"] = job("a-1", "a", phase=phase, reason=reason)
        there.api.specs["a-1"] = job_from_command(["true"], name="a")
        run(["logs", "a-1", "-f"])
        assert capsys.readouterr().err == f"job a-1 (a) is {phase}\n"


def test_how_a_process_ended_is_told_in_ps_and_at_the_end_of_its_log(tmp_path, monkeypatch, capsys):
    with served(tmp_path) as there:
        monkeypatch.setenv("SUBLET_STATE", str(there.state.path))
        for job_id, code in (("a-1", 3), ("b-1", -11), ("c-1", 0)):
            there.api.rows[job_id] = job(job_id, job_id, phase="failed", exit_code=code, reason="boom")
            there.api.specs[job_id] = job_from_command(["true"], name="a")
        assert run(["ps"]) == 0
        listed = capsys.readouterr().out
        assert "failed (exit code 3)" in listed
        assert "failed (SIGSEGV)" in listed
        assert "failed (exit code 0)" not in listed  # it ended too early, as the reason says
        assert run(["logs", "a-1", "-f"]) == 100
        assert capsys.readouterr().err == "job a-1 (a-1) is failed (exit code 3): boom\n"


@pytest.mark.parametrize(
    ("facts", "cell"),
    [
        ({}, "-"),
        ({"checkpoint_newest": 200, "checkpoint_step": 100, "checkpoint_tier": "disk"}, "200 disk"),
        ({"checkpoint_tier": "anchor"}, "anchor"),
    ],
)
def test_ps_says_in_which_tier_the_newest_checkpoint_lies(facts, cell, capsys):
    assert saved_of(job("a-1", "a", **facts)) == cell
    print_jobs([job("a-1", "a", **facts), job("b-1", "b")], last_ended=None)
    told = capsys.readouterr().out
    assert ("saved" in told) == (cell != "-")
    assert cell in told or cell == "-"


# ---------------------------------------------------------------------- what is on the screen


def test_jobs_that_have_ended_do_not_push_those_that_run_off_the_screen():
    running = [job(f"r-{number}", f"r{number}") for number in range(3)]
    ended = [job(f"e-{number}", f"e{number}", phase="finished") for number in range(30)]
    for text in (drawn(look([*running, *ended])), "\n".join(plain_lines(look([*running, *ended])))):
        for name in ("r0", "r1", "r2", "e29", "e21"):
            assert name in text
        assert "e20" not in text
        assert "and 21 more, all of them over" in text


def test_of_many_jobs_each_colour_means_one_and_the_rest_is_grey():
    names = {f"j-{number}": f"j{number}" for number in range(26)}
    events = [{"at_s": 10.0 * n, "job_id": f"j-{n}", "workers": 1} for n in range(26)]
    events.append({"at_s": 300.0, "job_id": "", "workers": None})
    colours = live_report.job_colours(events, names)
    own = [colour for colour in colours.values() if colour != plots.OTHER_COLOUR]
    assert len(own) == len(set(own)) == len(plots.GROUP_COLOURS) - 1
    assert colours["j-0"] != plots.OTHER_COLOUR, "it trained longest"
    assert colours["j-25"] == plots.OTHER_COLOUR


def test_of_many_policies_no_two_curves_look_alike():
    looks = plots._line_looks()
    assert len({next(looks) for _ in range(26)}) == 26


# ---------------------------------------------------------------------- help


def test_verbs_stand_under_headings_and_help_says_where_exit_codes_are(capsys):
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    headings = ["Run jobs:", "See what they do", "Ask before you spend:", "What is there:", "Keep things in order:"]
    assert [told.index(heading) for heading in headings] == sorted(told.index(heading) for heading in headings)
    assert "Commands:" not in told
    assert "docs/reference/command-line.md" in told


def test_every_exit_code_of_an_error_is_in_the_reference():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "command-line.md").read_text()
    table = page.partition("## Exit codes")[2]
    kinds, codes = [SubletError], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        codes.add(getattr(kind, "exit_code", 1))
    assert len(codes) > 4
    assert [code for code in sorted(codes | {101, 103, 111}) if f"{code}" not in table] == []


def test_help_imports_nothing_heavy():
    script = "import sys\nfrom sublet.cli.main import run\nrun(['--help'])\nprint(*sys.modules, file=sys.stderr)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Run jobs" in done.stdout
    loaded = set(done.stderr.split())
    assert (
        loaded & {"numpy", "scipy", "matplotlib", "rich.console", "pydantic", "fastapi", "torch", "yaml", "obstore"}
        == set()
    )


def test_a_market_of_other_gpus_is_said_to_be_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path))
    monkeypatch.setattr(controller_process, "start", lambda settings, foreground=False: "http://127.0.0.1:1")
    assert run(["up", "--market", "bamboo-p3"]) == 0
    assert "as V100s did; here each costs what a T4 costs (aws:g4dn.xlarge)" in capsys.readouterr().out


def test_a_limit_on_nodes_says_that_each_offer_has_its_own(capsys, tmp_path):
    assert run(["up", "--help"]) == 0
    assert "at most N nodes of each offer: N on spot and N on demand" in " ".join(capsys.readouterr().out.split())
    setup = build(Settings(state_dir=str(tmp_path), most_nodes=3), Clock(speedup=1.0), store=None)
    assert {offer: limit.max_nodes for offer, limit in setup.limits.items()} == {"local:spot": 3, "local:on-demand": 3}
