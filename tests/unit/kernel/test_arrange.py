"""Where GPUs of one market are found for a job: the whole placement, beside a slow twin that goes by the book."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.domain.plan import Packing
from sublet.kernel.cluster import Cluster
from sublet.testing.values import an_offer

SIZE = 4


def any_cluster(rng, packing):
    """Some nodes, on which others and the job hold something. The cluster, what the job has, and who changed last."""
    cluster, changed = Cluster(), []
    cluster.packing = packing
    names = [f"n{at}" for at in range(int(rng.integers(1, 6)))]
    for name in names:
        cluster.add(name, an_offer("o", gpus=SIZE, pool="p"))
        cluster.ready(cluster.nodes[name])
        changed.append(name)
    kept = {}
    for name in rng.permutation(names).tolist():
        for job, most in (("other", SIZE), ("own", 2)):
            gpus = int(rng.integers(0, min(most, cluster.nodes[name].free) + 1)) if rng.random() < 0.6 else 0
            if gpus:
                cluster.take(job, name, gpus)
                changed.remove(name)
                changed.append(name)
                if job == "own":
                    kept[name] = gpus
    return cluster, kept, changed


def by_hand(cluster, kept, gpus, shunned, changed):
    """Who shrinks leaves where it has least; who grows fills its own nodes, then whole nodes, then the tightest fit.

    Where nothing fits, the emptiest. Of nodes alike the one that has been so for longest, or told to take the
    emptiest always, the oldest of these.
    """
    share, missing = dict(kept), gpus - sum(kept.values())
    if missing < 0:
        for name in sorted(kept, key=lambda name: kept[name]):
            less = min(-missing, kept[name])
            share[name] -= less
            missing += less
        return {name: held for name, held in share.items() if held}
    free = {name: cluster.nodes[name].free for name in changed if name not in shunned}
    if missing > sum(free.values()):
        return None
    for name in kept:
        more = min(missing, free.pop(name, 0))
        share[name] += more
        missing -= more
    while missing:
        if cluster.packing is Packing.EMPTIEST:
            name = max(free, key=lambda name: (free[name], -cluster.nodes[name].number))
        else:
            fitting = [name for name in free if free[name] >= min(missing, SIZE)]
            name = min(fitting, key=lambda name: free[name]) if fitting else max(free, key=lambda name: free[name])
        share[name] = min(missing, free.pop(name))
        missing -= share[name]
    return share


@pytest.mark.parametrize("packing", list(Packing))
def test_gpus_are_found_as_by_hand(packing):
    rng, outcomes = np.random.default_rng(15), {"none": 0, "less": 0, "more": 0}
    for _ in range(600):
        cluster, kept, changed = any_cluster(rng, packing)
        gpus = int(rng.integers(0, 2 * SIZE + 2))
        shunned = frozenset(name for name in changed if rng.random() < 0.2)
        twin = by_hand(cluster, kept, gpus, shunned, changed)
        found = cluster.rearrange("p", tuple(kept.items()), gpus, shunned)
        assert (None if found is None else dict(found)) == twin
        outcomes["none" if twin is None else "less" if gpus < sum(kept.values()) else "more"] += 1
    assert min(outcomes.values()) > 50
