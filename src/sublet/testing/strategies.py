"""Strategies of hypothesis: jobs, offers, markets, clouds, policies. Small, and full of ties.

Times lie on a coarse grid, so that several things often happen at one instant; sizes are small, so that failing
examples can be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sublet import plugins
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.job import Job, Speed
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.errors import MissingExtra
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.sim.simulator import Cloud
from sublet.sim.world import Physics
from sublet.testing.values import Changes, EvenPauses

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as missing:
    raise MissingExtra("hypothesis", "testing") from missing

TICK_S = 15.0
WIDEST_MINIMUM = 8  # no job needs more GPUs than this, so that a cloud can promise to hold each of them
NODE_SIZES = (1, 2, 4, 8)

ticks = st.integers(0, 40).map(lambda n: n * TICK_S)
arrivals = st.integers(0, 12).map(lambda n: n * TICK_S)
prices = st.integers(1, 12).map(lambda n: Price(n * 500_000))
speeds: st.SearchStrategy[Speed] = st.one_of(
    st.just(Linear()),
    st.sampled_from([0.5, 0.9, 1.0]).map(lambda p: Amdahl(parallel=p)),
    st.sampled_from([0.0, 0.7]).map(lambda e: PowerLaw(exponent=e)),
)


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    most: int = 6,
    speeds: st.SearchStrategy[Speed] = speeds,
    submits: st.SearchStrategy[float] = arrivals,
) -> list[Job]:
    """One to `most` jobs: rigid and elastic, with and without pauses and checkpoints, or with pauses of their own."""
    return [draw(_job(f"j{at}", speeds, submits)) for at in range(draw(st.integers(1, most)))]


@st.composite
def _job(draw: st.DrawFn, job_id: str, speeds: st.SearchStrategy[Speed], submits: st.SearchStrategy[float]) -> Job:
    gpus = draw(st.integers(1, 10))
    rigid = draw(st.booleans())
    pauses = draw(st.sampled_from([None, None, EvenPauses(4.0), EvenPauses(9.0, lead_s=TICK_S)]))
    low = min(gpus, WIDEST_MINIMUM) if rigid else draw(st.integers(1, min(gpus, 4)))
    return Job(
        id=job_id,
        submit_s=draw(submits),
        work=float(draw(st.integers(1, 1500))),
        speed=draw(speeds),
        gpus=gpus,
        min_gpus=low,
        max_gpus=gpus if rigid else draw(st.integers(gpus, 12)),
        restart_s=draw(st.sampled_from([0.0, 0.0, 7.0, TICK_S])),
        checkpoint_every_s=draw(st.sampled_from([math.inf, 10.0, 40.0])),
        checkpoint_write_s=draw(st.sampled_from([0.0, 5.0, 200.0])),
        survives=pauses is not None,
        pauses=pauses,
    )


@st.composite
def offers(draw: st.DrawFn, *, most: int = 3) -> list[Offer]:
    """One to three offers in one or two pools."""
    pools = [("p0", "T4", draw(st.sampled_from(NODE_SIZES))), ("p1", "A100", draw(st.sampled_from(NODE_SIZES)))]
    drawn = []
    for at in range(draw(st.integers(1, most))):
        pool, gpu, size = pools[draw(st.integers(0, 1))]
        market = draw(st.sampled_from(Market))
        minimum_s, by_s = draw(st.sampled_from([(0.0, 0.0), (60.0, 0.0), (0.0, 40.0), (60.0, 25.0)]))
        price = draw(prices)
        drawn.append(
            Offer(
                id=f"o{at}",
                gpu=gpu,
                gpus_per_node=size,
                market=market,
                price=price,
                pool=pool,
                minimum_billing_s=minimum_s,
                billed_by_s=by_s,
            )
        )
    return drawn


@st.composite
def limits_and_budgets(
    draw: st.DrawFn, offers: Sequence[Offer], *, owned: bool = True
) -> tuple[dict[str, Limit], dict[str, int], Budget]:
    """Limits and quotas that let every offer alone hold the widest job; a budget that affords it at list prices."""
    limits, owned_usd, widest_usd = {}, 0, 0
    for offer in offers:
        nodes = math.ceil(WIDEST_MINIMUM / offer.gpus_per_node)
        low = draw(st.sampled_from([0, 0, 1])) if owned else 0
        high = draw(st.sampled_from([nodes, nodes + 1, nodes + 3, None]))
        limits[offer.id] = Limit(min_nodes=low, max_nodes=high)
        owned_usd += low * offer.price.micro_usd_per_h
        widest_usd = max(widest_usd, nodes * offer.price.micro_usd_per_h)
    burn = owned_usd + widest_usd + draw(st.sampled_from([0, 2_000_000, 20_000_000]))
    quotas = {}
    for pool in sorted({offer.pool for offer in offers}):
        owned_gpus = sum(limits[o.id].min_nodes * o.gpus_per_node for o in offers if o.pool == pool)
        if draw(st.booleans()):
            quotas[pool] = owned_gpus + WIDEST_MINIMUM + draw(st.sampled_from([0, 3, 8]))
    return limits, quotas, draw(st.sampled_from([UNLIMITED, Budget(burn=Price(burn))]))


@st.composite
def markets(
    draw: st.DrawFn, offers: Sequence[Offer], *, most: int = 12, losses: bool = True
) -> tuple[AvailabilityChanged | PriceChanged, ...]:
    """Changes in order of time, several at one instant; at the end everything can be had again at its list price."""
    changes: list[AvailabilityChanged | PriceChanged] = []
    for at_s in sorted(draw(st.lists(ticks, max_size=most))):
        offer = draw(st.sampled_from(offers))
        if losses and draw(st.sampled_from([True, True, False])):
            changes.append(AvailabilityChanged(at_s, offer.id, draw(st.sampled_from([0, 0, 1, 2, 5, None]))))
        else:
            price = draw(prices)  # above the cap, the cloud takes its nodes back
            changes.append(
                PriceChanged(at_s, offer.id, price if losses or offer.cap is None else min(price, offer.cap))
            )
    end_s = 41 * TICK_S
    for offer in offers:
        changes += [AvailabilityChanged(end_s, offer.id, None), PriceChanged(end_s, offer.id, offer.price)]
    return tuple(changes)


physics = st.builds(
    Physics,
    provision_s=st.sampled_from([0.0, 0.0, TICK_S, 40.0]),
    release_s=st.sampled_from([0.0, 0.0, 10.0]),
    notice_s=st.sampled_from([0.0, TICK_S, 120.0]),
    planning_s=st.sampled_from([0.0, 0.0, 1.0, 20.0]),
    round_s=st.sampled_from([0.0, 0.0, 2 * TICK_S]),
)


@st.composite
def clouds(
    draw: st.DrawFn,
    *,
    losses: bool = True,
    owned: bool = True,
    physics: st.SearchStrategy[Physics] = physics,
    most_offers: int = 3,
) -> Cloud:
    """Offers, limits, a budget, friction, and a market that ends in plenty: every job can finish in the end."""
    drawn = draw(offers(most=most_offers))
    limits, quotas, budget = draw(limits_and_budgets(drawn, owned=owned))
    changes = draw(markets(drawn, losses=losses))
    if owned and budget.burn is not None:  # what is owned is paid whatever it costs: keep its price where it was
        dear = {offer_id for offer_id, limit in limits.items() if limit.min_nodes}
        changes = tuple(c for c in changes if not (isinstance(c, PriceChanged) and c.offer_id in dear))
    return Cloud(
        offers=drawn, limits=limits, quotas=quotas, budget=budget, physics=draw(physics), market=Changes(changes)
    )


@st.composite
def mixed_clouds(draw: st.DrawFn, *, most: int = 12) -> Cloud:
    """A pool of both markets, which come and go, and no budget. In the end there is plenty of both."""
    size = draw(st.sampled_from([1, 2, 4]))
    drawn = [
        Offer(id=str(market), gpu="T4", gpus_per_node=size, market=market, price=draw(prices), pool="p0")
        for market in draw(st.permutations(list(Market)))
    ]
    limits = {offer.id: Limit(max_nodes=draw(st.sampled_from([None, WIDEST_MINIMUM]))) for offer in drawn}
    quotas = draw(st.sampled_from([{}, {"p0:on-demand": WIDEST_MINIMUM}, {"p0": 4 * WIDEST_MINIMUM}]))
    market = Changes(draw(markets(drawn, most=most)))
    return Cloud(offers=drawn, limits=limits, quotas=quotas, physics=draw(physics), market=market)


policies: st.SearchStrategy[Policy] = st.sampled_from(plugins.names("sublet.policies")).map(
    lambda name: plugins.load("sublet.policies", name)()  # type: ignore[operator]  # a policy without knobs
)


def reordered(cloud: Cloud, offers: list[Offer]) -> Cloud:
    """The same cloud with its offers listed in another order."""
    return replace(cloud, offers=offers)
