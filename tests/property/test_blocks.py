"""Room in whole blocks, against a plain count of the blocks on each node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.offer import Market
from sublet.kernel.blocks import find_blocks, is_in_blocks
from sublet.kernel.cluster import Cluster
from sublet.testing.values import an_offer

OFFERS = {
    Market.SPOT: an_offer("s", gpus=8, pool="p"),
    Market.ON_DEMAND: an_offer("d", gpus=8, pool="p", market=Market.ON_DEMAND),
}


@st.composite
def occupied(draw):
    """A cluster, what "me" holds in blocks, what is free, how many blocks of which size are asked for, and of whom."""
    block, cluster, kept, free = draw(st.sampled_from([1, 2, 3, 4, 8])), Cluster(), [], {}
    for at in range(draw(st.integers(1, 6))):
        node_id = f"n{at}"
        cluster.add(node_id, OFFERS[draw(st.sampled_from(list(Market)))])
        cluster.ready(cluster.nodes[node_id])
        others = draw(st.integers(0, 8))
        mine = block * draw(st.integers(0, (8 - others) // block))
        for name, gpus in (("others", others), ("me", mine)):
            if gpus:
                cluster.take(name, node_id, gpus)
        kept += [(node_id, mine)] if mine else []
        free[node_id] = 8 - others - mine
    shunned = draw(st.sets(st.sampled_from(sorted(free))))
    return cluster, tuple(kept), free, block, block * draw(st.integers(1, 12)), shunned


@given(occupied())
def test_blocks_are_found_exactly_when_there_is_room_for_them_and_none_is_split(case):
    cluster, kept, free, block, gpus, shunned = case
    room = {n: dict(kept).get(n, 0) + (0 if n in shunned else each) for n, each in free.items()}  # kept is in blocks
    found = find_blocks(cluster, "p", kept, gpus, block, shunned=shunned)
    assert (found is not None) == (sum(each // block for each in room.values()) * block >= gpus)
    if found is None:
        return
    assert sum(share for _, share in found) == gpus
    assert is_in_blocks(found, block)
    assert all(0 < share <= room[node_id] for node_id, share in found)
    lost = sum(max(0, share - dict(found).get(node_id, 0)) for node_id, share in kept)
    assert lost == max(0, sum(share for _, share in kept) - gpus)  # it leaves nothing that it need not leave
