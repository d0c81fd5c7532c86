"""Real controllers, agents and workers under kill -9; `python -m tests.chaos.episodes` does it in full."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import pytest

from sublet.api.state import StateDir
from sublet.runtime.jobs.spec import Retries
from sublet.runtime.store import Store
from sublet.train.checkpoint.checkpoints import newest
from tests.chaos import episodes
from tests.chaos.rig import JOB, rig
from tests.rigs.moto_bucket import a_bucket, environment, newest_in

NO_ROOM = """import resource, signal
from sublet.train.checkpoint import saving
saving.LAST_PAUSES_S = (0.1,)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # no checkpoint is so small
"""
pytestmark = pytest.mark.timeout(200)


def test_a_job_makes_every_step_though_its_workers_are_killed():
    found = episodes.kill_workers(3, seed=1)
    assert found["kills"] == 3


def test_controllers_may_die_one_after_the_other_and_at_last_everything():
    """At a commit, at a call of the provider, while a job starts; then the whole machine. Its core stays on demand."""
    with rig(mix_markets=True) as world:
        world.points = ["after:rent", "before-commit:JobStarted"]
        world.start("after-commit:JobSubmitted")
        job_id = world.submit(steps=250, step_ms=10, key="job", min_on_demand=1)
        assert world.submit(steps=250, step_ms=10, key="job", min_on_demand=1) == job_id
        world.until(lambda: world.revive_if_dead() or world.job(job_id).get("checkpoint_step"), "it has saved")
        assert world.deaths == 3
        world.kill_everything()
        (job,) = world.until_ended(job_id)
        assert (job["phase"], job["step"]) == ("finished", 250), job["error"]
        assert job["steps_lost"] <= 150  # a checkpoint a second
        assert len((world.ask("jobs") or {})["jobs"]) == 1
        world.down()
        assert world.audit()["nodes"] >= 2
        assert all(1 <= sure < workers for sure, workers in _on_demand(world.state.path / "log.sqlite"))


def _on_demand(path):
    """Of every order into a shape: workers on demand, and all."""
    store, market, found = Store(path), {}, []
    for order in (order for line in store.lines() for order in json.loads(line)["actions"]):
        if order["type"] == "RentNode":
            market[order["node_id"]] = order["offer_id"]
        elif order["type"] in ("StartJob", "ResizeJob"):
            markets = [market[node_id] for node_id, _ in order["placement"]]
            found.append((markets.count("local:on-demand"), len(markets)))
    store.close()
    assert found
    return found


def test_errors_of_users_are_told_and_paid_for_once(tmp_path, monkeypatch):
    """Exit code 1 at step 0, a script that is not there, one that ends early, one that hangs, no room to save.

    The one that hangs keeps its checkpoints in a bucket: killed, it goes on from there, to the bit as if it never had.
    """
    monkeypatch.setenv("CHAOS_SILENT_S", "3")
    broken, early, full = (tmp_path / f"{name}.py" for name in ("broken", "early", "full"))
    full.write_text(f"{NO_ROOM}import runpy\nrunpy.run_path({str(JOB)!r})\n", encoding="utf-8")
    broken.write_text("print('about to fail')\nraise SystemExit('no data here')\n", encoding="utf-8")
    early.write_text("print('nothing to do')\n", encoding="utf-8")
    python, uri = sys.executable, a_bucket("hangs")
    with rig(most_nodes=3) as world:
        world.start()
        hangs = world.submit(
            name="hangs", steps=300, step_ms=10, max_workers=1, checkpoint_dir=uri, secrets=environment()
        )
        fails = world.submit(name="fails", argv=(python, str(broken)), max_workers=2, retries=Retries(user=3))
        missing = world.submit(name="missing", argv=(python, str(tmp_path / "nowhere.py")), max_workers=1)
        ends = world.submit(name="early", argv=(python, str(early)), max_workers=1)
        cramped = world.submit(name="full", argv=(python, str(full), "3200", "1", "10"), max_workers=1)
        world.until(lambda: world.job(hangs).get("checkpoint_step"), "it has saved")
        (stopped,) = [pid for pid in world.workers() if b"chaos_job" in _command(pid)] or world.workers()[:1]
        os.kill(stopped, signal.SIGSTOP)
        views = dict(zip("fmehc", world.until_ended(fails, missing, ends, hangs, cramped), strict=True))
        failed = views["f"]
        assert (failed["phase"], failed["exit_code"], failed["failures_user"]) == ("failed", 1, 1)
        assert "no data here" in failed["error"]
        assert (views["m"]["phase"], views["m"]["failures_user"]) == ("failed", 1)
        assert "nowhere.py" in views["m"]["error"]
        assert (views["e"]["phase"], views["e"]["exit_code"]) == ("failed", 0)
        assert "session" in views["e"]["error"]
        assert (views["h"]["phase"], views["h"]["step"]) == ("finished", 300)
        assert views["h"]["failures_infra"] >= 1
        cramped_end = views["c"]["phase"], views["c"]["exit_code"], views["c"]["checkpoint_step"]
        assert cramped_end == ("failed", 1, None), views["c"]["error"]  # what its steps came to is nowhere
        assert "no checkpoint was written" in views["c"]["error"]
        said = [event["text"] for event in (world.ask("events", job=hangs) or {})["events"]]
        assert any("it hangs" in text for text in said), said
        assert not any("began at step 0" in text for text in said), said
        world.down()
        world.audit()

    resumed, whole = newest_in(uri), _uninterrupted(tmp_path / "whole", monkeypatch)
    assert (resumed.step, whole.step) == (300, 300)
    assert all(resumed.state["model"][name].equal(tensor) for name, tensor in whole.state["model"].items())
    assert resumed.state["progress"] == whole.state["progress"]


def _uninterrupted(folder, monkeypatch):
    """The same training here, in a directory and without a controller."""
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(folder))
    monkeypatch.setattr(sys, "argv", [str(JOB), str(32 * 300), "1", "0"])
    runpy.run_path(str(JOB), run_name="__main__")
    return newest(folder)


def _command(pid):
    return Path(f"/proc/{pid}/comm").read_bytes()


def test_a_purse_survives_a_kill_and_a_plain_up(sublet, tmp_path, monkeypatch):
    """As it was topped up, not as it was started; and a start with another limit is no refusal."""
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    state = StateDir(tmp_path / "state")
    try:
        assert sublet("up", "--purse", "0.5", "--speedup", "60").code == 0
        assert sublet("budget", "top-up", "0.25").code == 0
        os.kill(state.address().pid, signal.SIGKILL)
        while state.in_use:  # the lock goes with the last of its threads
            time.sleep(0.01)
        answer = sublet("up", "--nodes", "2")
        assert answer.code == 0, answer.err
        assert "nodes: no limit -> 2" in answer.out
        assert "USD 0.75 in all" in answer.out
        assert sublet("budget", "show", "--json").json["purse_usd"] == 0.75
        assert sublet("down").code == 0
    finally:
        if state.address_file.exists():
            os.kill(state.address().pid, signal.SIGKILL)
