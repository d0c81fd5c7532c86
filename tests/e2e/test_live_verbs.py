"""Every verb that talks to a controller, from the command line over real HTTP to an API in memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sublet.api import client
from sublet.api.server import bind
from sublet.api.state import StateDir
from sublet.cli.work import controller_process
from sublet.errors import Infeasible
from sublet.runtime.store import Store
from tests.rigs.browser import refused
from tests.rigs.in_memory_api import RUNNING, served

API = """
import sys, types
from pathlib import Path
from tests.rigs.in_memory_api import InMemoryApi
assemble = types.ModuleType("sublet.runtime.controller_api.assemble")
def controller_from(settings):
    if settings.seed == 13:
        raise ValueError("no luck")
    api = InMemoryApi(Path(settings.state_dir))
    api.purse, api.burn = settings.purse_usd, settings.burn_usd_per_h
    return api
assemble.controller_from = controller_from
sys.modules["sublet.runtime.controller_api.assemble"] = assemble
from sublet.api.main import main
main()
"""


@pytest.fixture
def there(tmp_path, monkeypatch):
    with served(tmp_path) as found:
        monkeypatch.setenv("SUBLET_STATE", str(found.state.path))
        monkeypatch.delenv("SUBLET_SERVER", raising=False)
        yield found


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "train.py").write_text("from sublet import train\n")
    path = tmp_path / "job.yaml"
    path.write_text("name: gpt\nrun: python train.py\nelastic: {workers: 2..4}\nsecrets: {TOKEN: hush-hush}\n")
    return path


@pytest.fixture
def job(there, sublet, job_file):
    """A job that runs."""
    job_id = sublet("submit", job_file, "-o", "json").json["job_id"]
    there.api.change(job_id, **RUNNING)
    return job_id


def test_submit_hands_the_whole_job_over_and_says_what_comes_next(there, sublet, job_file):
    answer = sublet("submit", job_file)
    assert answer.code == 0, answer.err
    (job_id,) = there.api.rows
    spec = there.api.specs[job_id]
    assert (spec.name, spec.min_workers, spec.max_workers, spec.sdk) == ("gpt", 2, 4, True)
    assert spec.secrets == {"TOKEN": "hush-hush"}
    assert f"job {job_id} (gpt) is submitted: 2..4 workers" in answer.out
    last = answer.out.splitlines()[-1]
    assert last.startswith("next: ")
    for verb in ("logs", "ps", "explain", "cancel"):
        assert f"sublet {verb}" in last
    assert sublet("submit", "-f", job_file).code == 0
    assert sublet("submit", job_file, "-f", job_file).code == 2
    assert sublet("submit").code == 2


def test_a_dry_run_shows_plan_price_finish_and_cost_and_submits_nothing(there, sublet, job_file):
    answer = sublet("submit", job_file, "--dry-run")
    assert answer.code == 0, answer.err
    for text in ("4 x cpu-spot", "USD 1.20/h", "2m00s (1m40s to 3m00s)", "USD 0.02 (USD 0.01 to USD 0.03)", "USD 0.06"):
        assert text in answer.out
    assert "speed not measured yet" in answer.out
    assert sublet("submit", job_file, "--dry-run", "--json").json["workers"] == 4
    assert not there.api.rows


def test_a_plan_that_cannot_be_ends_with_112(there, sublet, job_file, monkeypatch):
    sound = there.api.dry_run

    async def hopeless(spec):
        return {**await sound(spec), "feasible": False, "reason": "a node costs more than the budget"}

    monkeypatch.setattr(there.api, "dry_run", hopeless)
    answer = sublet("submit", job_file, "--dry-run")
    assert answer.code == 112
    assert "a node costs more than the budget" in answer.out


def test_a_broken_file_is_refused_before_anybody_is_asked(sublet, tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "none"))
    (tmp_path / "bad.yaml").write_text("run: echo hi\nelastic: {worker: 2}\n")
    answer = sublet("submit", tmp_path / "bad.yaml")
    assert (answer.code, answer.out) == (2, "")
    assert "bad.yaml, line 2: elastic.worker is no key of a job file; did you mean workers?" in answer.err


def test_run_submits_a_command_and_ends_with_the_code_of_the_job(there, sublet, tmp_path):
    def finish():
        while not there.api.rows:
            time.sleep(0.01)
        (job_id,) = there.api.rows
        (tmp_path / f"{job_id}-0.log").write_text("step 1\n")
        there.api.change(job_id, phase="failed", reason="it exited with 1")

    thread = threading.Thread(target=finish)
    thread.start()
    answer = sublet("run", "--workers", "2..3", "--env", "A=1", "--name", "mine", "--", "true", "--flag")
    thread.join()
    assert answer.code == 100
    assert answer.out.endswith("step 1\n")
    assert "is failed: it exited with 1" in answer.err
    (spec,) = there.api.specs.values()
    assert (spec.name, spec.argv, spec.env) == ("mine", ("true", "--flag"), {"A": "1"})
    assert (spec.min_workers, spec.max_workers) == (2, 3)


def test_run_refuses_what_cannot_be(there, sublet):
    for wrong in (("--workers", "3..2"), ("--workers", "x"), ("--env", "novalue"), ("--name", "Bad Name")):
        assert sublet("run", *wrong, "--", "true").code == 2
    assert sublet("run", "--", "python", "nosuch.py").code == 2
    assert sublet("run").code == 2
    assert not there.api.rows


def test_ps_shows_every_job_in_a_row(there, sublet, job):
    answer = sublet("ps")
    assert answer.code == 0, answer.err
    row = next(line for line in answer.out.splitlines() if line.startswith(job))
    for cell in ("gpt", "running", "2 of 2..4", "40%", "1.234", "1.00", "0.60", "2m00s"):
        assert cell in row
    assert sublet("status").out == sublet("queue").out == answer.out
    assert sublet("ps", "-o", "json").json["jobs"][0]["progress"] == 0.4


def test_ps_of_all_says_how_many_jobs_are_on_the_shelf_and_how_to_see_them(there, sublet, job):
    there.api.earlier = 199
    assert "on the shelf" not in sublet("ps").out
    told = sublet("ps", "--all").out
    assert "199 earlier jobs are on the shelf in log.sqlite; 'sublet cost' sums them up" in told
    there.api.earlier = 0
    assert "on the shelf" not in sublet("ps", "--all").out


def test_ps_without_jobs_says_what_to_do(there, sublet):
    assert "sublet submit" in sublet("ps").out


def test_logs_are_shown_without_secrets_and_end_with_the_code_of_the_job(there, sublet, job, tmp_path):
    (tmp_path / f"{job}-0.log").write_text("token hush-hush\nloss 1\n")
    (tmp_path / f"{job}-1.log").write_text("I am rank 1\n")
    assert sublet("logs", "gpt").out == "token ***\nloss 1\n"
    assert sublet("logs", "gpt", "--tail", 1).out == "loss 1\n"
    assert sublet("logs", "gpt", "--rank", 1).out == "I am rank 1\n"
    assert sublet("logs", "gpt", "--rank", 2).err == "rank 2 has printed nothing\n"
    for phase, code in (("finished", 0), ("failed", 100), ("cancelled", 103), ("out-of-budget", 110), ("paused", 101)):
        there.api.change(job, phase=phase)
        assert sublet("logs", "gpt", "-f").code == code


def test_cancel_pause_resume_and_scale_reach_the_job(there, sublet, job):
    assert "is paused" in sublet("pause", "gpt").out
    assert there.api.rows[job]["phase"] == "paused"
    assert "is queued" in sublet("resume", job).out
    refused = sublet("resume", job)
    assert (refused.code, refused.err.splitlines()[0]) == (1, f"error: job {job} is queued: it cannot resume")
    assert "2..3 workers" in sublet("scale", job, "--workers", "2..3").out
    assert there.api.specs[job].max_workers == 3
    assert sublet("scale", job, "--workers", "0").code == 2
    assert "is cancelled" in sublet("cancel", "gp", "--now").out
    assert there.api.rows[job]["reason"] == "now"


@pytest.mark.parametrize("verb", ["logs", "cancel", "pause", "resume", "explain", "cost", "events"])
def test_a_job_that_is_not_there_ends_with_102(there, sublet, job, verb):
    answer = sublet(verb, "gtp")
    assert answer.code == 102
    assert answer.err == "error: no job is called 'gtp'; did you mean gpt?\n  next: sublet ps\n"
    assert sublet(verb, "../../v1/shutdown").code == 102
    assert not there.api.stopping


def test_events_tell_the_story_of_a_job(there, sublet, job):
    sublet("submit", "-f", there.api.folder / "job.yaml")
    sublet("cancel", job)
    assert len(sublet("events", "-o", "json").json["events"]) == 3
    told = sublet("events", job)
    assert "cancelled by the user" in told.out
    assert told.out.count(job) == 2
    assert len(sublet("events", "--after", 2, "--json").json["events"]) == 1
    assert [event["seq"] for event in sublet("events", "-n", 1, "--json").json["events"]] == [3]


def test_more_events_than_a_page_are_all_there(there, sublet):
    for number in range(2345):
        there.api.tell("Note", "", f"number {number}")
    found = sublet("events", "--json").json["events"]
    assert [event["seq"] for event in found] == list(range(1, 2346))


def test_cost_is_a_bill_that_adds_up(there, sublet, job):
    answer = sublet("cost")
    assert answer.code == 0, answer.err
    rows = {line.split("  ")[0].strip(): line.split() for line in answer.out.splitlines()}
    assert rows["gpt"][1:8] == ["0.6000", "0.0000", "0.0000", "0.1000", "0.2000", "0.1000", "1.0000"]
    assert rows["no job"][2:9] == ["0.0000", "0.0000", "0.0000", "0.0000", "0.5000", "0.0000", "0.5000"]
    assert rows["all"][7] == "1.5000"
    assert "0 steps lost" in answer.out
    one = sublet("cost", "gpt")
    assert "on demand it would have been USD 2.50 (60% saved)" in one.out
    assert sublet("cost", "gpt", "-o", "json").json["usd_total"] == 1.0


def test_a_report_holds_the_bill_the_timeline_and_the_history(there, sublet, job, tmp_path):
    sublet("cancel", job)
    answer = sublet("cost", "--report", tmp_path / "report")
    assert answer.code == 0, answer.err
    page = (tmp_path / "report" / "report.html").read_text()
    for text in ("gpt", "cancelled by the user", "data:image/png;base64", "on-demand", "60 of its seconds"):
        assert text in page
    assert "hush" not in page
    assert refused(page) == []
    history = tmp_path / "report" / "history.json"
    assert len(json.loads(history.read_text())["events"]) == 2
    told = sublet("replay", history)
    assert "cancelled by the user" in told.out
    assert told.out.endswith("2 events over 60.0 s, told\n")
    assert sublet("replay").out == told.out  # the controller itself
    assert sublet("replay", history, "--json").json["events"] == 2


def test_explain_shows_what_was_weighed(there, sublet, job):
    answer = sublet("explain", "gpt")
    assert answer.code == 0, answer.err
    for text in ("2 x cpu-spot", "a third worker", "USD 1.50", "cpu-spot is scarce", "slower"):
        assert text in answer.out
    assert [line[:14] for line in answer.out.splitlines() if line.startswith("> ")] == ["> 2 x cpu-spot"]
    assert sublet("explain", "gpt", "--json").json["policy"] == "price"


def test_the_budget_can_be_seen_set_and_topped_up(there, sublet):
    shown = sublet("budget", "show")
    for text in ("USD 2.00/h", "USD 5.00", "USD 3.90"):
        assert text in shown.out
    assert "USD 3.50/h" in sublet("budget", "set", "--burn", "3.5/h").out
    assert "USD 7.50" in sublet("budget", "top-up", "2.5").out
    assert sublet("budget", "show", "-o", "json").json["purse_usd"] == 7.5
    for wrong in (("set",), ("set", "--burn", "x"), ("top-up", "-5"), ("top-up", "0"), ("nosuch",)):
        assert sublet("budget", *wrong).code == 2
    assert there.api.purse == 7.5


def test_the_purse_of_one_job_can_be_topped_up(there, sublet, job):
    there.api.change(job, purse_usd=2.0)
    answer = sublet("budget", "top-up", "--job", "gpt", "3")
    assert (answer.code, there.api.rows[job]["purse_usd"], there.api.purse) == (0, 5.0, 5.0)
    assert "may spend USD 5.00, USD 1.00 of it is spent" in answer.out
    assert sublet("budget", "top-up", "--job", job, "1", "--json").json["purse_usd"] == 6.0
    assert sublet("budget", "top-up", "--job", "nobody", "1").code == 102


@pytest.mark.parametrize("code", [110, 111, 112])
def test_what_can_never_run_ends_submit_with_the_code_of_its_limit(there, sublet, job_file, code):
    async def refuse(spec, *, key="", by=""):
        limit = {"binding": "a limit", "needed": 9, "available": 4, "hint": "ask for 1..4"}
        raise Infeasible(f"{spec.name} cannot run", **limit, exit_code=code)

    there.api.submit = there.api.dry_run = refuse
    for arguments in ((), ("--dry-run",)):
        answer = sublet("submit", job_file, *arguments)
        assert answer.code == code
        assert answer.err == "error: gpt cannot run: a limit is 4, 9 is needed\n  next: ask for 1..4\n"


def test_an_empty_purse_ends_with_110(there, sublet, job_file):
    there.api.spent = 5.0
    answer = sublet("submit", job_file)
    assert answer.code == 110
    assert answer.err.endswith("next: sublet budget top-up USD\n")
    assert "nothing more is rented" in sublet("budget", "show").out


@pytest.mark.parametrize("verb", [("ps",), ("logs", "x"), ("budget", "show"), ("events",), ("cost",), ("replay",)])
def test_without_a_controller_the_code_is_75(sublet, tmp_path, monkeypatch, verb):
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path))
    answer = sublet(*verb)
    assert (answer.code, answer.out) == (75, "")
    assert answer.err.endswith("next: sublet up\n")


def test_schema_is_json_that_an_editor_reads(sublet):
    assert sublet("schema").json["properties"]["elastic"]


def test_a_journal_is_lived_again_order_by_order(sublet, jobs_csv, tmp_path):
    log = tmp_path / "log.jsonl"
    assert sublet("simulate", jobs_csv, "--gpus", 4, "--log", log, "--quiet").code == 0
    answer = sublet("replay", log)
    assert answer.code == 0, answer.err
    assert "JobSubmitted j0" in answer.out
    assert "StartJob j0 on 1 x" in answer.out
    events = len(log.read_text().splitlines()) - 1
    last = answer.out.splitlines()[-1]
    assert last.startswith(f"{events} events over ")
    assert last.endswith("orders as recorded")
    of_one = sublet("replay", log, "--job", "j1").out.splitlines()[:-1]
    assert of_one
    assert all("j1" in line for line in of_one)
    told = sublet("replay", log, "--json").json
    assert (told["events"], told["verified"], told["source"]) == (events, True, str(log))
    assert told["span_s"] >= 1800 + 3600  # the last job comes after half an hour and takes one
    lines = log.read_text().splitlines()
    (tmp_path / "state").mkdir()
    store = Store(tmp_path / "state" / "log.sqlite")
    store.put("header", lines[0])
    for line in lines[1:]:
        store.append(json.loads(line)["event"]["at_s"], line)
    store.close()
    assert sublet("replay", tmp_path / "state").out == answer.out  # a controller's own record of the same life
    changed = next(number for number, line in enumerate(lines) if '"StartJob"' in line)
    lines[changed] = lines[changed].replace('"StartJob"', '"StopJob"')
    log.write_text("\n".join(lines))
    assert sublet("replay", log).code == 1
    for wrong in ("", "nonsense", '{"a": 1}', '{"events": [{"seq": 1}]}', '{"journal": 1}'):
        log.write_text(wrong)
        assert sublet("replay", log).code == 2
    assert sublet("replay", tmp_path / "none").code == 2


# ---------------------------------------------------------------------- a process of its own


@pytest.fixture
def own_process(tmp_path, monkeypatch):
    """`sublet up` starts this instead of the controller; what is left is ended."""
    script = tmp_path / "controller.py"
    script.write_text(API)
    monkeypatch.setattr(controller_process, "COMMAND", (sys.executable, str(script)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    state = StateDir(tmp_path / "state")
    yield state
    if state.address_file.exists():
        os.kill(state.address().pid, signal.SIGKILL)


def test_up_starts_one_controller_and_down_stops_it(own_process, sublet):
    answer = sublet("up", "--budget", "3/h", "--purse", 5)
    assert answer.code == 0, answer.err
    address = own_process.address()
    assert f"controller at {address}, at most USD 3/h, USD 5 in all" in answer.out
    assert sublet("budget", "show", "--json").json["burn_limit_usd_per_h"] == 3.0
    again = sublet("up")
    assert again.code == 2
    assert f"a controller runs at {address} already (process {address.pid})" in again.err
    assert sublet("down").out.startswith("stopped; nothing is rented")
    _until(lambda: _is_gone(address.pid))
    assert sublet("ps").code == 75
    assert sublet("down").out.startswith("no controller runs")


def test_a_term_signal_is_a_shutdown_and_a_kill_leaves_no_lock(own_process, sublet):
    for number in (signal.SIGTERM, signal.SIGKILL):
        assert sublet("up").code == 0
        pid = own_process.address().pid
        os.kill(pid, number)
        _until(lambda pid=pid: _is_gone(pid))
        assert own_process.address_file.exists() == (number == signal.SIGKILL)
    assert sublet("ps").code == 75
    assert sublet("up").code == 0
    assert sublet("down").code == 0


def test_a_controller_that_is_stopped_is_told_from_one_that_is_gone_and_can_go_on(own_process, sublet, monkeypatch):
    """Nobody waits without an end, nobody is told to start another, and what it listens at is not forgotten."""
    monkeypatch.setattr(client, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(controller_process, "HEALTH_S", 0.3)
    assert sublet("up").code == 0
    address = own_process.address()
    os.kill(address.pid, signal.SIGSTOP)
    try:
        for verb in (["ps"], ["budget", "show"], ["events"], ["cancel", "j"], ["logs", "j", "--follow"]):
            answer = sublet(*verb)
            assert answer.code == 75, verb
            assert f"its process {address.pid} is stopped" in answer.err, verb
            assert f"next: kill -CONT {address.pid}" in answer.err, verb
        own_process.lock.unlink()  # as on a disk without locks
        controller_process.refuse_second(own_process)
        assert own_process.address() == address
    finally:
        os.kill(address.pid, signal.SIGCONT)
    monkeypatch.setattr(controller_process, "HEALTH_S", 10.0)
    again = sublet("up")
    assert again.code == 2
    assert f"a controller runs at {address} already" in again.err
    assert own_process.address() == address


def test_what_keeps_a_controller_from_starting_is_told(own_process, sublet):
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        answer = sublet("up", "--port", port)
        assert answer.code == 2
        assert f"port {port}: another program uses it" in answer.err
        assert "--port" in answer.err
    answer = sublet("up", "--seed", 13)
    assert answer.code == 1
    assert "internal error: ValueError: no luck" in answer.err
    assert "controller.log" in answer.err
    for wrong in (
        ("--policy", "prise"), ("--budget", "much"), ("--speedup", "0"), ("--purse", "-1"), ("--port", "70000"),
        ("--no-budget", "--purse", "5"), ("--boot-s", "-1"),
    ):  # fmt: skip
        assert sublet("up", *wrong).code == 2
    assert not own_process.address_file.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_named(sublet, tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    assert sublet("up").code == 2


def test_a_state_directory_that_is_a_file_is_named(sublet, tmp_path, monkeypatch):
    (tmp_path / "state").write_text("")
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    answer = sublet("up")
    assert answer.code == 2
    assert "SUBLET_STATE" in answer.err


def test_in_the_foreground_an_interrupt_stops_everything(own_process, tmp_path):
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from sublet.cli.work import controller_process as it; from sublet.cli.main import run;"
        f"it.COMMAND = {(sys.executable, str(tmp_path / 'controller.py'))!r}; sys.exit(run(['up', '--foreground']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    _until(own_process.address_file.exists)
    assert own_process.address().pid == process.pid
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert not own_process.address_file.exists()


def _until(condition):
    end_s = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.05)


def _is_gone(pid):
    """Ended, and perhaps not waited for yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - one line of the kernel's
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
