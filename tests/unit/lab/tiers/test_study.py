"""The study of tiers: its parts on a few bytes, and the claims that need no machine."""

from __future__ import annotations

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from sublet import plugins
from sublet.advise.checkpointing import Checkpoints, Fleets, outages
from sublet.runtime.controller.files.checkpoints import Pulling
from sublet_lab.studies.study import Study
from sublet_lab.tiers import arms, slowdown
from sublet_lab.tiers.arms import Arm, expected_s, interval_s, rents
from sublet_lab.tiers.carried import measure_carried
from sublet_lab.tiers.deepvm import HAZARDS_PER_H, STATES_GB, modelled
from sublet_lab.tiers.peers import Peers
from sublet_lab.tiers.places import Took, state_of
from sublet_lab.tiers.slowdown import FEWEST, measure_slowdown, median_interval
from sublet_lab.tiers.study import foretold, typical
from sublet_lab.tiers.worker import main


def test_the_study_is_listed():
    assert isinstance(plugins.load("sublet.studies", "tiers"), Study)


def work(capsys, folder, steps, **facts):
    """What a worker says."""
    told = {"node": str(folder / "node"), "far": str(folder / "far"), "direct": False, "steps": steps, "step_s": 0.0}
    main(json.dumps(told | {"size_bytes": 4000, "every_s": 0.0, "generation": 1} | facts))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_worker_goes_on_from_its_disk_else_from_the_anchor_and_writes_both(tmp_path, capsys):
    first = work(capsys, tmp_path, 30)
    assert (first[0]["resumed"], first[0]["source"], first[-1]) == (0, "nothing", {"finished": 30})
    saved = [line["saved"] for line in first if "saved" in line]
    assert saved
    again = work(capsys, tmp_path, 60, generation=2)
    assert (again[0]["resumed"], again[0]["source"]) == (saved[-1], "node")
    last = [line["saved"] for line in again if "saved" in line][-1]
    shutil.rmtree(tmp_path / "node")
    lost = work(capsys, tmp_path, 61, generation=3)
    assert (lost[0]["resumed"], lost[0]["source"]) == (last, "far")


def test_training_is_compared_in_fours_with_and_without_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(slowdown, "least_interval_s", lambda *_: 0.01)
    found = measure_slowdown(tmp_path, 4000, seconds=0.0)
    assert len(found.shares) == len(found.cpu_shares) == FEWEST
    assert found.saves == 2 * FEWEST
    assert found.every_s == 0.01


def test_a_machine_that_becomes_busier_all_the_time_does_not_look_like_a_slowdown(tmp_path, monkeypatch):
    """Each block takes a tenth longer than the first of all; with a checkpoint, five hundredths of that more."""
    order = []

    def block(_self, _seconds, checkpoints, _state, done):
        order.append(checkpoints is not None)
        done += [SimpleNamespace(seconds=0.1, blocked_s=0.0)] if order[-1] else []
        step_s = (1.0 + 0.1 * len(order)) * (1.05 if order[-1] else 1.0)
        return slowdown.Block(step_s, step_s)

    monkeypatch.setattr(slowdown._Loop, "block", block)
    monkeypatch.setattr(slowdown, "least_interval_s", lambda *_: 0.01)
    found = measure_slowdown(tmp_path, 4000, seconds=0.0)
    assert order[:8] == [True, False, False, True, False, True, True, False]
    assert found.shares == pytest.approx([0.05] * FEWEST)


def test_a_median_lies_where_the_order_of_the_values_says():
    low, high = median_interval([float(n) for n in range(101)])
    assert low < 50.0 < high
    assert (low, high) == (40.0, 60.0)  # the 41st and the 61st, as tables of the sign test have it
    assert median_interval([1.0]) == (1.0, 1.0)


def test_times_are_foretold_by_the_bandwidth_that_one_size_has_shown():
    known = {"peers": Took(write_s=0.0, read_s=0.5), "disk": Took(write_s=2.0, read_s=1.0)}
    found = foretold(known, 10, 40)
    assert found["disk"] == Took(write_s=pytest.approx(8.0), read_s=pytest.approx(4.0))
    assert found["peers"] == Took(write_s=pytest.approx(0.0, abs=1e-6), read_s=pytest.approx(2.0))
    assert foretold(known, 10, 10)["disk"] == Took(write_s=pytest.approx(2.0), read_s=pytest.approx(1.0))
    assert typical([1.0, 9.0, 2.0, 3.0, 50.0]) == 2.0


def test_the_adviser_takes_as_long_for_a_copy_as_the_study_foretells():
    """One model: what a checkpoint takes over a line of a known pace is the same in both."""
    one = np.ones((1, 1))
    fleets = Fleets(
        keepers=["storage"],
        nodes_N=np.array([1.0]),
        steady_RN=0.0 * one,
        hazard_per_h_R=np.array([0.2]),
        notice_s_R=np.zeros(1),
        at_once_RN=one,
        all_RN=0.0 * one,
        wait_s_RN=0.0 * one,
        wait_square_RN=0.0 * one,
        spread_R=np.zeros(1, dtype=bool),
        gbit_per_s_R=np.array([1.0]),  # less than storage takes
        rate_RN=one,
    )
    (advised_s,) = outages(fleets, Checkpoints(state_bytes=4e9)).write_s_RN[:, 0]
    shown = Took(write_s=8.0, read_s=8.0)  # a gigabyte at 1 Gbit/s
    model = foretold({"bucket": shown}, 1_000_000_000, 4_000_000_000)["bucket"]
    assert advised_s == pytest.approx(model.write_s) == pytest.approx(32.0)


def test_a_checkpoint_is_carried_home_and_brought_to_another_node_whole(tmp_path):
    found = measure_carried(tmp_path, [40_000], rounds=2)  # which compares steps
    assert [took.write_s > 0.0 and took.read_s > 0.0 for took in found[40_000]] == [True, True]


def test_all_bytes_of_every_checkpoint_are_carried(tmp_path, monkeypatch):
    """Parts go by content: had two of them the same weights, only the first would show what carrying takes."""
    came = []
    take = Pulling.take
    monkeypatch.setattr(Pulling, "take", lambda self, node, part: (came.append(len(part.data)), take(self, node, part)))
    measure_carried(tmp_path, [400_000, 800_000], rounds=1)
    assert sum(came) > 2 * (400_000 + 800_000)


def test_a_state_comes_from_the_memory_of_another_process():
    with Peers() as peers:
        assert min(peers.hand_over(state_of(size)) for size in (4_000, 40_000)) > 0.0


def test_losses_count_from_the_first_step_that_could_be_made(tmp_path, monkeypatch):
    """However long a process takes to begin: else the first loss would come before there is anything to lose."""
    clock, ended_s = SimpleNamespace(s=0.0), []

    class Worker:
        step = 0

        def __init__(self, *_):
            self._begun_s = clock.s

        @property
        def resumed(self):
            return 0 if clock.s >= self._begun_s + 100.0 else None

        @property
        def finished(self):
            return len(ended_s) == 2 and self.resumed is not None

        def __enter__(self):
            return self

        def __exit__(self, *_):
            ended_s.append(clock.s)

    def sleep(_):
        clock.s += 1.0

    monkeypatch.setattr(arms, "_Worker", Worker)
    monkeypatch.setattr(arms, "PATIENCE_S", 1000.0)
    monkeypatch.setattr(arms, "time", SimpleNamespace(perf_counter=lambda: clock.s, sleep=sleep))
    arm = Arm(name="tiering", far="", direct=False, usd_per_h=1.0, every_s=1.0)
    life = arms.live(arm, tmp_path, steps=1, step_s=1.0, size_bytes=1, losses_s=(6.0, 200.0), env={})
    assert ended_s == [106.0, 300.0, 400.0]
    assert (life.losses, life.seconds) == (2, 400.0)


def test_an_interval_leaves_the_time_to_carry_and_a_life_is_the_sum_of_its_parts():
    took = Took(write_s=0.1, read_s=0.2, blocked_s=0.01)
    assert interval_s(took, 0.5, 0.1) >= 0.6
    assert interval_s(took, 0.5, 0.1) >= interval_s(took, 0.1, 0.1)
    assert expected_s(100.0, 10.0, cost_s=0.1, lag_s=1.0, resume_s=3.0, losses=2) == pytest.approx(101.0 + 2 * 9.0)


def test_rents_are_those_of_deepvms_list():
    usd = rents()
    assert usd == pytest.approx({"tiering": 1.4324, "single anchor": 1.6306, "bucket": 1.2624, "on demand": 4.208})
    assert Arm(name="x", far="", direct=True, usd_per_h=usd["bucket"], every_s=math.inf).direct


def test_the_claim_holds_in_the_model_for_the_checkpoints_that_deepvm_has():
    table, checks = modelled()
    assert len(table.rows) == len(HAZARDS_PER_H) * len(STATES_GB)
    assert [check.ok for check in checks] == [True, True]
    assert {row[-1] for row in table.rows} == {"bucket", "single anchor"}  # and elsewhere others are cheaper
