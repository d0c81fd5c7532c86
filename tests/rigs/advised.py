"""A toy of a cluster as the adviser sees it, and a trace of one zone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sublet.advise.adviser import Ask, advise
from sublet.advise.profiles import Profile
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.market.catalogue import load_gpus
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps

TOY = Profile(
    name="toy",
    batch=4096,
    state_bytes=1e9,
    restart_s=20.0,
    source="a test",
    spread=0.0,
)
SPOT, ON_DEMAND = (
    Offer(
        id=f"aws:t4x1:{market}",
        gpu="T4",
        gpus_per_node=1,
        market=market,
        price=Price.from_usd_per_h(usd),
        cloud="aws",
        instance_type="t4x1",
    )
    for market, usd in ((Market.SPOT, "0.25"), (Market.ON_DEMAND, "1.0"))
)


def chosen(samples, offers=(SPOT,), *, keeper="storage", nodes=4, steady=0, spread=0.0, fewer=0.0):
    """A cluster of so many nodes, as the adviser sees it; fewer nodes are as fast as `fewer` says, each by all."""
    rates = {n: fewer * n for n in range(1, nodes)} if fewer else {}
    profile = replace(TOY, rates={"T4": rates | {nodes: float(nodes)}}, spread=spread)
    ask = Ask(profile=profile, samples=samples, most_nodes=8, provision_s=10.0, resolution=0.0)
    advice = advise(ask, offers, load_gpus())
    found = (advice.best, *advice.beside, *advice.frontier)
    return next(each for each in found if (each.keeper, each.nodes, each.steady) == (keeper, nodes, steady)), ask


def trace(rows, span_s, *, most=None):
    t_s, value = (np.array(column) for column in zip(*rows, strict=True))
    return SpotTrace(
        name="test",
        series={"z": Steps(t_s=t_s, value=value)},
        end_s={"z": span_s},
        span_s=span_s,
        max_available=int(value.max()) if most is None else most,
    )
