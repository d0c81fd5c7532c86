"""From settings to a controller: the one place where providers, engines, policies and the store are put together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from sublet import plugins
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.errors import BadInput, InvalidValue
from sublet.market.catalogue import load_catalogue
from sublet.market.hazard import trace_hazard
from sublet.market.spot import SpotTrace
from sublet.market.traces import load_trace
from sublet.policies.price.policy import in_a_hurry
from sublet.runtime.controller.loop import Controller
from sublet.runtime.controller.timekeeping import clock_from
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.private import private_folder
from sublet.runtime.providers.local.market import Strike
from sublet.runtime.providers.local.provider import LocalProvider
from sublet.runtime.settings import PRICED_LIKE, Settings
from sublet.runtime.store import Store

__all__ = ["budget_from", "controller_from", "market_in_the_box", "offers_in_the_box", "policy_from", "strike_from"]

NODES_IN_THE_BOX = 4  # at once, unless the user says otherwise
WIND_DOWN_WALL_S = 10.0  # to save, leave and end a node of the box
STRIKE_PARTS = 3


def controller_from(settings: Settings) -> ControllerApi:
    """A controller that has not started yet."""
    if "ray" in (settings.provider, settings.engine):
        return _on_ray(settings)
    if settings.provider == "aws" and settings.engine == "local":
        return _on_aws(settings)
    if settings.provider != "local" or settings.engine != "local":
        raise InvalidValue("provider", settings.provider, "local")
    state_dir = Path(settings.state_dir)
    _refuse_an_unwritable(state_dir)
    store = Store(state_dir / "log.sqlite")
    clock = clock_from(store, settings.speedup)
    traces = [load_trace(name, polarity=settings.polarity, repeat=True) for name in settings.market]
    offers = offers_in_the_box(settings, traces)
    provider = LocalProvider(
        state_dir=state_dir,
        clock=clock,
        offers=offers,
        market=market_in_the_box(settings, traces, offers),
        script=[strike_from(text) for text in settings.strikes],
        notice_s=settings.notice_s,
        boot_s=settings.boot_s,
        seed=settings.seed,
        lease_s=settings.lease_s,
    )
    policy = policy_from(settings)
    most = settings.most_nodes or NODES_IN_THE_BOX
    controller = Controller(
        state_dir=state_dir,
        store=store,
        provider=provider,
        engine=LocalEngine(f"unix:{state_dir / 'agents.sock'}", lease_s=settings.lease_s),
        policy=policy,
        clock=clock,
        budget=budget_from(settings),
        decide_limit_s=settings.decide_limit_s,
        limits={offer.id: Limit(max_nodes=most) for offer in offers},
    )
    return ControllerApi(controller, settings, warm=provider.warm)


def _on_ray(settings: Settings) -> ControllerApi:
    """The same controller over the nodes of a Ray cluster."""
    from sublet.runtime.providers.ray.build import ray_world

    if settings.provider != settings.engine:
        raise InvalidValue("engine", settings.engine, "ray where the provider is ray, and only there")
    state_dir = Path(settings.state_dir)
    _refuse_an_unwritable(state_dir)
    store = Store(state_dir / "log.sqlite")
    clock = clock_from(store, settings.speedup)
    wind_down_s = (WIND_DOWN_WALL_S + settings.lease_s / 3) * settings.speedup
    world = ray_world(state_dir, clock, lease_s=settings.lease_s, wind_down_s=wind_down_s)
    policy = policy_from(settings)
    controller = Controller(
        state_dir=state_dir,
        store=store,
        provider=world.provider,
        engine=world.engine,
        policy=policy,
        clock=clock,
        budget=budget_from(settings),
        decide_limit_s=settings.decide_limit_s,
        limits={offer_id: Limit(max_nodes=settings.most_nodes or most) for offer_id, most in world.most.items()},
    )
    return ControllerApi(controller, settings, warm=world.provider.warm)


def _on_aws(settings: Settings) -> ControllerApi:
    """The same controller over EC2 instances; agents come to a port on loopback, through a tunnel of the user's."""
    from sublet.runtime.kept import was_moved
    from sublet.runtime.providers.aws.provider import aws_provider, server_id_from

    state_dir = Path(settings.state_dir)
    _refuse_an_unwritable(state_dir)
    store = Store(state_dir / "log.sqlite")
    clock = clock_from(store, settings.speedup)
    provider, config = aws_provider(state_dir, clock, server_id_from(store), moved=was_moved(store, state_dir))
    most = settings.most_nodes
    controller = Controller(
        state_dir=state_dir,
        store=store,
        provider=provider,
        engine=LocalEngine(
            f"tcp:127.0.0.1:{config.agents_port}", lease_s=config.lease_s, port_field="aws.toml: agents_port"
        ),
        policy=policy_from(settings),
        clock=clock,
        budget=budget_from(settings),
        decide_limit_s=settings.decide_limit_s,
        limits={} if most is None else {offer.id: Limit(max_nodes=most) for offer in provider.offers},
    )
    return ControllerApi(controller, settings)


def strike_from(text: str) -> Strike:
    """`600:kill:1`: after 600 s of cloud time one node is taken without a word."""
    parts = text.split(":")
    if len(parts) != STRIKE_PARTS or parts[1] not in ("notice", "kill", "restore"):
        raise InvalidValue("strikes", text, "SECONDS:notice|kill|restore:NODES")
    try:
        return Strike(at_s=float(parts[0]), verb=parts[1], nodes=int(parts[2]))  # type: ignore[arg-type]
    except ValueError:
        raise InvalidValue("strikes", text, "SECONDS:notice|kill|restore:NODES") from None


def _refuse_an_unwritable(state_dir: Path) -> None:
    try:
        private_folder(state_dir)
        probe = state_dir / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        hint = "choose another with SUBLET_STATE=/path, or make room"
        raise BadInput(state_dir, f"cannot be written ({error.strerror})", hint=hint) from error


def offers_in_the_box(settings: Settings, traces: Sequence[SpotTrace]) -> tuple[Offer, ...]:
    """A spot and an on-demand node, priced like a real one."""
    catalogue = load_catalogue()
    wind_down_s = (WIND_DOWN_WALL_S + settings.lease_s / 3) * settings.speedup
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
                cap=Price(like.price.micro_usd_per_h * settings.slots_per_node),  # nobody raises it
                cloud="local",
                hazard_per_h=max(hazards, default=0.0) if market is Market.SPOT else 0.0,
                boot_s=settings.boot_s,
                wind_down_s=wind_down_s,
            )
        )
    return tuple(offers)


def market_in_the_box(
    settings: Settings, traces: Sequence[SpotTrace], offers: Sequence[Offer]
) -> Iterator[AvailabilityChanged]:
    """Supply of the spot offer: our share of what all zones of the first trace have together."""
    spot = next(offer for offer in offers if offer.market is Market.SPOT)
    start_s = settings.market_start_s
    for trace in traces[:1]:
        have: dict[str, int] = {}
        told = None
        for t_s, zone, available in trace.events(0.0, math.inf):
            if t_s > start_s and told is None:
                told = int(sum(have.values()) * settings.market_share)
                yield AvailabilityChanged(0.0, spot.id, told)
            have[zone] = available
            nodes = int(sum(have.values()) * settings.market_share)
            if t_s > start_s and nodes != told:
                told = nodes
                yield AvailabilityChanged(t_s - start_s, spot.id, nodes)


def policy_from(settings: Settings) -> Policy:
    """Who decides, by name; in a hurry or not."""
    policy = cast(Policy, cast(type, plugins.load("sublet.policies", settings.policy))())
    return in_a_hurry(policy) if settings.hurry else policy


def budget_from(settings: Settings) -> Budget:
    """What may be spent."""
    return Budget(
        burn=None if settings.burn_usd_per_h is None else Price.from_usd_per_h(settings.burn_usd_per_h),
        average=None if settings.average_usd_per_h is None else Price.from_usd_per_h(settings.average_usd_per_h),
        purse=None if settings.purse_usd is None else Money.from_usd(settings.purse_usd),
    )
