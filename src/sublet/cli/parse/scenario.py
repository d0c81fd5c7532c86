"""From the options that `simulate`, `compare` and `plan` share to a workload, policies and the cloud they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sublet.cli.options import DEFAULT_GPUS, DEFAULT_OFFER, Meaning, meaning_of
from sublet.cli.parse.offers import find_offers
from sublet.cli.parse.values import measured_profiles, parse_budget_of, parse_money, parse_price, parse_speedup
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.domain.demand import Demand
    from sublet.domain.money import Price
    from sublet.domain.plan import Policy
    from sublet.sim.scenario import Scene
    from sublet.sim.workloads.workload import Workload
    from sublet.sim.world import Physics

BOOT_S = 120.0  # of a rented node; clouds take one to five minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOptions:
    """Options that `simulate` and `compare` share, as typed; a default says that an option was left out."""

    workload: str
    gpus: int | None = None
    budget: str | None = None
    average: str | None = None
    purse: str | None = None
    purses: Sequence[str] = ()
    offers: Sequence[str] = ()
    market: str | None = None
    polarity: Meaning | None = None
    spot_price: str | None = None
    prices_since: str | None = None
    as_gpu: str | None = None
    jobs: int | None = None
    speedup: str | None = None
    profile: str | None = None
    restart_s: float | None = None
    provision_s: float | None = None
    release_s: float = 0.0
    notice_s: float = 0.0
    planning_s: float = 0.0
    round_s: float = 0.0
    forecast: float = 0.0
    seed: int = 0
    report: Path | None = None
    quiet: bool = True


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


def workload_from(options: ScenarioOptions) -> Workload:
    """The jobs, as many as asked for, with the pause asked for."""
    from sublet.domain.quantity import at_least, whole
    from sublet.sim.workloads import load_workload
    from sublet.sim.workloads.measured import with_profile

    whole("--seed", options.seed)
    if options.jobs is not None:
        whole("--jobs", options.jobs, 1)
    speedup = None if options.speedup is None else parse_speedup(options.speedup)
    workload = load_workload(options.workload, speedup=speedup)
    if options.jobs is not None:
        workload = workload.head(options.jobs)
    notes = list(workload.notes)
    if speedup is not None and not any(job.speed is speedup for job in workload.jobs):
        notes.append("--speedup changes nothing here: every job has a measured profile")
    workload = replace(workload, notes=tuple(notes))
    if options.profile is not None:
        workload = with_profile(workload, measured_profiles(options.profile))
        notes = list(workload.notes)
    if options.restart_s is None:
        return workload
    at_least("--restart-s", options.restart_s, 0.0)
    notes.append(f"every start and resize takes {options.restart_s:g} s")
    jobs = tuple(replace(job, restart_s=options.restart_s) for job in workload.jobs)
    return replace(workload, jobs=jobs, notes=tuple(notes))


def scene_from(options: ScenarioOptions, workload: Workload) -> Scene:
    """The cloud that these jobs meet."""
    from sublet.sim import scenario

    for option, money in (("--budget", options.budget), ("--average", options.average)):
        if options.gpus is not None and money is not None and options.market is None:
            raise InvalidValue(option, money, "left out with --gpus: either own GPUs or rent them")
    if options.polarity is not None and options.market is None:
        raise InvalidValue("--polarity", options.polarity.value, "left out without --market")
    if options.spot_price is not None and options.market is None:
        raise InvalidValue("--spot-price", options.spot_price, "left out without --market")
    burn = None if options.budget is None else parse_price("--budget", options.budget)
    average = None if options.average is None else parse_price("--average", options.average)
    if options.market is not None:
        scene = _spot_scene(options, options.market, workload, burn)
    else:
        offers, notes = find_offers(options.offers or [DEFAULT_OFFER], options.as_gpu)
        if burn is not None or average is not None:
            scene = scenario.rented(offers, burn, physics=_physics(options, BOOT_S))
        else:
            if len(offers) > 1:
                raise InvalidValue("--offer", list(options.offers), "one offer with --gpus; several go with --budget")
            if options.gpus is None:
                notes = (*notes, f"{DEFAULT_GPUS} GPUs, because neither --gpus, --budget nor --market was given")
            gpus = DEFAULT_GPUS if options.gpus is None else options.gpus
            scene = scenario.owned(offers[0], gpus, physics=_physics(options, 0.0))
        scene = replace(scene, cloud=replace(scene.cloud, notes=(*scene.cloud.notes, *notes)))
    scenario.refuse_unknown_kinds(workload.jobs, scene.cloud.offers)
    if average is not None:
        scene = scenario.with_average(scene, average)
    if options.purse is not None:
        scene = scenario.with_total(scene, parse_money("--purse", options.purse))
    if options.purses:
        scene = scenario.with_budgets(scene, [parse_budget_of("--purse-of", text) for text in options.purses])
    if options.prices_since is None:
        return scene
    from sublet.sim.pricing import with_prices_since

    first_s = workload.jobs[0].submit_s
    return replace(scene, cloud=with_prices_since(scene.cloud, options.prices_since, first_s=first_s))


def forecast_from(options: ScenarioOptions, workload: Workload) -> tuple[Demand | None, tuple[str, ...]]:
    """The forecast of jobs to come for every policy, and a note on it."""
    from sublet.domain.demand import Demand
    from sublet.domain.quantity import at_least

    at_least("--forecast", options.forecast, 0.0)
    if options.forecast == 0.0 or workload.span_s == 0.0:
        return None, ("no policy is told anything of the jobs to come",)
    wrong = "" if options.forecast == 1.0 else f", times {options.forecast:g}"
    demand = Demand.from_jobs(workload.jobs, workload.span_s / SECONDS_PER_H / options.forecast)
    return demand, (f"all policies may know the rates at which the kinds of jobs arrive{wrong}",)


def _spot_scene(options: ScenarioOptions, market: str, workload: Workload, burn: Price | None) -> Scene:
    from sublet.domain.offer import Market
    from sublet.market.traces import load_trace
    from sublet.sim import scenario
    from sublet.sim.pricing import P3_TRACE, with_p3_prices

    trace = load_trace(market, polarity=meaning_of(options.polarity))
    offers, notes = find_offers(options.offers, None)
    spot = [offer for offer in offers if offer.market is Market.SPOT]
    beside = [offer for offer in offers if offer.market is not Market.SPOT]
    if len(spot) > 1:
        raise InvalidValue("--offer", list(options.offers), "at most one spot offer: what the nodes of the trace are")
    price = None if options.spot_price is None else parse_price("--spot-price", options.spot_price)
    zones, priced = scenario.spot_offers(trace, like=spot[0] if spot else None, price=price)
    notes = (*priced, *notes)
    if options.as_gpu is not None:
        zones = {zone: scenario.as_if(offer, options.as_gpu) for zone, offer in zones.items()}
        beside = [scenario.as_if(offer, options.as_gpu) for offer in beside]
        notes = (*notes, f"nodes are treated as if they had {options.as_gpu}s")
    first_s = workload.jobs[0].submit_s
    scene = scenario.spot_market(
        trace,
        zones,
        first_s=first_s,
        beside=beside,
        burn=burn,
        gpus=options.gpus,
        physics=_physics(options, BOOT_S),
        notes=notes,
    )
    if trace.name != P3_TRACE or price is not None or spot:
        return scene
    ids = {zone: offer.id for zone, offer in zones.items()}
    return replace(scene, cloud=with_p3_prices(scene.cloud, ids, first_s=first_s))


def _physics(options: ScenarioOptions, boot_s: float) -> Physics:
    from sublet.sim.world import Physics

    return Physics(
        provision_s=boot_s if options.provision_s is None else options.provision_s,
        release_s=options.release_s,
        notice_s=options.notice_s,
        planning_s=options.planning_s,
        round_s=options.round_s,
    )
