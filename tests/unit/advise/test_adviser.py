"""The cluster adviser: laws of its frontier, agreement with the exact sums, and no price that cannot be."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.advise.adviser import Ask, advise
from sublet.advise.candidates import gbit_per_s, rows_from_offers
from sublet.advise.checkpointing import Checkpoints, Fleets, anchors_for, outages
from sublet.advise.error import ERROR_AS_OTHERS, ERROR_BY_FACTS, error_note, left_out
from sublet.advise.frontier import Clusters, Limits, binding, frontier, pick, steps_up
from sublet.advise.hazard import reclaims_of
from sublet.advise.losses import Capacity, losses, neighbours
from sublet.advise.measured_models import known_shelf, shelf_name
from sublet.advise.profiles import Profile, known_models, known_profile, profile_from_csv
from sublet.advise.speed import Machine, speeds
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import BadInput, Infeasible, InvalidValue, UnknownName
from sublet.market.catalogue import load_catalogue, load_gpus, read_catalogue
from sublet.market.hygiene import outlived
from sublet.market.prices import load_prices, utc_s
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.perf.measured import MODELS
from sublet.perf.preemption import Reclaims, spot_speed
from sublet.perf.speedup import Linear
from sublet_lab.studies.deepvm import advice as deepvm_advice
from sublet_lab.studies.deepvm.catalogue import PLANTED, planted, planted_advice

GPUS, CATALOGUE = load_gpus(), load_catalogue()
LINEAR = Profile(
    name="toy",
    batch=4096,
    state_bytes=1e9,
    restart_s=60.0,
    source="a test",
    rates={"T4": {1: 10.0, 2: 19.0, 4: 36.0, 64: 300.0}, "A100": {1: 100.0, 8: 700.0}},
    spread=0.0,
)


def offer(kind, gpus, usd, market="on-demand", **more):
    name = f"{kind}x{gpus}"
    return Offer(
        id=f"aws:{name}:{market}",
        gpu=kind,
        gpus_per_node=gpus,
        market=Market(market),
        price=Price.from_usd_per_h(str(usd)),
        cloud="aws",
        instance_type=name,
        **more,
    )


SHOP = [
    offer("T4", 1, 0.5),
    offer("T4", 1, 0.06, "spot"),
    offer("T4", 4, 1.9),
    offer("A100", 8, 22.0),
    offer("A100", 8, 9.0, "spot"),
]


def asked(**more):
    return Ask(profile=LINEAR, samples=1e6, **more)


# ---------------------------------------------------------------------- the frontier


def brute_frontier(hours, usd, late):
    points = list(zip(hours, usd, [round(late_h / h, 9) for late_h, h in zip(late, hours, strict=True)], strict=True))
    beaten = {
        i
        for i, a in enumerate(points)
        for b in points
        if all(y <= x for x, y in zip(a, b, strict=True)) and any(y < x for x, y in zip(a, b, strict=True))
    }
    return {points[i] for i in range(len(points)) if i not in beaten}


@given(points=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=40))
def test_the_frontier_is_what_comparing_all_with_all_gives(points):
    hours = [float(h) for h, _, _ in points]
    usd = [float(u) for _, u, _ in points]
    late = [h * (1 + extra / 8) for (h, _, extra) in points]
    some = Clusters(hours_C=np.array(hours), usd_C=np.array(usd), late_h_C=np.array(late))
    found = frontier(some)
    ours = {(hours[i], usd[i], round(late[i] / hours[i], 9)) for i in found}
    assert ours == brute_frontier(hours, usd, late)
    assert len(found) == len(ours)  # of equals, one
    assert [usd[i] for i in found] == sorted(usd[i] for i in found)


@given(
    points=st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=2, max_size=30), share=st.floats(0.0, 1.0)
)
def test_a_step_up_is_the_least_that_changes_the_answer(points, share):
    hours, usd = (np.array(column) for column in zip(*points, strict=True))
    some = Clusters(hours_C=hours, usd_C=usd)
    budget = float(usd.min() + share * (usd.max() - usd.min()))
    limits = Limits(budget_usd=budget)
    best = pick(some, limits)
    assert usd[best] <= budget * (1 + 1e-9)
    assert hours[best] == hours[usd <= budget * (1 + 1e-9)].min()
    for step in steps_up(some, limits):
        enough = Limits(budget_usd=budget * (1 + step.more) * (1 + 1e-9))
        assert hours[pick(some, enough)] <= hours[best] * 0.99
        assert usd[step.cluster] <= 1.02 * usd[(hours < hours[best] * 0.99)].min()
    assert binding(some, limits) == ["budget_usd"] * bool(steps_up(some, limits))


def test_a_coarser_frontier_is_shorter_and_never_far_from_the_fine_one():
    rng = np.random.default_rng(5)
    hours, usd = rng.uniform(1, 100, 4000), rng.uniform(1, 100, 4000)
    some = Clusters(hours_C=hours, usd_C=usd, late_h_C=hours * rng.uniform(1, 2, 4000))
    fine, coarse = frontier(some), frontier(some, resolution=0.1)
    assert 0 < len(coarse) < len(fine)
    for i in fine:
        assert ((hours[coarse] <= 1.11 * hours[i]) & (usd[coarse] <= 1.11 * usd[i])).any()


# ---------------------------------------------------------------------- reclaims


def fleets(
    keepers,
    *,
    nodes,
    hazard=0.5,
    steady=None,
    at_once=1.0,
    wait_s=0.0,
    rates=None,
    gbit=100.0,
    spread=False,
    notice_s=0.0,
):
    """Clusters of 1 to the most of these nodes, cut down to these."""
    rows, most = len(keepers), max(nodes)
    rates = np.array(rates if rates is not None else range(1, most + 1), dtype=float)
    steady_N = np.zeros(most) if steady is None else np.minimum(steady, np.arange(1.0, most + 1.0))
    full = np.ones((rows, most))
    return Fleets(
        keepers=keepers,
        nodes_N=np.arange(1.0, most + 1.0),
        steady_RN=full * steady_N,
        hazard_per_h_R=np.full(rows, hazard),
        notice_s_R=np.full(rows, notice_s),
        at_once_RN=at_once * full,
        all_RN=np.where(np.arange(1, most + 1) == 1, full, 0.0),
        wait_s_RN=wait_s * full,
        wait_square_RN=wait_s**2 * full,
        spread_R=np.full(rows, spread),
        gbit_per_s_R=np.full(rows, gbit),
        rate_RN=full * rates,
    )


@given(
    nodes=st.integers(1, 64),
    hazard=st.one_of(st.just(0.0), st.floats(1e-6, 2.0)),
    gigabytes=st.floats(0.05, 50.0),
    restart_s=st.floats(0.0, 300.0),
)
def test_the_slowdown_is_that_of_policies_and_plans(nodes, hazard, gigabytes, restart_s):
    job = Checkpoints(state_bytes=gigabytes * 1e9, restart_s=restart_s, provision_s=120.0)
    found = outages(fleets(["storage"], nodes=[nodes], hazard=hazard, rates=[0.0] * (nodes - 1) + [1.0]), job)
    write_s = gigabytes * 1e9 / 0.5e9
    like = Job(
        id="j", submit_s=0.0, work=1.0, speed=Linear(), restart_s=restart_s + write_s, checkpoint_write_s=write_s
    )
    kept = float(spot_speed(Reclaims(per_h=hazard, boot_s=120.0), like, [nodes])[0])
    assert 1.0 / float(found.slowdown_RN[0, nodes - 1]) == pytest.approx(kept, rel=1e-9)


def test_a_peer_needs_a_second_node_and_a_mixture_a_spot_node():
    job = Checkpoints(state_bytes=1e9)
    alone = outages(fleets(["storage", "peers", "anchors"], nodes=[3]), job)
    assert np.isfinite(alone.slowdown_RN).tolist() == [[True] * 3, [False, True, True], [True] * 3]
    assert (np.diff(alone.slowdown_RN[0]) > 0).all()  # more nodes, more reclaims
    mixed = outages(fleets(["nodes"], nodes=[3], steady=1), job)
    assert np.isfinite(mixed.slowdown_RN).tolist() == [[False, True, True]]
    assert mixed.per_h_RN[0].tolist() == [0.0, 0.5, 1.0]  # of the spot nodes only
    calm = outages(fleets(["nothing"], nodes=[3], steady=3), job)
    assert calm.slowdown_RN[0].tolist() == [1.0, 1.0, 1.0]  # on demand nothing is taken away


def test_survivors_go_on_where_nodes_are_long_gone_and_wait_where_they_come_at_once():
    job = Checkpoints(state_bytes=1e9, restart_s=60.0, provision_s=0.0)
    soon = outages(fleets(["storage"], nodes=[8]), job)
    assert not soon.goes_on_RN.any()
    late = outages(fleets(["storage"], nodes=[8], wait_s=7200.0), job)
    assert late.goes_on_RN[0].tolist() == [False] + [True] * 7  # one node leaves nobody
    # Half an hour's loss of one of eight every quarter of an hour: at 0.5 per hour and two hours gone, half are there.
    assert late.paid_RN[0, 7] == pytest.approx(8 / (1 + 0.5 * 2.0))
    assert late.slowdown_RN[0, 7] >= 2.0
    useless = outages(fleets(["storage"], nodes=[8], wait_s=7200.0, rates=[0.0] * 7 + [8.0]), job)
    assert useless.slowdown_RN[0, 7] > late.slowdown_RN[0, 7]  # fewer than eight do no work
    steady = outages(fleets(["nodes"], nodes=[8], steady=4, wait_s=7200.0), job)
    assert steady.slowdown_RN[0, 7] < late.slowdown_RN[0, 7]


def test_a_peer_in_another_zone_is_not_lost_at_the_same_time():
    job = Checkpoints(state_bytes=1e9)
    here, there = (
        outages(fleets(["peers"], nodes=[8], at_once=4.0, spread=spread), job).slowdown_RN[0, 7]
        for spread in (False, True)
    )
    assert there < here


def two_zones():
    """One zone has four nodes, then none, then four; the other always has three."""
    first = Steps(t_s=np.array([0.0, 100.0, 400.0]), value=np.array([4, 0, 4]))
    second = Steps(t_s=np.array([0.0]), value=np.array([3]))
    series = {"r-1a": first, "r-1b": second}
    return SpotTrace(name="two", series=series, end_s=dict.fromkeys(series, 1000.0), span_s=1000.0, max_available=4)


def test_waits_are_those_of_the_zones_that_a_cluster_may_use():
    trace = two_zones()
    assert neighbours(trace, 2) == [["r-1a", "r-1b"]]
    assert neighbours(trace, 3) == [["r-1a"], ["r-1b"]]
    alone = Capacity.of(trace, ["r-1a"])
    assert alone.waits_s(1).tolist() == [300.0]
    spread, moved = (Capacity.of(trace, ["r-1a", "r-1b"], together=together) for together in (False, True))
    assert [spread.waits_s(nodes).tolist() for nodes in (3, 4)] == [[0.0], [300.0]]  # three are left, then seven
    assert [moved.waits_s(nodes).tolist() for nodes in (3, 4)] == [[0.0], [300.0]]
    assert alone.share_F.tolist() == [1.0]


@pytest.mark.parametrize("zones", [1, 2, 3])
def test_what_a_trace_says_of_losses_is_possible(zones):
    found = losses(("bamboo-p3", "bamboo-gcp"), zones, 64)
    nodes_S = np.arange(65.0)
    assert (found.at_once_S >= 1.0).all()
    assert (found.at_once_S <= np.maximum(nodes_S, 1.0)).all()
    assert (np.diff(found.at_once_S) >= -1e-9).all()  # of more nodes, more are lost at once
    assert ((found.all_S >= 0.0) & (found.all_S <= 1.0)).all()
    assert found.all_S[1] == 1.0
    assert (found.all_S * nodes_S <= found.at_once_S + 1e-9).all()
    assert (found.wait_square_S >= found.wait_s_S**2 - 1e-6).all()
    single = losses(("bamboo-p3", "bamboo-gcp"), 1, 64)
    assert (found.at_once_S <= single.at_once_S + 1e-9).all()
    assert (found.wait_s_S <= single.wait_s_S).all()


def test_anchors_hold_two_checkpoints():
    anchor, count = anchors_for(Checkpoints(state_bytes=20e9), 4)
    assert count * anchor.mem_gib * 1024**3 >= 40e9
    assert anchors_for(Checkpoints(state_bytes=1e9), 40)[1] >= 3


def test_reclaims_are_measured_where_a_trace_is_and_say_so_where_not():
    p3 = reclaims_of("aws", "V100")
    assert p3.per_h == pytest.approx(0.611, abs=0.001)
    assert p3.low_per_h < p3.per_h < p3.high_per_h
    assert "bamboo-p3" in p3.source
    assert "not measured there" in reclaims_of("aws", "L4").source
    assert (p3.traces, reclaims_of("aws", "L4").traces) == (("bamboo-p3",), ("bamboo-p3", "bamboo-gcp"))


# ---------------------------------------------------------------------- speed


def test_own_figures_are_used_between_what_was_measured_and_nowhere_else():
    found = speeds(LINEAR, [Machine("T4", 1, 25.0), Machine("T4", 8, 50.0), Machine("L4", 1, 10.0)], 80, GPUS)
    assert found.rate_MN[0, [0, 1, 3]].tolist() == [10.0, 19.0, 36.0]
    assert found.rate_MN[0, 2] == pytest.approx(27.5)
    assert found.rate_MN[0, 64:].tolist() == [0.0] * 16
    assert found.rate_MN[1, 0] == pytest.approx(36 + 264 * 4 / 60)
    assert not found.rate_MN[2].any()
    assert found.how == ("measured", "measured", "not measured")


def test_a_model_is_predicted_where_it_was_not_measured_and_less_surely():
    profile = known_profile("bert")
    machines = [Machine("T4", 4, 50.0), Machine("L4", 4, 50.0), Machine("H100", 8, 3200.0), Machine("M4000", 1, 10.0)]
    found = speeds(profile, machines, 4, GPUS)
    t4, l4, h100, unknown = found.rate_MN[:, 0]
    assert t4 < h100
    assert t4 / 1.5 < l4 < 2 * t4
    assert unknown == 0.0
    assert found.how[0] == "measured"
    assert "predicted from" in found.how[1]
    assert found.spread_MN[0, 0] < found.spread_MN[1, 0]


def test_a_slower_network_slows_several_nodes_and_never_one():
    profile = known_profile("bert")
    fast, slow = speeds(profile, [Machine("T4", 4, 50.0), Machine("T4", 4, 5.0)], 8, GPUS).rate_MN
    assert fast[0] == slow[0]
    assert (fast[1:] > slow[1:]).all()


def test_a_model_too_large_for_a_gpu_does_not_run_there():
    assert not speeds(known_profile("llama-1b"), [Machine("T4", 8, 50.0)], 4, GPUS).rate_MN.any()
    assert speeds(known_profile("llama-1b"), [Machine("H200", 8, 3200.0)], 4, GPUS).rate_MN.all()


def test_every_known_model_runs_somewhere():
    for model in known_models():
        profile = known_profile(model)
        kind = next(iter(profile.curves))
        assert speeds(profile, [Machine(kind, 8, 100.0)], 2, GPUS).rate_MN[0, 0] > 0


@pytest.mark.outside_data
def test_the_error_of_predictions_is_measured_where_a_model_ran_on_several_kinds():
    errors = {model: left_out(known_profile(model), GPUS) for model in MODELS}
    if not all(errors.values()):
        pytest.skip("the step times of Sia are not here")
    assert {each.kind for each in errors["bert"]} == {"A100", "RTX-2080Ti", "T4", "V100-32GB"}
    every = [each.error for found in errors.values() for each in found]
    assert len(every) == 24
    assert median(every) < 0.25
    own = median(each.error for each in errors["imagenet"])
    told = error_note(known_profile("imagenet"), errors["imagenet"])
    for text in ("imagenet", f"off by {100 * own:.0f} %", "A100", f"{100 * ERROR_BY_FACTS:.0f} %"):
        assert text in told


@pytest.mark.outside_data
def test_the_adviser_predicts_as_the_study_measures():
    try:
        shelf = known_shelf()
        known_profile("bert").curves["A100"]
    except KeyError:
        pytest.skip("the step times of Sia are not here")
    study = {(each.model, each.kind): each.error for each in deepvm_advice.left_out()}
    for model in ("bert", "ncf"):
        for each in left_out(known_profile(model), GPUS, others=True):
            assert each.error == pytest.approx(study[model, shelf_name(each.kind)], rel=1e-6)
    assert median(study.values()) == pytest.approx(ERROR_AS_OTHERS, abs=0.006)
    by_facts = [each.error for each in deepvm_advice.left_out(others=False)]
    assert median(by_facts) == pytest.approx(ERROR_BY_FACTS, abs=0.006)
    assert len(shelf) == len(study) == 45


def test_the_error_of_a_model_that_ran_on_one_kind_is_said_not_to_be_known():
    assert left_out(known_profile("llama-1b"), GPUS) == left_out(LINEAR, GPUS) == []
    assert "step times of llama-1b are here for one kind only" in error_note(known_profile("llama-1b"), [])


def test_networks_are_as_documented_else_guessed():
    assert gbit_per_s("aws", "p5.48xlarge", 8) == 3200.0
    assert gbit_per_s("azure", "Standard_ND40rs_v2", 8) == 100.0
    assert [gbit_per_s("vast", "any", gpus) for gpus in (1, 4, 8)] == [10.0, 25.0, 100.0]


def test_a_profile_is_read_from_a_file_and_refused_by_line(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("gpu,gpus,samples_per_s\nT4,1,12\nT4,4,40\nL4,1,30\n")
    assert profile_from_csv(path).rates == {"T4": {1: 12.0, 4: 40.0}, "L4": {1: 30.0}}
    path.write_text("gpu,gpus,samples_per_s\nT4,1,12\nT4,1,13\n")
    with pytest.raises(BadInput, match=r"line 3.*stands twice"):
        profile_from_csv(path)
    with pytest.raises(UnknownName, match="did you mean bert"):
        known_profile("bertt")


# ---------------------------------------------------------------------- advice


def test_money_buys_time_and_the_frontier_has_both_ends():
    advice = advise(asked(), SHOP, GPUS)
    assert advice.frontier[0] == advice.cheapest
    assert advice.fastest.hours == min(each.hours for each in advice.frontier)
    for each in advice.frontier:
        assert not any(
            other.hours < each.hours and other.usd < each.usd and other.risk < each.risk for other in advice.frontier
        )
    assert (advice.fastest.offer.gpu, advice.fastest.nodes) == ("A100", 1)  # nothing was measured on two of its nodes


def test_more_budget_never_slows():
    times = []
    for budget in (0.5, 3.0, 5.0, 8.0, 20.0):
        try:
            times.append(advise(asked(limits=Limits(budget_usd=budget)), SHOP, GPUS).best.hours)
        except Infeasible:
            times.append(math.inf)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[1] < math.inf


def test_the_bill_is_rent_times_hours_and_nodes_are_whole():
    only = [offer("T4", 4, 1.9)]
    best = advise(asked(most_nodes=1), only, GPUS).best
    start_s = 120.0 + 60.0
    assert best.hours == pytest.approx((start_s + 1e6 / 36.0) / 3600)
    assert best.usd == pytest.approx(1.9 * best.hours)
    assert (best.gpus, best.usd_per_h, best.reclaims, best.risk) == (4, 1.9, 0.0, 0.0)


def test_spot_costs_reclaims_and_says_how_often_to_write():
    spot = advise(asked(most_nodes=2), [SHOP[1]], GPUS).best
    assert spot.reclaims > 0
    assert 0 < spot.lost_share < 0.5
    assert spot.checkpoint_every_s < 3600
    assert spot.risk > 0
    calm = advise(asked(most_nodes=2, reclaims=0.0), [SHOP[1]], GPUS).best
    assert (calm.reclaims, calm.lost_share, calm.hours < spot.hours) == (0.0, 0.0, True)


def test_an_offer_that_states_its_reclaims_is_believed():
    steady = advise(asked(), [replace(SHOP[1], hazard_per_h=0.01)], GPUS).best
    assert steady.reclaims < advise(asked(), [SHOP[1]], GPUS).best.reclaims


def test_a_mixed_cluster_costs_between_spot_and_on_demand_and_loses_less():
    twins = [offer("A100", 8, 22.0), offer("A100", 8, 9.0, "spot")]
    wide = replace(LINEAR, rates={"A100": {8: 700.0, 16: 1300.0, 32: 2400.0}})
    ask = Ask(profile=wide, samples=3e7, most_nodes=4)
    ways = {each.steady: each for each in advise(replace(ask, resolution=0.0), twins, GPUS).frontier if each.nodes == 4}
    assert {2, 4} <= set(ways)
    spot = advise(ask, twins[1:], GPUS).fastest
    assert spot.usd_per_h < ways[2].usd_per_h < ways[4].usd_per_h
    assert (ways[2].market, ways[2].spots, ways[2].offer) == ("mixed", (twins[1],), twins[0])
    assert ways[4].hours < ways[2].hours < spot.hours
    assert ways[2].usd_per_h == pytest.approx(2 * twins[0].price.usd_per_h + 2 * twins[1].price.usd_per_h)
    assert ways[2].reclaims / ways[2].hours < spot.reclaims / spot.hours


def zoned(name, usd, market="spot", **more):
    return replace(offer("A100", 8, usd, market, **more), id=f"aws:r:{name}:A100x8:{market}", region="r", zone=name)


ZONES = [zoned("r-a", 9.0), zoned("r-b", 11.0), zoned("r-c", 10.0), zoned("r-b", 20.0, "on-demand")]


def test_zones_are_the_cheapest_of_a_region_and_mixtures_have_a_node_on_demand_beside_them():
    rows, machines = rows_from_offers(ZONES)
    assert len(machines) == 1
    spread = {row.zones: {spot.zone for spot in row.spots} for row in rows if row.spread and not row.steady}
    assert spread == {2: {"r-a", "r-c"}, 3: {"r-a", "r-b", "r-c"}}
    assert {row.zones for row in rows if row.together} == {2, 3}
    mixed = [row for row in rows if row.steady]
    assert {row.offer.zone for row in mixed} == {"r-b"}
    assert {row.zones for row in mixed} == {1, 3}  # the two cheapest zones sell nothing on demand
    assert all(row.keeper == "nodes" for row in mixed)
    assert {row.steady for row in mixed} == {1, 2, 4, "half"}


def test_traffic_between_zones_is_paid_for_and_its_price_decides():
    wide = replace(LINEAR, rates={"A100": {8: 700.0, 16: 1300.0, 32: 2400.0, 64: 4400.0}}, batch=64)
    ask = Ask(profile=wide, samples=3e7, most_nodes=8, resolution=0.0)
    dear = advise(ask, ZONES, GPUS).frontier
    assert not [each for each in dear if len(each.spots) > 1 and not each.together]
    steps, gigabytes = 3e7 / 64, LINEAR.state_bytes / 3 / 1e9
    rows, _ = rows_from_offers(ZONES)
    assert steps * gigabytes * 2 * 0.02 > 1000  # two zones, USD 0.02 a gigabyte: more than any of these clusters costs
    free = [replace(each, cloud="azure", id=each.id.replace("aws", "azure")) for each in ZONES]
    for each in advise(ask, free, GPUS).frontier:
        assert each.traffic_usd == 0.0
    assert any(row.spread for row in rows)


def test_a_mixture_is_on_the_frontier_only_where_nothing_beats_it():
    advice = advise(Ask(profile=known_profile("imagenet"), samples=5e7), CATALOGUE.select(), GPUS)
    for each in advice.frontier:
        for other in advice.frontier:
            better = (other.hours <= each.hours, other.usd <= each.usd, other.risk <= each.risk)
            assert other is each or not all(better)
    offers = [each for each in CATALOGUE.select() if (each.cloud, each.gpu) == ("aws", "T4")]
    ways = {each.market for each in advise(Ask(profile=known_profile("imagenet"), samples=5e8), offers, GPUS).frontier}
    assert ways == {"on-demand", "spot", "mixed"}


def test_the_same_nodes_with_checkpoints_elsewhere_stand_beside():
    wide = replace(LINEAR, rates={"A100": {8: 700.0, 16: 1300.0, 32: 2400.0}})
    advice = advise(Ask(profile=wide, samples=3e7, most_nodes=4, limits=Limits(budget_usd=150.0)), SHOP, GPUS)
    assert advice.best.keeper in {"storage", "peers", "anchors"}
    ways = {each.keeper for each in (advice.best, *advice.beside)}
    assert ways >= {"storage", "peers", "anchors"}
    assert {each.nodes for each in advice.beside} == {advice.best.nodes}
    assert {each.offer.gpu for each in advice.beside} == {"A100"}


def test_a_dearer_copy_of_an_offer_changes_nothing():
    alone = advise(asked(), SHOP, GPUS)
    copies = [*SHOP, *(replace(each, id=f"x:{each.id}", price=Price(2 * each.price.micro_usd_per_h)) for each in SHOP)]
    assert advise(asked(), copies, GPUS).frontier == alone.frontier


def test_the_limit_in_the_way_is_named_and_what_more_of_it_buys():
    advice = advise(asked(limits=Limits(budget_usd=5.0)), SHOP, GPUS)
    assert advice.binding == ("budget_usd",)
    (step, other), *_ = advice.steps
    assert other.usd == pytest.approx(5.0 * (1 + step.more))
    assert any("more budget" in text for text in advice.changes)
    free = advise(asked(goal="cheapest"), SHOP, GPUS)
    assert free.binding == ()
    late = advise(asked(goal="cheapest", limits=Limits(deadline_h=1.0)), SHOP, GPUS)
    assert late.binding == ("deadline_h",)
    assert late.best.hours <= 1.0


def test_what_cannot_be_had_is_said_with_what_could():
    with pytest.raises(Infeasible, match="budget") as caught:
        advise(asked(limits=Limits(budget_usd=0.1)), SHOP, GPUS)
    assert (
        advise(asked(limits=Limits(budget_usd=caught.value.needed)), SHOP, GPUS).best.usd <= caught.value.needed * 1.01
    )
    with pytest.raises(Infeasible, match="runs on none"):
        advise(asked(), [offer("L4", 1, 0.7)], GPUS)
    with pytest.raises(Infeasible, match="together"):
        advise(asked(limits=Limits(budget_usd=0.01, deadline_h=0.01)), SHOP, GPUS)
    with pytest.raises(InvalidValue, match="deadline_h"):
        Limits(deadline_h=-1.0)
    with pytest.raises(InvalidValue, match="samples"):
        Ask(profile=LINEAR, samples=0.0)


def test_the_whole_catalogue_on_64_nodes_is_weighed():
    """In less than a second: `python -m benchmarks.advise`."""
    ask = Ask(profile=known_profile("bert"), samples=5e7, limits=Limits(budget_usd=1000.0))
    advice = advise(ask, load_catalogue().select(), GPUS)
    assert advice.offers > 5_000
    assert advice.clusters > 20_000


# ---------------------------------------------------------------------- prices that cannot be


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_price_is_quarantined_with_its_reason_and_never_recommended(kind):
    advice, out = planted_advice(kind)
    assert any(PLANTED[kind][1] in entry.reason for entry in out)
    bad = {(entry.listing.id, entry.listing.usd_per_h) for entry in out}
    for each in (*advice.frontier, advice.best, *advice.beside):
        for offer in (each.offer, *each.spots):
            assert (offer.id, offer.price.usd_per_h) not in bad
            assert offer.price.usd_per_h >= 2.6


def test_at_least_ten_kinds_of_bad_rows_are_planted():
    rows = {row for row, _ in PLANTED.values()}
    assert len(rows) == len(PLANTED) >= 10


def test_a_price_that_jumped_five_times_is_quarantined(tmp_path):
    listings = read_catalogue(planted(tmp_path, "zero")).listings
    spot = next(listing for listing in listings if listing.id == "alpha:east:good8:spot")
    for before in (spot.usd_per_h * 5.1, spot.usd_per_h / 5.1):
        believed, out = outlived(listings, {spot.id: before})
        assert [entry.listing for entry in out] == [spot]
        assert "jumped" in out[0].reason
        assert len(believed) == len(listings) - 1
    assert outlived(listings, {spot.id: spot.usd_per_h * 4.9})[1] == []


def test_of_the_shipped_list_only_old_spot_prices_are_set_aside():
    believed, out = outlived(load_catalogue().listings)
    assert {entry.listing.market for entry in out} == {Market.SPOT}
    assert {entry.listing.cloud for entry in out} == {"azure", "primeintellect"}
    assert len(believed) > 5_000


def test_no_price_that_ships_jumped_within_a_month():
    book, listings = load_prices(), load_catalogue().listings
    before = {}
    for listing in listings:
        month_ago_s = utc_s(f"{listing.as_of}T00:00:00Z") - 30 * 86_400
        price = book.price_at(listing.id, month_ago_s) if listing.id in book.series else None
        if price is not None:
            before[listing.id] = price.usd_per_h
    assert len(before) > 500
    assert not [out for out in outlived(listings, before)[1] if "jumped" in out.reason]
