"""What a job holds and leaves, in which blocks, and in which form it trains on with what is left: by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Grid, Shape
from sublet.kernel.changing import is_spare_of, pays, shape_of_survivors, without_spares
from sublet.kernel.cluster import Cluster, NodePhase
from sublet.kernel.placements import Placements
from sublet.kernel.placing import find_blocks, is_in_blocks
from sublet.perf.gridded import Gridded
from sublet.perf.grids import spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.testing.values import EvenPauses, a_job, an_offer

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
IN_GRIDS = Gridded(spot_job("toy", {(wide, 2): float(wide) for wide in range(1, 5)}, COSTS))


def cluster_of(*offers):
    """A ready node of each, of four GPUs, named by its offer."""
    cluster = Cluster()
    for offer in offers:
        cluster.add(offer.id, offer)
        cluster.ready(cluster.nodes[offer.id])
    return cluster


def spot(name, **facts):
    return an_offer(name, **{"gpus": 4, "pool": "p", **facts})


def sure(name):
    return spot(name, market=Market.ON_DEMAND)


# ---------------------------------------------------------------------- what it holds


def test_a_move_takes_at_once_and_leaves_when_it_is_done():
    cluster, told = cluster_of(spot("a"), spot("b")), []
    placements = Placements(cluster)
    placements.changed = told.append
    placements.move("j", (("a", 3),))
    placements.move("j", (("a", 1), ("b", 2)))
    assert (placements.held["j"], placements.leaving["j"]) == ((("a", 1), ("b", 2)), (("a", 2),))
    assert (cluster.nodes["a"].free, cluster.nodes["b"].free) == (1, 2)
    assert placements.all_of("j") == {"a": 3, "b": 2}
    placements.move("j", (("b", 1),))  # before that is done
    assert (dict(placements.leaving["j"]), placements.all_of("j")) == ({"a": 3, "b": 1}, {"a": 3, "b": 2})
    assert told == ["j"] * 3
    assert placements.finish_move("j")
    assert (cluster.nodes["a"].free, cluster.nodes["b"].free) == (4, 3)
    assert told == ["j"] * 4
    assert not placements.finish_move("j")
    assert told == ["j"] * 4  # nothing has changed
    assert (placements.pool_of("j"), placements.pool_of("nobody")) == ("p", None)
    assert placements.vacate("j")
    assert not placements.vacate("j")
    assert (placements.held, placements.leaving, cluster.free_gpus["p"]) == ({}, {}, 8)


def test_who_leaves_all_has_left_something_also_where_only_a_move_was_open():
    placements = Placements(cluster_of(spot("a")))
    placements.move("j", (("a", 2),))
    placements.move("j", ())
    assert placements.vacate("j")


def test_a_move_that_broke_has_not_left_its_old_gpus():
    placements = Placements(cluster_of(spot("a"), spot("b"), spot("c")))
    placements.move("j", (("a", 2), ("c", 1)))
    placements.move("j", (("b", 2), ("c", 2)))
    assert dict(placements.lose("j", "b")) == {"c": 2, "a": 2}
    assert placements.leaving == {}
    assert dict(placements.held["j"]) == {"c": 2, "a": 2}
    again = Placements(placements._cluster)
    again.restore(placements.facts())
    assert (again.held, again.leaving) == (placements.held, placements.leaving)


# ---------------------------------------------------------------------- blocks


def test_blocks_are_found_wherever_there_are_enough_and_on_its_own_nodes_first():
    """Beside all ways to take whole blocks of the nodes that are open."""
    rng = np.random.default_rng(5)
    found_some = 0
    for _ in range(150):
        offers = [sure(f"n{at}") if rng.random() < 0.3 else spot(f"n{at}") for at in range(3)]
        cluster = cluster_of(*offers)
        for offer in offers:
            if taken := int(rng.integers(0, 5)):
                cluster.take("other", offer.id, taken)
        own = tuple(
            (o.id, int(rng.integers(1, 3))) for o in offers if rng.random() < 0.3 and cluster.nodes[o.id].free >= 2
        )
        for node_id, gpus in own:
            cluster.take("j", node_id, gpus)
        if rng.random() < 0.2:
            cluster.withdraw(cluster.nodes["n0"], NodePhase.NOTICED)
            own = tuple(part for part in own if part[0] != "n0")
        block, shunned = int(rng.integers(1, 4)), {"n1"} if rng.random() < 0.2 else set()
        gpus, closed = block * int(rng.integers(1, 4)), {Market.ON_DEMAND} if rng.random() < 0.2 else set()
        kept = {node_id: had // block for node_id, had in own}
        open_ = {
            node.id: 0 if node.id in shunned or node.offer.market in closed else node.free // block
            for node in cluster.nodes.values()
            if node.phase is NodePhase.READY
        }
        most = {node_id: kept.get(node_id, 0) + free for node_id, free in open_.items()}
        ways = [
            dict(zip(most, way, strict=True))
            for way in product(*(range(n + 1) for n in most.values()))
            if sum(way) == gpus // block
        ]
        found = find_blocks(cluster, "p", own, gpus, block, shunned=shunned, closed=closed)
        assert (found is None) is (not ways)
        if found is None:
            continue
        found_some += 1
        blocks = {node_id: count // block for node_id, count in found}
        assert is_in_blocks(found, block)
        assert all(count for _, count in found)
        assert {node_id: blocks.get(node_id, 0) for node_id in most} in ways
        keeps = [sum(min(way[n], kept.get(n, 0)) for n in way) for way in ways]
        assert sum(min(blocks.get(n, 0), kept.get(n, 0)) for n in most) == max(keeps)
    assert 40 < found_some < 145


def test_beyond_its_own_nodes_spot_comes_first_then_the_emptiest_then_the_oldest():
    cluster = cluster_of(sure("d"), spot("full"), spot("b"), spot("c"), spot("other", pool="q"))
    cluster.take("x", "full", 3)
    cluster.take("x", "b", 2)
    assert find_blocks(cluster, "p", (), 2, 2) == (("c", 2),)
    assert dict(find_blocks(cluster, "p", (), 6, 2)) == {"c": 4, "b": 2}
    assert dict(find_blocks(cluster, "p", (), 8, 2)) == {"c": 4, "b": 2, "d": 2}
    assert find_blocks(cluster, "p", (), 12, 2) is None
    cluster.take("x", "c", 2)
    assert find_blocks(cluster, "p", (), 2, 2) == (("b", 2),)  # as empty, and older
    assert is_in_blocks((("a", 4), ("b", 2)), 2)
    assert not is_in_blocks((("a", 4), ("b", 1)), 2)


# ---------------------------------------------------------------------- in which form the survivors train


def broken(**facts):
    """It ran in four GPUs, was promised four, and can do with two."""
    job = {"gpus": 4, "min_gpus": 2, "max_gpus": 8, **facts.pop("job", {})}
    facts = {"shape": Shape("p", 4), "runs_in": Shape("p", 4), "phase": Phase.BROKEN, "gpu": "T4", **facts}
    return JobState(job=a_job("a", **job), seq=0, **facts)


def test_survivors_are_as_many_as_there_are_where_it_can_run_on_them():
    assert shape_of_survivors(broken(), (("a", 2), ("b", 1)), 0, ()) == Shape("p", 3)
    assert shape_of_survivors(broken(), (("a", 2),), 0, ()) == Shape("p", 2)
    assert shape_of_survivors(broken(), (("a", 1),), 0, ()) is None
    assert shape_of_survivors(broken(shape=None), (("a", 2),), 0, ()) is None
    assert shape_of_survivors(broken(runs_in=None), (("a", 2),), 0, ()) is None
    assert shape_of_survivors(broken(runs_in=Shape("q", 4)), (("a", 2),), 0, ()) is None  # on its way elsewhere


def test_of_those_on_demand_it_has_what_it_was_promised_or_what_is_left_and_never_less_than_its_core():
    promised = broken(shape=Shape("p", 4, steady=2))
    assert [shape_of_survivors(promised, (("a", 3),), sure, ()).steady for sure in (0, 1, 2, 3)] == [0, 1, 2, 2]
    core = broken(job={"min_on_demand": 1})
    assert shape_of_survivors(core, (("a", 3),), 0, ()) is None
    assert shape_of_survivors(core, (("a", 3),), 1, ()) == Shape("p", 3)


def test_a_grid_is_that_of_the_promise_or_the_one_that_ran_where_it_fits():
    facts = {"job": {"speed": IN_GRIDS}, "runs_in": Shape("p", 4, grid=Grid(1, 2))}
    state = broken(**facts, shape=Shape("p", 6, grid=Grid(2, 2)))
    assert shape_of_survivors(state, (("a", 4),), 0, ()) == Shape("p", 4, grid=Grid(2, 2))
    assert shape_of_survivors(state, (("a", 3),), 0, ()) == Shape("p", 3, grid=Grid(1, 2))
    wide = broken(**{**facts, "runs_in": Shape("p", 6, grid=Grid(3, 2))}, shape=Shape("p", 6, grid=Grid(2, 2)))
    assert shape_of_survivors(wide, (("a", 3),), 0, ()) is None


@pytest.mark.parametrize(("boot_s", "worth"), [(20.0, False), (20.1, True)])
def test_it_pays_where_a_new_node_takes_longer_than_two_pauses(boot_s, worth):
    plain = broken(job={"restart_s": 10.0})
    assert pays(plain, Shape("p", 2), boot_s) is worth
    own = broken(job={"pauses": EvenPauses(every_s=10.0), "survives": True})
    assert pays(own, Shape("p", 2), boot_s) is worth
    assert pays(broken(job={"pauses": EvenPauses(), "restart_s": 99.0}, runs_in=None), Shape("p", 2), 198.0) is False


@dataclass(frozen=True)
class ByLoss:
    """A second for each GPU that is lost or comes, and what is left of a pause."""

    lead_s: float = 0.0

    def pause_s(self, change):
        return change.left_s + change.lost + max(0, change.now.gpus - change.was.gpus)


def test_the_pauses_are_those_of_what_was_lost_and_of_what_comes_again():
    """Two of four are lost, with three seconds of a pause left: 2 + 3; and two come again: 7 s together."""
    state = broken(job={"pauses": ByLoss(), "survives": True}, left_s=3.0)
    assert not pays(state, Shape("p", 2), 7.0)
    assert pays(state, Shape("p", 2), 7.1)
    wider = replace(state, runs_in=Shape("p", 2))  # it ran on no more than is left: nothing is lost
    assert pays(wider, Shape("p", 2), 5.1)
    assert not pays(wider, Shape("p", 2), 5.0)


# ---------------------------------------------------------------------- spares


def gridded(**facts):
    """Two parts on four GPUs, the first two of them on demand: the others are spare."""
    runs_in = facts.pop("runs_in", Shape("p", 4, steady=2, grid=Grid(1, 2)))
    return broken(**{"phase": Phase.RUNNING, "runs_in": runs_in, "job": {"speed": IN_GRIDS}, **facts})


def test_a_node_with_spares_alone_may_go():
    cluster = cluster_of(sure("a"), spot("b"))
    placement = (("a", 2), ("b", 2))
    assert is_spare_of(gridded(), placement, "b", cluster)
    assert not is_spare_of(gridded(), placement, "a", cluster)
    assert not is_spare_of(gridded(phase=Phase.RESIZING), placement, "b", cluster)
    assert not is_spare_of(gridded(runs_in=None), placement, "b", cluster)
    assert not is_spare_of(gridded(runs_in=Shape("p", 4, steady=2)), placement, "b", cluster)
    assert not is_spare_of(gridded(runs_in=Shape("p", 4, grid=Grid(1, 2))), placement, "b", cluster)  # all are alike


def test_but_not_where_it_would_be_short_of_gpus_on_demand():
    """Those on demand sit first: of three the third is spare, and the promise or the core may need it."""
    cluster = cluster_of(sure("d"), sure("e"), spot("a"))
    placement = (("d", 2), ("e", 1), ("a", 1))
    for steady, core, may in ((2, 0, True), (3, 0, False), (2, 2, True), (2, 3, False)):
        shape = Shape("p", 4, steady=steady, grid=Grid(1, 2))
        job = {"speed": IN_GRIDS, "min_on_demand": core, "min_gpus": 3}
        assert is_spare_of(gridded(runs_in=shape, job=job), placement, "e", cluster) is may


def test_without_its_spares_it_goes_on_as_it_did_also_with_a_pause_under_way():
    state = gridded(gpus=4, as_of_s=50.0, left_s=9.0)
    left = without_spares(state, (("a", 2),), 40.0)
    assert (left.phase, left.gpus, left.as_of_s, left.left_s) == (Phase.RUNNING, 2, 50.0, 0.0)
    assert without_spares(state, (("a", 2),), 60.0).as_of_s == 60.0
