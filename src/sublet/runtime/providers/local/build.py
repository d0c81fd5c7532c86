"""From settings to a cloud on this machine: two offers priced like real ones, and a market from recorded traces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import InvalidValue
from sublet.market.catalogue import load_catalogue
from sublet.market.hazard import trace_hazard
from sublet.market.spot import SpotTrace
from sublet.market.traces import load_trace
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local.market import Strike
from sublet.runtime.providers.local.provider import Box, LocalProvider
from sublet.runtime.providers.setup import ProviderSetup, require_engine, wind_down_s
from sublet.runtime.settings import PRICED_LIKE, Settings
from sublet.runtime.store import Store

DEFAULT_NODES = 4  # at once, unless the user says otherwise
STRIKE_PARTS, STRIKE_FORM = 3, "SECONDS|SHARE%:notice|kill|restore:NODES"
ROUNDS = 2  # of a trace that starts again: what did not change in so many never does


def build(settings: Settings, clock: Clock, store: Store) -> ProviderSetup:
    """A cloud of processes; agents come to a socket in the state directory."""
    del store  # it keeps its own files
    require_engine(settings, "local")
    state_dir = Path(settings.state_dir)
    traces = [load_trace(name, polarity=settings.polarity, repeat=True) for name in settings.market]
    offers = local_offers(settings, traces)
    provider = LocalProvider(
        state_dir=state_dir,
        clock=clock,
        offers=offers,
        market=local_supply(settings, traces, offers),
        script=[strike_from_text(text) for text in settings.strikes],
        box=Box(notice_s=settings.notice_s, boot_s=settings.boot_s, seed=settings.seed, lease_s=settings.lease_s),
    )
    most = settings.most_nodes or DEFAULT_NODES
    return ProviderSetup(
        provider=provider,
        address=f"unix:{state_dir / 'agents.sock'}",
        lease_s=settings.lease_s,
        limits={offer.id: Limit(max_nodes=most) for offer in offers},
        warm=provider.warm,
    )


def strike_from_text(text: str) -> Strike:
    """`600:kill:1`: at 600 s of cloud time one node is taken without a word; `60%:kill:1`: at 60 % of the work."""
    parts = text.split(":")
    if len(parts) != STRIKE_PARTS or parts[1] not in ("notice", "kill", "restore"):
        raise InvalidValue("strikes", text, STRIKE_FORM)
    try:
        when = float(parts[0].removesuffix("%"))
        at = {"share": when / 100.0} if parts[0].endswith("%") else {"at_s": when}
        return Strike(verb=parts[1], nodes=int(parts[2]), **at)  # type: ignore[arg-type]  # one of three, as above
    except ValueError:
        raise InvalidValue("strikes", text, STRIKE_FORM) from None


def local_offers(settings: Settings, traces: Sequence[SpotTrace]) -> tuple[Offer, ...]:
    """A spot and an on-demand node, priced like a real one."""
    catalogue = load_catalogue()
    hazards = [trace_hazard(trace).pooled.per_h or 0.0 for trace in traces]
    offers = []
    for market in (Market.SPOT, Market.ON_DEMAND):
        like = catalogue.find(f"{PRICED_LIKE}:{market}")
        offers.append(
            Offer(
                id=f"local:{market}",
                gpu=like.gpu,
                gpus_per_node=settings.slots_per_node,
                market=market,
                price=Price(like.price.micro_usd_per_h * settings.slots_per_node),
                cap=Price(like.price.micro_usd_per_h * settings.slots_per_node),  # it is never raised
                pool=f"{like.gpu}x{settings.slots_per_node}" if settings.mix_markets else "",
                cloud="local",
                hazard_per_h=max(hazards, default=0.0) if market is Market.SPOT else 0.0,
                notice_s=settings.notice_s if market is Market.SPOT else 0.0,
                boot_s=settings.boot_s,
                wind_down_s=wind_down_s(settings),
            )
        )
    return tuple(offers)


def local_supply(
    settings: Settings, traces: Sequence[SpotTrace], offers: Sequence[Offer]
) -> Iterator[AvailabilityChanged]:
    """Supply of the spot offer: our share of what all zones of the first trace have together.

    A trace that starts again may go on for ever; this ends where our share no longer changes.
    """
    spot = next(offer for offer in offers if offer.market is Market.SPOT)
    start_s = settings.market_start_s
    for trace in traces[:1]:
        have: dict[str, int] = {}
        last, said_s = None, start_s
        for t_s, zone, available in trace.events(start_s, math.inf):
            have[zone] = available
            if len(have) < len(trace.zones):  # the state at the start is told zone by zone
                continue
            nodes = int(sum(have.values()) * settings.market_share)
            if nodes != last:
                last, said_s = nodes, t_s
                yield AvailabilityChanged(t_s - start_s, spot.id, nodes)
            elif trace.repeat and t_s - said_s > ROUNDS * trace.span_s:
                return
