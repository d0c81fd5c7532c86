"""Finding room, against a plain count of what is free on which node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sublet.kernel.cluster import Cluster
from sublet.testing.strategies import NODE_SIZES
from sublet.testing.values import an_offer


@st.composite
def occupied(draw):
    """A cluster on which others use some GPUs and job "me" holds some; with how many it shall have."""
    size = draw(st.sampled_from(NODE_SIZES))
    cluster, offer, kept, free = Cluster(), an_offer(gpus=size), [], {}
    for at in range(draw(st.integers(1, 7))):
        node_id = f"n{at}"
        cluster.add(node_id, offer)
        cluster.ready(cluster.nodes[node_id])
        others = draw(st.integers(0, size))
        mine = draw(st.integers(0, size - others)) * draw(st.booleans())
        if others:
            cluster.take("others", node_id, others)
        if mine:
            cluster.take("me", node_id, mine)
            kept.append((node_id, mine))
        free[node_id] = size - others - mine
    return cluster, offer, tuple(draw(st.permutations(kept))), free, draw(st.integers(1, 7 * size))


def fewest(shares, gpus):
    """How many of these shares are needed to make up `gpus`, the largest first."""
    count = 0
    for share in sorted(shares, reverse=True):
        if gpus <= 0:
            break
        gpus -= share
        count += 1
    return count


@given(occupied())
def test_there_is_a_placement_exactly_when_there_is_room(case):
    cluster, offer, kept, free, gpus = case
    enough = gpus - sum(dict(kept).values()) <= sum(free.values())
    assert (cluster.rearrange(offer.pool, kept, gpus) is not None) == enough


@given(occupied())
def test_a_placement_has_the_gpus_asked_for_and_only_free_or_kept_ones(case):
    cluster, offer, kept, free, gpus = case
    placement = cluster.rearrange(offer.pool, kept, gpus)
    if placement is None:
        return
    assert sum(share for _, share in placement) == gpus
    assert len(dict(placement)) == len(placement)
    for node_id, share in placement:
        assert 0 < share <= dict(kept).get(node_id, 0) + free[node_id]


@given(occupied())
def test_what_is_held_is_kept_as_far_as_the_new_size_lets_it(case):
    cluster, offer, kept, _, gpus = case
    placement = cluster.rearrange(offer.pool, kept, gpus)
    if placement is None:
        return
    overlap = sum(min(share, dict(placement).get(node_id, 0)) for node_id, share in kept)
    assert overlap == min(gpus, sum(dict(kept).values()))


@given(occupied())
def test_shrinking_leaves_as_many_nodes_as_it_can(case):
    cluster, offer, kept, _, gpus = case
    held = sum(dict(kept).values())
    placement = cluster.rearrange(offer.pool, kept, gpus)
    if placement is not None and gpus <= held:
        assert len(placement) == fewest(dict(kept).values(), gpus)


@given(occupied())
def test_growing_fills_the_jobs_own_nodes_before_others(case):
    cluster, offer, kept, free, gpus = case
    placement = cluster.rearrange(offer.pool, kept, gpus)
    if placement is None or set(dict(placement)) <= set(dict(kept)):
        return
    for node_id, share in kept:
        assert dict(placement)[node_id] == share + free[node_id]


@given(occupied())
def test_beyond_its_own_nodes_a_job_spans_as_few_as_possible(case):
    cluster, offer, kept, free, gpus = case
    placement = cluster.rearrange(offer.pool, kept, gpus)
    if placement is None or gpus <= sum(dict(kept).values()):
        return
    missing = gpus - sum(share + free[node_id] for node_id, share in kept)
    others = [free[node_id] for node_id in free if node_id not in dict(kept)]
    assert len(placement) == len(kept) + fewest(others, missing)


@given(occupied())
def test_a_new_job_that_fits_one_node_gets_one_and_the_tightest(case):
    cluster, offer, _, free, gpus = case
    placement = cluster.rearrange(offer.pool, (), gpus)
    fitting = [room for room in free.values() if room >= gpus]
    if fitting:
        ((node_id, share),) = placement
        assert (share, free[node_id]) == (gpus, min(fitting))


@given(occupied())
def test_a_new_wide_job_takes_whole_nodes_first(case):
    cluster, offer, _, free, gpus = case
    placement = cluster.rearrange(offer.pool, (), gpus)
    size = offer.gpus_per_node
    if placement is not None:
        empty = sum(room == size for room in free.values())
        assert sum(share == size for _, share in placement) >= min(gpus // size, empty)


@given(occupied())
def test_looking_for_room_takes_none(case):
    cluster, offer, kept, free, gpus = case
    first = cluster.rearrange(offer.pool, kept, gpus)
    assert cluster.rearrange(offer.pool, kept, gpus) == first
    assert cluster.free_gpus[offer.pool] == sum(free.values())
    assert {node.id: node.free for node in cluster.nodes.values()} == free
