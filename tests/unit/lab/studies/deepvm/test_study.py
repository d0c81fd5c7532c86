"""The study of DeepVM holds, and misses what it should miss."""

from __future__ import annotations

import pytest

from sublet.advise.frontier import Limits
from sublet.advise.measured_models import sia_shelf
from sublet.errors import MissingData
from sublet_lab.studies.deepvm import advice as deepvm_advice
from sublet_lab.studies.deepvm import sweep as deepvm_sweep
from sublet_lab.studies.deepvm.planner import ANCHORS, VIRTUAL, clusters


def test_the_published_clusters_are_found():
    assert [check.ok for check in deepvm_sweep.at_three_dollars().checks] == [True] * 5


@pytest.mark.parametrize("budget", [0.3, 1.0, 4.4, 9.9])
def test_the_adviser_takes_the_best_of_what_deepvm_may_choose(budget):
    found = clusters(budget, VIRTUAL, ANCHORS)
    ours = deepvm_sweep.advised(found, budget)
    assert ours.performance == max(cluster.performance for cluster in found)
    assert ours.usd_per_h <= budget + 1e-9


@pytest.mark.long
def test_a_quick_sweep_holds_and_is_drawn():
    told = []
    findings = deepvm_sweep.sweep(True, told.append)
    assert [check.name for check in findings.checks if not check.ok] == []
    assert all(png.startswith(b"\x89PNG") for png in findings.plots.values())
    assert len(findings.plots) == 1
    assert told


def test_the_frontier_of_the_scaling_table_has_the_published_points():
    findings = deepvm_advice.on_the_scaling_table()
    assert [check.name for check in findings.checks if not check.ok] == []
    quick = deepvm_advice.scaling_advice(Limits(deadline_h=17 / 3600)).best
    assert (quick.offer.instance_type, quick.nodes) == ("g4dn.xlarge", 16)


def test_predictions_from_others_are_no_worse_than_stated():
    missed = [each for each in deepvm_advice.left_out() if each.shelf == "gavel"]
    assert len(missed) == 21
    assert sorted(each.error for each in missed)[10] < 0.25


@pytest.mark.outside_data
def test_choices_by_predictions_cost_little_more():
    try:
        sia_shelf(("bert",))
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])
    lost = sorted(deepvm_advice.regrets())
    assert len(lost) == 6 * 4 * 3
    assert min(lost) >= 0
    assert lost[len(lost) // 2] <= 0.15
