"""Scenarios 7, 9 to 13, 21, 22, 24 and 25: nodes, workers and controllers are taken from real jobs on this machine."""

from __future__ import annotations

import os
import signal
import time

import pytest

from sublet.runtime.jobs.spec import Retries
from tests.chaos.rig import rig
from tests.rigs.struck_cloud import Struck
from tests.scenarios.stage import Stage, waited_s

SPEEDUP = 10.0
NOTICE_S = 12.0  # of every notice, on the wall: a busy machine needs seconds
pytestmark = pytest.mark.timeout(300)


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class StruckStage(Stage, Struck):
    """Nodes are announced and taken when a test says so."""


def notices(full, notice_s, measured):
    """Nodes of a job of three workers are announced and taken, one after the other; what each cost."""
    times, speedup, seen_s = 8 if full else 2, notice_s / NOTICE_S, []
    with rig(StruckStage, speedup=speedup, notice_s=notice_s, most_nodes=4) as stage:
        stage.start()
        job_id = stage.talk(steps=100_000, step_ms=50.0, max_workers=3, market="spot")
        doomed = []
        for _ in range(times):
            doomed.append(stage.until_width(job_id, 3)["node_ids"][0])
            stage.strike(f"notice:{doomed[-1]}")
            seen_s.append(waited_s(stage, lambda: doomed[-1] in _noticed(stage), "it is announced"))
            stage.until(lambda: doomed[-1] in _gone(stage), "they have left, and it is given back")
        stage.until_width(job_id, 3)
        view, told, gone, noticed = stage.job(job_id), stage.told(), _gone(stage), _noticed(stage)
        again = [event for event in told if event["kind"] in ("JobResized", "JobStarted")]
        assert view["steps_lost"] == 0, [(row["at_s"], row["kind"], row["node_id"], row["text"]) for row in told]
        assert sorted(noticed) == sorted(doomed)
        back_s = []
        for node_id, at_s in noticed.items():
            later_s = min(event["at_s"] for event in again if event["at_s"] > at_s)
            assert later_s <= gone[node_id], "they had not left when the node went"
            back_s.append((later_s - at_s) / speedup)
        stage.post(f"jobs/{job_id}/cancel")
        stage.until_ended(job_id)
        stage.down()
        stage.audit()
    measured(
        f"{times} notices of {notice_s:g} s: seen after {quantile(seen_s, 0.99):.2f} s at most, "
        f"survivors on after {quantile(back_s, 0.95):.2f} s, 0 steps lost"
    )


@pytest.mark.scenario(
    9, "spot notice of 120 s, one of several nodes", "L", heavy=True, lacks="a checkpoint before the end; no GPU (G)"
)
def test_09_a_notice_of_120_s_loses_no_step(full, measured):
    notices(full, 120.0, measured)


@pytest.mark.scenario(
    10,
    "spot notice of 30 s",
    "L",
    heavy=True,
    lacks="no run on a GPU (level G); a save that is left out where it would take too long: a unit test alone",
)
def test_10_a_notice_of_30_s_loses_no_step(full, measured):
    notices(full, 30.0, measured)


@pytest.mark.scenario(
    11,
    "a node dies without notice",
    "L",
    heavy=True,
    lacks="no run on a GPU (level G); an interval and a step: a second more is allowed",
)
def test_11_a_node_that_dies_without_a_word_costs_at_most_a_checkpoint_interval(full, measured):
    """One of three, whose survivors have the state, some times; then all at once: only the checkpoint is left.

    Two at a time, each pair with a controller of its own: a third loss within minutes is capacity that flaps, onto
    which nobody grows for a window; that is scenario 20.
    """
    pairs, rounds = (4, 2) if full else (1, 1)
    every_s, step_ms = 2.0, 20.0
    most = (every_s + 1.0) / (step_ms / 1e3) + 1
    found = [losses(rounds, every_s, step_ms) for _ in range(pairs)]
    seen_s, back_s = ([s for each in found for s in each[name]] for name in ("seen_s", "back_s"))
    lost = [each["steps_lost"] for each in found]
    assert max(lost) <= most, lost
    measured(
        f"{pairs * rounds} times one of three, {pairs} times all, by SIGKILL of their agents: known after "
        f"{max(seen_s):.2f} s, training again after {quantile(back_s, 0.95):.2f} s; {max(lost)} steps lost at most, of "
        f"{most:.0f} (a checkpoint each {every_s:g} s)"
    )


def losses(rounds, every_s, step_ms):
    """So many times one node of three, then all; what it took from the kill to know it, and to train again."""
    with rig(Stage, speedup=SPEEDUP, most_nodes=3) as stage:
        stage.start()
        facts = {"max_workers": 3, "market": "spot", "checkpoint_every_s": every_s * SPEEDUP}
        job_id = stage.talk(steps=100_000, step_ms=step_ms, **facts)
        seen_s, back_s, before = [], [], {}
        for number in range(rounds + 1):
            stage.until_width(job_id, 3)
            stage.until(lambda: stage.saved_step(job_id) > 0, "it has saved")
            before = stage.job(job_id)
            assert before["steps_lost"] <= number, "survivors had the state: at most the step under way is made again"
            took = killed(stage, job_id, 1 if number < rounds else 3)
            seen_s.append(took[0])
            back_s.append(took[1])
        after = stage.until_width(job_id, 3)
        stage.post(f"jobs/{job_id}/cancel")
        stage.until_ended(job_id)
        stage.down()
        stage.audit()
    return {"seen_s": seen_s, "back_s": back_s, "steps_lost": after["steps_lost"] - before["steps_lost"]}


def killed(stage, job_id, nodes):
    """SIGKILL to so many agents, by pid; seconds until all are told as lost, and until the job trains again."""
    known, resumed = len(_of(stage, "NodeLost")), len(_of(stage, "JobResized", "JobStarted"))
    began_s = time.monotonic()
    for pid in stage.agents()[:nodes]:
        stage.signal(pid, signal.SIGKILL)
    stage.until(lambda: len(_of(stage, "NodeLost")) >= known + nodes, "they are known as lost")
    seen_s = time.monotonic() - began_s
    stage.until(lambda: len(_of(stage, "JobResized", "JobStarted")) > resumed, "it is told to go on")
    step = stage.job(job_id).get("step", 0)
    stage.until(lambda: stage.job(job_id).get("step", 0) > step, "it trains again")
    return seen_s, time.monotonic() - began_s


def _of(stage, *kinds):
    return [event for event in stage.told() if event["kind"] in kinds]


def _noticed(stage):
    """When the end of each node was announced."""
    return {event["node_id"]: event["at_s"] for event in _of(stage, "NodeNoticed")}


def _gone(stage):
    """When each node went, or was given back."""
    told = _of(stage, "NodeLost", "NodeReleased", "ReleaseNode")
    return {event["node_id"]: event["at_s"] for event in reversed(told)}  # the first word of each counts


@pytest.mark.scenario(12, "all nodes at once", "L", heavy=True)
def test_12_a_sweep_of_all_nodes_resumes_from_the_checkpoint_without_a_crash_loop(measured):
    with rig(StruckStage, speedup=SPEEDUP, most_nodes=3) as stage:
        stage.start()
        job_id = stage.talk(steps=500, step_ms=20.0, max_workers=3, market="spot", checkpoint_every_s=1.0 * SPEEDUP)
        nodes = stage.until_width(job_id, 3)["node_ids"]
        stage.until(lambda: stage.saved_step(job_id) > 0, "it has saved")
        stage.strike(f"kill:{','.join(nodes)}")
        stage.until(lambda: len(_of(stage, "NodeLost")) == 3, "all are taken")
        saved = stage.saved_step(job_id)
        back_s = waited_s(stage, lambda: stage.job(job_id).get("phase") == "running", "it trains again")
        resumed = stage.job(job_id)
        (view,) = stage.until_ended(job_id)
        rents = [event for event in stage.told() if event["kind"] == "RentNode"]
        stage.down()
        audit = stage.audit()
    assert view["phase"] == "finished"
    assert view["step"] == 500
    assert resumed["step"] >= saved, "it went back behind what was committed"
    assert audit["nodes"] == len(rents) <= 3 + 2 * 3, "a crash loop rents again and again"
    measured(f"resumed from step {saved}, {back_s:.2f} s after the sweep; {len(rents)} rents in all")


@pytest.mark.scenario(13, "a notice, then the node stays; a second notice during recovery", "L", heavy=True)
def test_13_a_second_notice_during_the_recovery_of_the_first_shrinks_once_each(measured):
    """Two nodes of four are announced, one right after the other."""
    with rig(StruckStage, speedup=60.0 / NOTICE_S, most_nodes=4, notice_s=60.0) as stage:
        stage.start()
        job_id = stage.talk(steps=900, step_ms=20.0, max_workers=4, market="spot")
        for node_id in stage.until_width(job_id, 4)["node_ids"][:2]:
            stage.strike(f"notice:{node_id}")
            stage.until(lambda node_id=node_id: node_id in _noticed(stage), "it is announced")
        (view,) = stage.until_ended(job_id)
        told = stage.told()
        stage.down()
        audit = stage.audit()
    noticed = [event["node_id"] for event in told if event["kind"] == "NodeNoticed"]
    lost = [event["node_id"] for event in told if event["kind"] == "NodeLost"]
    assert view["phase"] == "finished"
    assert (view["step"], view["steps_lost"]) == (900, 0)
    assert len(noticed) == len(set(noticed)) == 2, "a notice is one notice"
    assert len(lost) == len(set(lost))
    assert set(lost) <= set(noticed), "nobody was taken who was not announced"
    assert view["preemptions_noticed"] == 2
    measured(f"2 notices, one right after the other: {view['resizes']} resizes, {audit['nodes']} nodes, 0 steps lost")


@pytest.mark.scenario(
    7,
    "the controller is gone for ever",
    "L",
    lacks="on a real cloud: an instance that shuts itself down; what is spent after the death is not asserted",
)
def test_07_without_a_controller_jobs_train_on_until_the_lease_is_over_and_then_everything_ends(measured):
    lease_s = 15.0  # a busy machine may hold a node up for seconds: that is no reason to end either
    with rig(Stage, speedup=SPEEDUP, lease_s=lease_s, most_nodes=2) as stage:
        stage.start()
        job_id = stage.talk(steps=10_000, step_ms=20.0, max_workers=2, market="spot", checkpoint_every_s=1.0 * SPEEDUP)
        stage.until_width(job_id, 2)
        stage.until(lambda: stage.saved_step(job_id) > 0, "it has saved")
        stage.kill()
        at_death, died_s = stage.saved_step(job_id), time.monotonic()
        trained_on = waited_s(stage, lambda: stage.saved_step(job_id) > at_death, "it trains on and saves")
        assert len(stage.workers()) == 2, "no controller is no reason to stop within the lease"
        stage.until(lambda: not stage.agents(), "every node has ended itself")
        gone_s = time.monotonic() - died_s
        stage.until(lambda: not stage.workers(), "no worker is left")
        last = stage.saved_step(job_id)
        time.sleep(0.5)
        assert stage.saved_step(job_id) == last, "somebody still trains"
    measured(
        f"lease {lease_s:g} s: all nodes ended {gone_s:.2f} s after the death; saved at step {at_death} before and at "
        f"{last} after it ({trained_on:.2f} s)"
    )


@pytest.mark.scenario(21, "a rank hangs while its process lives", "L", heavy=True, lacks="a stalled NCCL: no GPU here")
def test_21_a_worker_that_hangs_is_found_ended_and_the_job_goes_on_with_its_dollars_shown(measured, monkeypatch):
    silent_s = 3.0  # a minute outside of tests
    monkeypatch.setenv("CHAOS_SILENT_S", str(silent_s))
    with rig(Stage, speedup=SPEEDUP, most_nodes=2) as stage:
        stage.start()
        job_id = stage.talk(steps=400, step_ms=20.0, max_workers=2, market="spot", checkpoint_every_s=1.0 * SPEEDUP)
        stage.until_width(job_id, 2)
        stage.until(lambda: stage.saved_step(job_id) > 0, "it has saved")
        (hung, *_) = stage.workers()
        os.kill(hung, signal.SIGSTOP)
        found_s = waited_s(stage, lambda: hung not in stage.workers(), "the one that hangs is ended")
        (view,) = stage.until_ended(job_id)
        said = [event["text"] for event in stage.told() if "hang" in event["text"]]
        stage.down()
        stage.audit()
    assert view["phase"] == "finished"
    assert view["step"] == 400
    assert said, "nobody was told"
    assert view["failures_infra"] >= 1
    assert view["usd_restart"] > 0, "what the hang cost stands in the bill"
    measured(
        f"ended after {found_s:.2f} s (limit {silent_s:g} s here, 60 s by default); "
        f"restarts cost USD {view['usd_restart']:.5f}"
    )


@pytest.mark.scenario(
    24, "a user's bug: exit 1 at step 0", "L", lacks="a bound for one attempt: the four of two jobs have one together"
)
def test_24_a_script_that_fails_at_once_is_tried_as_often_as_its_owner_says_and_no_more(measured):
    with rig(Stage, speedup=SPEEDUP, most_nodes=2) as stage:
        stage.start()
        once = stage.count(steps=0, ends_with=1, name="once", retries=Retries(user=0))
        thrice = stage.count(steps=0, ends_with=1, name="thrice", retries=Retries(user=2))
        ended = stage.until_ended(once, thrice)
        time.sleep(2.0)  # whoever loops would start again
        ended = [stage.job(once), stage.job(thrice)]
        starts = [e for e in stage.told(job=thrice) if e["kind"] in ("JobStarted", "StartJob")]
        stage.until(lambda: not stage.agents(), "what they had is given back")
        stage.down()
        audit = stage.audit()
    assert [view["phase"] for view in ended] == ["failed", "failed"]
    assert [view["failures_user"] for view in ended] == [1, 3]
    assert [view["exit_code"] for view in ended] == [1, 1]
    assert not stage.workers()
    measured(f"1 and 3 attempts, then failed; USD {audit['spent'].usd:.4f} for both ({len(starts)} rows of starts)")


@pytest.mark.scenario(
    22,
    "a straggler at three times the step time",
    "L",
    heavy=True,
    lacks="G: no GPU; where it stays: a unit test alone",
)
def test_22_a_worker_that_keeps_the_others_waiting_is_told_of_and_its_node_replaced_where_that_is_cheaper(measured):
    with rig(Stage, speedup=SPEEDUP, most_nodes=4) as stage:
        stage.start()
        job_id = stage.talk(steps=50_000, step_ms=50.0, min_workers=3, max_workers=3, market="spot")
        stage.until_width(job_id, 3)
        slow = stage.job(job_id)["node_ids"][-1]
        began_s = time.monotonic()
        (stage.state.path / "jobs" / job_id / "checkpoints" / "slow").write_text(slow, encoding="ascii")

        def warned():
            return [text for text in stage.job(job_id).get("warnings", []) if slow in text]

        stage.until(warned, "nobody was told")
        told_s = time.monotonic() - began_s
        (text,) = warned()
        alarms = [row for row in stage.told() if row["kind"] == "Alarm" and row["node_id"] == slow]
        assert alarms, "it is not in the history"
        assert "another node saves" in text
        stage.until(lambda: slow not in (stage.job(job_id) or {"node_ids": [slow]})["node_ids"], "it is replaced")
        view = stage.until_width(job_id, 3)
        assert view["steps_lost"] == 0
        stage.post(f"jobs/{job_id}/cancel")
        stage.until_ended(job_id)
        stage.down()
        stage.audit()
    measured(f"told after {told_s:.1f} s: {text.split('; ')[-1]}; replaced, 0 steps lost")


@pytest.mark.scenario(25, "a budget reaches its cap in the middle of a step", "L", lacks="C")
def test_25_a_purse_that_is_spent_stops_real_training_with_its_checkpoint_and_more_of_it_lets_it_go_on(measured):
    purse_usd, more_usd = 0.4, 0.4
    with rig(Stage, speedup=60.0, most_nodes=1, purse_usd=purse_usd, lease_s=20.0) as stage:  # of which it pays a lease
        stage.start()
        job_id = stage.talk(steps=100_000, step_ms=20.0, max_workers=1, market="on-demand")
        stage.until(lambda: stage.job(job_id).get("phase") == "out-of-budget", "the budget stops it")
        stopped, saved = stage.job(job_id), stage.saved_step(job_id)
        assert saved == stopped["step"] > 0, "it cannot go on from where it stopped"
        stage.until(lambda: not stage.agents(), "what it had is given back")

        def settled():
            spent_usd = stage.ask("budget")["spent_usd"]
            time.sleep(1.0)
            return stage.ask("budget")["spent_usd"] == spent_usd

        stage.until(settled, "nothing more is paid for")  # the release is billed after the last process has gone
        spent_usd = stage.ask("budget")["spent_usd"]
        assert 0.0 < spent_usd <= purse_usd
        stage.post("budget/top-up", {"usd": more_usd})
        stage.until(lambda: stage.job(job_id).get("step", 0) > saved + 50, "it goes on")
        again = stage.job(job_id)
        stage.post(f"jobs/{job_id}/cancel")
        stage.until_ended(job_id)
        stage.down()
        audit = stage.audit()
    assert again["steps_lost"] == 0
    assert audit["spent"].usd <= purse_usd + more_usd
    measured(
        f"USD {spent_usd:.4f} of {purse_usd} spent, then stopped at step {saved}, resumable; 0 steps lost after it"
    )
