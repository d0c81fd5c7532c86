"""DeepVM's planner gives the published clusters, by enumeration and by the integer program."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import InvalidValue
from sublet_lab.studies.deepvm.facts import Anchor, Trainer, senders_per_anchor
from sublet_lab.studies.deepvm.planner import (
    ANCHORS,
    AWS,
    SCALING_S,
    VIRTUAL,
    Keeping,
    clusters,
    cost_first,
    performance_first,
    planned,
    planned_without_scaling,
)
from sublet_lab.studies.deepvm.program import best_cluster


def test_the_top_three_at_three_dollars_are_the_published_ones():
    found = planned(3.0, AWS, ANCHORS)
    assert [cluster.usd_per_h for cluster in found] == [2.8526, 2.8746, 2.8986]
    assert [str(cluster) for cluster in found] == [
        "17 x g4dn.xlarge spot + 1 x c5.xlarge",
        "17 x g4dn.xlarge spot + 1 x m6i.xlarge",
        "17 x g4dn.xlarge spot + 1 x c5n.xlarge",
    ]
    assert planned_without_scaling(3.0, AWS, ANCHORS) == found[0]


def test_its_rivals_at_three_dollars_are_the_published_ones():
    cheap, quick = cost_first(3.0, AWS), performance_first(3.0, AWS)
    assert (str(cheap), cheap.usd_per_h) == ("1 x g4dn.xlarge on demand + 15 x spot", 2.893)
    assert (str(quick), quick.usd_per_h) == ("1 x g5.xlarge on demand + 6 x spot", 2.8168)


@pytest.mark.parametrize(
    ("budget", "scores"),
    [
        (1.0, (600, 2100, 1650, 1650)),
        (3.0, (1818, 2700, 2987, 11231)),
        (5.0, (1990, 6300, 3000, 13628)),
        (8.0, (2000, 12408, 3000, 13990)),
        (10.0, (2000, 14943, 3000, 13999)),
    ],
)
def test_scores_on_the_virtual_machines_are_the_published_ones(budget, scores):
    found = (
        cost_first(budget, VIRTUAL),
        performance_first(budget, VIRTUAL),
        planned_without_scaling(budget, VIRTUAL, ANCHORS),
        planned(budget, VIRTUAL, ANCHORS)[0],
    )
    assert tuple(round(cluster.performance) for cluster in found) == scores


@pytest.mark.parametrize("budget", [0.3, 0.9, 1.7, 2.2, 3.3, 4.6])
def test_the_integer_program_finds_what_enumeration_finds(budget):
    found = best_cluster(budget, VIRTUAL, ANCHORS)
    assert found.objective == pytest.approx(planned(budget, VIRTUAL, ANCHORS)[0].objective, rel=1e-12)
    assert found.usd_per_h <= budget + 1e-9


@given(budget=st.integers(0, 400).map(lambda cents: cents / 100), checkpoint=st.sampled_from([2.0, 20.0, 40.0, 99.0]))
def test_program_and_enumeration_agree_on_small_lists(budget, checkpoint):
    some, keepers, keeping = AWS[1:], ANCHORS[2:5], Keeping(checkpoint=checkpoint)
    found, listed = best_cluster(budget, some, keepers, keeping), planned(budget, some, keepers, keeping)
    assert (found is None) == (not listed)
    if found is not None:
        assert found.objective == pytest.approx(listed[0].objective, rel=1e-12)
        assert found.anchor is None or found.anchor.mem_gib >= checkpoint * 0.5


@given(budget=st.floats(0.0, 6.0))
def test_every_cluster_keeps_the_published_constraints(budget):
    for cluster in clusters(budget, AWS, ANCHORS):
        assert cluster.usd_per_h <= budget + 1e-4
        assert cluster.nodes < 32
        if cluster.anchor is None:
            assert cluster.nodes >= 2
        else:
            assert cluster.nodes / cluster.anchors < senders_per_anchor(cluster.trainer, cluster.anchor)


def test_more_anchors_than_needed_never_help():
    brute = max(
        trainer.performance(nodes)
        for trainer in VIRTUAL
        for nodes in range(1, 40)
        for anchor in ANCHORS
        for anchors in range(1, 6)
        if nodes * trainer.spot_usd_per_h + anchors * anchor.usd_per_h <= 2.05
        and nodes / anchors < senders_per_anchor(trainer, anchor)
    )
    found = [cluster for cluster in clusters(2.05, VIRTUAL, ANCHORS) if cluster.anchor is not None]
    assert max(cluster.performance for cluster in found) == brute


def test_the_overhead_factor_starts_at_one_and_falls_beyond_the_bend():
    trainer = AWS[1]
    assert [trainer.factor(nodes) for nodes in (1, 12)] == [1.0, 1.0]
    assert trainer.factor(13) == pytest.approx(1.0, abs=1e-6)
    assert 0 < trainer.factor(31) < trainer.factor(20) < 1
    assert trainer.performance(10**6) == pytest.approx(trainer.score * 4 / trainer.a, rel=1e-3)  # it saturates


def test_a_price_that_just_fits_fits():
    tight = Trainer(name="t", on_demand_usd_per_h=0.5, gbit_per_s=10.0, score=1, a=0.1, b=9.0, c=5.0, most=9)
    assert [cluster.nodes for cluster in clusters(0.5 + 0.15 * 3, [tight], [])] == [2, 3, 4]
    assert cost_first(0.64, [tight]) is None
    assert planned(0.64, [tight], []) == []


def test_nothing_is_planned_without_money():
    assert best_cluster(0.0, AWS, ANCHORS) is None
    assert planned(0.1, AWS, ANCHORS) == []
    assert planned_without_scaling(0.1, AWS, ANCHORS) is None
    assert performance_first(0.1, AWS) is None


def test_a_network_that_was_not_measured_is_refused():
    odd = Anchor(name="odd", usd_per_h=0.1, mem_gib=8.0, gbit_per_s=7.0)
    with pytest.raises(InvalidValue, match="measured"):
        senders_per_anchor(AWS[0], odd)
    with pytest.raises(InvalidValue, match="usd_per_h"):
        Anchor(name="free", usd_per_h=math.nan, mem_gib=8.0, gbit_per_s=5.0)


def test_one_g5_is_as_fast_as_eight_of_them():
    assert SCALING_S["g5.xlarge"][1] == pytest.approx(SCALING_S["g5.xlarge"][8], rel=0.03)
