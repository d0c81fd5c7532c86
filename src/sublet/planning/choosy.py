"""Money that is kept for jobs whose owners want GPUs that are not the cheapest.

Money that all pools share goes to the cheapest one, and there may be no end to what that could use. A job that may not
run there would wait for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import merge
from itertools import takewhile

from sublet.domain.plan import JobState, Snapshot


def kept_for_choosy(snapshot: Snapshot) -> dict[str, float]:
    """Nodes by pool: the least of each job that may not run in the cheapest, by arrival, while its kind's share lasts.

    Their share of the burn budget is that of all jobs; the first of them may have more. Cost: O(jobs that run and
    jobs of this kind).
    """
    usd_per_gpu = {name: usd for name in snapshot.pools if math.isfinite(usd := _usd_per_gpu(snapshot, name))}
    if len(usd_per_gpu) < 2:  # noqa: PLR2004 - nothing to choose from
        return {}
    cheapest = min(usd_per_gpu, key=lambda name: (usd_per_gpu[name], name))
    choosy = [state for state in _bound(snapshot) if not state.job.may_run_in(cheapest)]
    burn = snapshot.budget.burn
    most_usd = math.inf if burn is None else burn.usd_per_h
    share_usd = most_usd * len(choosy) / (len(snapshot.active) + len(snapshot.waiting)) if choosy else 0.0
    gpus: dict[str, int] = {}
    nodes: dict[str, float] = {}
    for state in choosy:
        dear = min(
            (name for name in usd_per_gpu if state.job.may_run_in(name)), key=usd_per_gpu.__getitem__, default=""
        )
        if not dear:
            continue
        per_node = snapshot.pools[dear].gpus_per_node
        wanted = gpus.get(dear, 0) + state.job.min_gpus
        then = {**nodes, dear: math.ceil(wanted / per_node)}
        usd = sum(many * snapshot.pools[name].gpus_per_node * usd_per_gpu[name] for name, many in then.items())
        if usd > (share_usd if nodes else most_usd) or (nodes and burn is None):
            break
        gpus[dear], nodes = wanted, then
    return nodes


def _bound(snapshot: Snapshot) -> Iterator[JobState]:
    """Those that may not run everywhere, by arrival."""
    active = sorted((state for state in snapshot.active.values() if state.job.pools), key=_seq)
    waiting = takewhile(lambda state: state.job.pools, snapshot.waiting.by(_goes_anywhere))
    return merge(active, waiting, key=_seq)


def _goes_anywhere(state: JobState) -> float:
    return float(not state.job.pools)


def _seq(state: JobState) -> int:
    return state.seq


def _usd_per_gpu(snapshot: Snapshot, pool: str) -> float:
    """The cheapest that can be had there; inf where nothing can."""
    offers = (snapshot.offers[offer_id] for offer_id in snapshot.pools[pool].offer_ids)
    return min((each.price.usd_per_h / each.offer.gpus_per_node for each in offers if each.most > 0), default=math.inf)
