"""From what was typed to objects: the names of a command line become a workload, policies and a cloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sublet.cli.options import DEFAULT_GPUS, DEFAULT_OFFER, Meaning, meaning_of
from sublet.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    from sublet.domain.demand import Demand
    from sublet.domain.job import Speed
    from sublet.domain.money import Money, Price
    from sublet.domain.offer import Offer
    from sublet.domain.plan import Policy
    from sublet.sim.scenario import Scene
    from sublet.sim.workloads.workload import Workload
    from sublet.sim.world import Physics

__all__ = [
    "Asked",
    "forecast_from",
    "policies_from_names",
    "price_from_text",
    "scene_from",
    "speedup_from_text",
    "workload_from",
]

BOOT_S = 120.0  # of a rented node; clouds take one to five minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `simulate` and `compare` have in common, as it was typed."""

    workload: str
    gpus: int | None
    budget: str | None
    average: str | None
    purse: str | None
    offers: Sequence[str]
    market: str | None
    polarity: Meaning | None
    spot_price: str | None
    prices_since: str | None
    as_gpu: str | None
    jobs: int | None
    speedup: str | None
    restart_s: float | None
    provision_s: float | None
    release_s: float
    notice_s: float
    planning_s: float
    round_s: float
    forecast: float
    seed: int
    report: Path | None
    quiet: bool


def policies_from_names(names: Sequence[str], *, hurry: bool = False) -> dict[str, Policy]:
    """Each by its name, with its default knobs."""
    from sublet import plugins
    from sublet.policies.price.policy import in_a_hurry

    policies: dict[str, Policy] = {}
    for name in names:
        if name in policies:
            raise InvalidValue("--policies", ",".join(names), f"different names; {name} is there twice")
        policy = cast("type[Policy]", plugins.load("sublet.policies", name))()
        policies[name] = in_a_hurry(policy) if hurry else policy
    if not policies:
        known = ", ".join(plugins.names("sublet.policies"))
        raise InvalidValue("--policies", "", f"at least one of {known}")
    return policies


def workload_from(asked: Asked) -> Workload:
    """The jobs, as many as asked for, with the pause asked for."""
    from sublet.domain.quantity import at_least, whole
    from sublet.sim.workloads import load_workload

    whole("--seed", asked.seed)
    if asked.jobs is not None:
        whole("--jobs", asked.jobs, 1)
    speedup = None if asked.speedup is None else speedup_from_text(asked.speedup)
    workload = load_workload(asked.workload, speedup=speedup)
    if asked.jobs is not None:
        workload = workload.head(asked.jobs)
    notes = list(workload.notes)
    if speedup is not None and not any(job.speed is speedup for job in workload.jobs):
        notes.append("--speedup changes nothing here: every job has a measured profile")
    if asked.restart_s is None:
        return replace(workload, notes=tuple(notes))
    at_least("--restart-s", asked.restart_s, 0.0)
    notes.append(f"every start and resize takes {asked.restart_s:g} s")
    jobs = tuple(replace(job, restart_s=asked.restart_s) for job in workload.jobs)
    return replace(workload, jobs=jobs, notes=tuple(notes))


def scene_from(asked: Asked, workload: Workload) -> Scene:
    """The cloud that these jobs meet."""
    from sublet.sim import scenario

    for option, money in (("--budget", asked.budget), ("--average", asked.average)):
        if asked.gpus is not None and money is not None and asked.market is None:
            raise InvalidValue(option, money, "left out with --gpus: either own GPUs or rent them")
    if asked.polarity is not None and asked.market is None:
        raise InvalidValue("--polarity", asked.polarity.value, "left out without --market")
    if asked.spot_price is not None and asked.market is None:
        raise InvalidValue("--spot-price", asked.spot_price, "left out without --market")
    burn = None if asked.budget is None else price_from_text("--budget", asked.budget)
    average = None if asked.average is None else price_from_text("--average", asked.average)
    if asked.market is not None:
        scene = _spot_scene(asked, asked.market, workload, burn)
    else:
        offers, notes = _offers(asked.offers or [DEFAULT_OFFER], asked.as_gpu)
        if burn is not None or average is not None:
            scene = scenario.rented(offers, burn, physics=_physics(asked, BOOT_S))
        else:
            if len(offers) > 1:
                raise InvalidValue("--offer", list(asked.offers), "one offer with --gpus; several go with --budget")
            if asked.gpus is None:
                notes = (*notes, f"{DEFAULT_GPUS} GPUs, because neither --gpus, --budget nor --market was given")
            gpus = DEFAULT_GPUS if asked.gpus is None else asked.gpus
            scene = scenario.owned(offers[0], gpus, physics=_physics(asked, 0.0))
        scene = replace(scene, cloud=replace(scene.cloud, notes=(*scene.cloud.notes, *notes)))
    scenario.refuse_unknown_kinds(workload.jobs, scene.cloud.offers)
    if average is not None:
        scene = scenario.with_average(scene, average)
    if asked.purse is not None:
        scene = scenario.with_purse(scene, money_from_text("--purse", asked.purse))
    if asked.prices_since is None:
        return scene
    from sublet.sim.pricing import with_prices_since

    first_s = workload.jobs[0].submit_s
    return replace(scene, cloud=with_prices_since(scene.cloud, asked.prices_since, first_s=first_s))


def forecast_from(asked: Asked, workload: Workload) -> tuple[Demand | None, tuple[str, ...]]:
    """What every policy is told of the jobs to come, and a note on it."""
    from sublet.domain.demand import Demand
    from sublet.domain.quantity import at_least

    at_least("--forecast", asked.forecast, 0.0)
    if asked.forecast == 0.0 or workload.span_s == 0.0:
        return None, ("no policy is told anything of the jobs to come",)
    wrong = "" if asked.forecast == 1.0 else f", times {asked.forecast:g}"
    demand = Demand.from_jobs(workload.jobs, workload.span_s / 3600 / asked.forecast)
    return demand, (f"all policies may know the rates at which the kinds of jobs arrive{wrong}",)


def _spot_scene(asked: Asked, market: str, workload: Workload, burn: Price | None) -> Scene:
    from sublet.domain.offer import Market
    from sublet.market.traces import load_trace
    from sublet.sim import scenario
    from sublet.sim.pricing import P3_TRACE, with_p3_prices

    trace = load_trace(market, polarity=meaning_of(asked.polarity))
    offers, notes = _offers(asked.offers, None)
    spot = [offer for offer in offers if offer.market is Market.SPOT]
    beside = [offer for offer in offers if offer.market is not Market.SPOT]
    if len(spot) > 1:
        raise InvalidValue("--offer", list(asked.offers), "at most one spot offer: what the nodes of the trace are")
    price = None if asked.spot_price is None else price_from_text("--spot-price", asked.spot_price)
    zones, priced = scenario.spot_offers(trace, like=spot[0] if spot else None, price=price)
    notes = (*priced, *notes)
    if asked.as_gpu is not None:
        zones = {zone: scenario.as_if(offer, asked.as_gpu) for zone, offer in zones.items()}
        beside = [scenario.as_if(offer, asked.as_gpu) for offer in beside]
        notes = (*notes, f"nodes are treated as if they had {asked.as_gpu}s")
    first_s = workload.jobs[0].submit_s
    scene = scenario.spot_market(
        trace,
        zones,
        first_s=first_s,
        beside=beside,
        burn=burn,
        gpus=asked.gpus,
        physics=_physics(asked, BOOT_S),
        notes=notes,
    )
    if trace.name != P3_TRACE or price is not None or spot:
        return scene
    ids = {zone: offer.id for zone, offer in zones.items()}
    return replace(scene, cloud=with_p3_prices(scene.cloud, ids, first_s=first_s))


def _offers(texts: Sequence[str], as_gpu: str | None) -> tuple[list[Offer], tuple[str, ...]]:
    """The offers, and notes on what is odd about them."""
    from sublet.sim import scenario

    offers, notes = [], []
    for text in texts:
        offer, catalogue = _find(text)
        if offer in offers:
            raise InvalidValue("--offer", list(texts), f"different offers; {offer.id} is there twice")
        offers.append(offer)
        if catalogue:
            notes.append(f"the price of {offer.id} is of {catalogue}: it is no longer sold")
    if as_gpu is not None:
        offers = [scenario.as_if(offer, as_gpu) for offer in offers]
        notes.append(f"nodes are treated as if they had {as_gpu}s")
    return offers, tuple(notes)


def _find(text: str) -> tuple[Offer, str]:
    """In today's catalogue, else in an older one, which is named."""
    from sublet.market.catalogue import CATALOGUES, load_catalogue

    current, *older = CATALOGUES
    try:
        return load_catalogue(current).find(text), ""
    except UnknownName as error:
        for name in older:
            try:
                return load_catalogue(name).find(text), name
            except UnknownName:
                continue
        if "next:" in str(error):  # it knows why
            raise
        hint = "write CLOUD:TYPE[:REGION][:spot]; 'sublet offers --limit 0' lists them all"
        raise UnknownName("offer", text, error.known, hint=hint) from None


def _physics(asked: Asked, boot_s: float) -> Physics:
    from sublet.sim.world import Physics

    return Physics(
        provision_s=boot_s if asked.provision_s is None else asked.provision_s,
        release_s=asked.release_s,
        notice_s=asked.notice_s,
        planning_s=asked.planning_s,
        round_s=asked.round_s,
    )


def price_from_text(field: str, text: str) -> Price:
    """`60`, `USD 60`, `$60` or `60/h`: dollars per hour."""
    from sublet.domain.money import Price

    amount = text.strip().removeprefix("USD").removeprefix("$").strip().removesuffix("/h").strip()
    try:
        return Price.from_usd_per_h(amount)
    except InvalidValue:
        raise InvalidValue(field, text, "dollars per hour, a finite number of at least 0 such as 60 or 3.912") from None


def money_from_text(field: str, text: str) -> Money:
    """`300`, `USD 300` or `$300`: dollars."""
    from sublet.domain.money import Money

    try:
        money = Money.from_usd(text.strip().removeprefix("USD").removeprefix("$").strip())
    except InvalidValue:
        money = Money()
    if money <= Money():
        raise InvalidValue(field, text, "dollars, a finite number above 0 such as 300")
    return money


def speedup_from_text(text: str) -> Speed:
    """`linear`, `amdahl:0.95` or `power:0.8`."""
    from sublet.perf.speedup import Amdahl, Linear, PowerLaw

    model, _, number = text.partition(":")
    known = {"linear": "linear", "amdahl": "amdahl:0.95", "power": "power:0.8"}
    if model not in known:
        raise UnknownName("speedup", model, known, hint="give " + ", ".join(known.values()))
    if model == "linear" and not number:
        return Linear()
    try:
        value = float(number)
        if model == "amdahl":
            return Amdahl(parallel=value)
        if model == "power":
            return PowerLaw(exponent=value)
    except ValueError:  # InvalidValue is one too
        pass
    raise InvalidValue("--speedup", text, f"{known[model]}" + ("" if model == "linear" else ", a number from 0 to 1"))
