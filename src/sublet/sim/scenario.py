"""The cloud of a simulation, from what a person would say: GPUs that are owned, dollars per hour, a spot market.

Assumptions on the way are written into the notes of the cloud, for readers of the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sublet.domain.budget import UNLIMITED, Budget, Limit, amount_text
from sublet.domain.events import AvailabilityChanged, PurseSet
from sublet.domain.job import Job
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import whole
from sublet.domain.shape import packed
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible, InvalidValue, UnknownName
from sublet.market.catalogue import CATALOGUES, load_catalogue, load_gpus
from sublet.market.hazard import Hazard, trace_hazard
from sublet.market.spot import SpotTrace
from sublet.market.traces import TRACES
from sublet.planning.widths import useful_widths
from sublet.sim.simulator import Cloud, Run
from sublet.sim.world import FRICTIONLESS, Physics

WHOLE = 0.99  # of the span of a trace: a zone that is recorded for less ends early
MOST_TOLD = 3  # of what the user was told, in the notes of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cloud, and when the record of its market ends (None = it has no record)."""

    cloud: Cloud
    record_ends_s: float | None = None

    def notes_on(self, run: Run) -> tuple[str, ...]:
        """Notes for a reader of this run's figures, beyond the notes of the cloud."""
        notes = []
        end_s = run.record.held[-1][0]
        if self.record_ends_s is not None and end_s > self.record_ends_s:
            beyond_h = (end_s - self.record_ends_s) / SECONDS_PER_H
            notes.append(f"the run outlasted the market trace by {beyond_h:.1f} h, for which its last values hold")
        if self.cloud.prices_end_s is not None and end_s > self.cloud.prices_end_s:
            beyond_h = (end_s - self.cloud.prices_end_s) / SECONDS_PER_H
            notes.append(
                f"the run outlasted the record of prices by {beyond_h:.1f} h, for which the last price is held"
            )
        if run.unfinished:
            shown = ", ".join(run.unfinished[:3]) + (" ..." if len(run.unfinished) > 3 else "")  # noqa: PLR2004 - as many as fit a line
            notes.append(
                f"{len(run.unfinished)} of {run.metrics.jobs} jobs never ended ({shown}): "
                "completion times are over those that did"
            )
        told = run.record.told
        notes += [f"told: {text}" for text in told[:MOST_TOLD]]
        if len(told) > MOST_TOLD:
            notes.append(f"told: {len(told) - MOST_TOLD} more of this kind")
        return tuple(notes)


# ---------------------------------------------------------------------- clouds


def owned(offer: Offer, gpus: int, *, physics: Physics = FRICTIONLESS) -> Scene:
    """`gpus` GPUs that are held from beginning to end, at the price of `offer`.

    Fewer GPUs than a node has are one smaller node at its share of the price; other numbers must fill whole nodes.
    """
    whole("gpus", gpus, 1)
    notes = []
    if gpus < offer.gpus_per_node:
        share = Price(round(offer.price.micro_usd_per_h * gpus / offer.gpus_per_node))
        notes.append(f"one node with {gpus} of the {offer.gpus_per_node} GPUs of {offer.id}, at its share of the price")
        offer = replace(offer, gpus_per_node=gpus, price=share, pool="")
    nodes, rest = divmod(gpus, offer.gpus_per_node)
    if rest:
        low = nodes * offer.gpus_per_node
        allowed = f"a multiple of {offer.gpus_per_node}, the GPUs of one node of {offer.id}"
        raise InvalidValue("gpus", gpus, f"{allowed}: {low} or {low + offer.gpus_per_node}")
    notes.append(f"{gpus} GPUs are always held: {nodes} x {_describe_offer(offer)}")
    limits = {offer.id: Limit(min_nodes=nodes, max_nodes=nodes)}
    return Scene(cloud=Cloud(offers=(offer,), limits=limits, physics=physics, notes=tuple(notes)))


def rented(offers: Sequence[Offer], burn: Price | None = None, *, physics: Physics = FRICTIONLESS) -> Scene:
    """Nodes come and go; what is held never costs more than `burn` per hour."""
    if burn is not None:
        _refuse_an_empty_budget(offers, burn)
    notes = ["rented:" if burn is None else f"rented within USD {burn.usd_per_h:,.2f} per hour:"]
    for offer in offers:
        price = offer.price.micro_usd_per_h
        most = "any number" if burn is None or not price else f"at most {burn.micro_usd_per_h // price}"
        notes.append(f"{most} x {_describe_offer(offer)}")
    notes = [" ".join(notes)] if len(notes) == 2 else notes  # noqa: PLR2004 - one offer needs no list
    if any(offer.market is Market.SPOT for offer in offers):
        notes.append("spot nodes are never taken back here: give a --market for that")
    notes.append(_boot_note(physics))
    offers = _booting(offers, physics)
    return Scene(cloud=Cloud(offers=offers, budget=Budget(burn=burn), physics=physics, notes=tuple(notes)))


def spot_market(
    trace: SpotTrace,
    offers: Mapping[str, Offer],
    *,
    first_s: float,
    beside: Sequence[Offer] = (),
    burn: Price | None = None,
    gpus: int | None = None,
    physics: Physics = FRICTIONLESS,
    notes: Sequence[str] = (),
) -> Scene:
    """The zones of `trace`, one offer each, whose supply follows the record; its clock starts at `first_s`.

    `beside` is rented on other markets at the same time. `burn` caps the dollars per hour, `gpus` the spot GPUs.
    """
    everything = _booting((*offers.values(), *beside), physics)
    budget = UNLIMITED
    if burn is not None:
        _refuse_an_empty_budget(everything, burn)
        budget = Budget(burn=burn)
    quotas = {} if gpus is None else _spot_quota(offers, gpus)

    def changes() -> Iterator[AvailabilityChanged]:
        for t_s, zone, available in trace.events(0.0, math.inf):
            yield AvailabilityChanged(first_s + t_s, offers[zone].id, available)

    told = [
        f"spot supply in {_count(len(offers), 'zone')} follows {trace.name} ({trace.span_s / SECONDS_PER_H:.1f} h)",
        *_ends_early(trace),
        *notes,
        *(f"beside it, on demand: {_describe_offer(offer)}" for offer in beside),
        *([f"never above USD {burn.usd_per_h:,.2f} per hour"] if burn is not None else []),
        *([f"never more than {gpus} spot GPUs"] if gpus is not None else []),
        _boot_note(physics),
    ]
    cloud = Cloud(offers=everything, quotas=quotas, budget=budget, physics=physics, market=changes, notes=tuple(told))
    return Scene(cloud=cloud, record_ends_s=first_s + trace.span_s)


def _ends_early(trace: SpotTrace) -> list[str]:
    """Zones whose record is shorter than the trace: their nodes after that are unknown."""
    early = {zone: end_s for zone, end_s in trace.end_s.items() if end_s < WHOLE * trace.span_s}
    goes_on = "nothing new" if trace.repeat else "its last number"
    return [
        f"{zone} is recorded for {end_s / SECONDS_PER_H:.1f} h only: {goes_on} after that"
        for zone, end_s in early.items()
    ]


def with_average(scene: Scene, average: Price) -> Scene:
    """The same cloud, with so much to spend per hour in the long run."""
    cloud = scene.cloud
    note = f"USD {average.usd_per_h:,.2f} per hour are to be spent in the long run, by policies that aim at it"
    budget = replace(cloud.budget, average=average)
    return replace(scene, cloud=replace(cloud, budget=budget, notes=(*cloud.notes, note)))


def with_total(scene: Scene, purse: Money) -> Scene:
    """The same cloud, with so much to spend in all; every node keeps back what giving it up may cost."""
    cloud = scene.cloud
    offers = tuple(replace(offer, wind_down_s=cloud.physics.release_s) for offer in cloud.offers)
    note = f"{purse} are spent in all and not a cent more; jobs that are left then can be resumed"
    budget = replace(cloud.budget, purse=purse)
    return replace(scene, cloud=replace(cloud, offers=offers, budget=budget, notes=(*cloud.notes, note)))


def with_budgets(scene: Scene, purses: Sequence[PurseSet]) -> Scene:
    """The same cloud, with what teams, users and jobs may spend of it."""
    cloud = scene.cloud
    offers = tuple(replace(offer, wind_down_s=cloud.physics.release_s) for offer in cloud.offers)
    told = [f"{p.holder} may spend {amount_text(p.amount, p.period)}" for p in purses if p.amount is not None]
    notes = (*cloud.notes, *told, "periods go by a calendar whose first second is that of the workload's clock")
    return replace(scene, cloud=replace(cloud, offers=offers, purses=(*cloud.purses, *purses), notes=notes))


# ---------------------------------------------------------------------- offers


def spot_offers(
    trace: SpotTrace, *, like: Offer | None = None, price: Price | None = None
) -> tuple[dict[str, Offer], tuple[str, ...]]:
    """One offer per zone of the trace, and notes on how they were priced.

    The kind of node is that of `like`, else what the source of the trace states. The price is `price`, else that of
    `like`, else the catalogue's: of the zone's region where it is listed, else the median of all regions.
    """
    gpu, gpus = (like.gpu, like.gpus_per_node) if like else (trace.gpu, trace.gpus_per_instance)
    if not gpu or gpus is None:
        allowed = "cloud:instance_type:spot, because the trace does not say which GPUs its nodes have"
        raise InvalidValue("--offer", None, allowed)
    facts = TRACES.get(trace.name)
    cloud, kind = (
        (like.cloud, like.instance_type) if like else (facts.cloud, facts.instance_type) if facts else ("", "")
    )
    fixed = price or (like.price if like else None)
    listed, where = ((), "") if fixed else _find_listed(cloud, kind, gpu, gpus)
    if fixed is None and not listed:
        raise InvalidValue(
            "--spot-price", None, f"USD per hour of a {kind or gpu} node: no catalogue has its spot price"
        )
    hazard = trace_hazard(trace)
    at_once = {zone: _at_once(seen) for zone, seen in hazard.zones.items()}
    prices = {zone: fixed or _regional(listed, zone) for zone in trace.zones}
    offers = {
        zone: Offer(
            id=f"{zone}:spot",
            gpu=gpu,
            gpus_per_node=gpus,
            market=Market.SPOT,
            price=prices[zone],
            cloud=cloud,
            zone=zone,
            instance_type=kind,
            hazard_per_h=hazard.pooled.per_h or 0.0,
            reclaim_share=at_once[zone],
        )
        for zone in trace.zones
    }
    low, high = min(prices.values()).usd_per_h, max(prices.values()).usd_per_h
    span = f"USD {low:,.3f}" if low == high else f"USD {low:,.3f} to {high:,.3f}"
    source = "as given" if price else f"as of {like.id}" if like else where
    return offers, (f"a spot node ({gpus} x {gpu}) costs {span} per hour, {source}",)


def as_if(offer: Offer, gpu: str) -> Offer:
    """The same node with other GPUs in it, at the same price."""
    known = load_gpus()
    if gpu not in known:
        raise UnknownName("GPU kind", gpu, known)
    return replace(offer, gpu=gpu, pool="")


def refuse_unknown_kinds(jobs: Sequence[Job], offers: Sequence[Offer]) -> None:
    """A job that goes at speed 0 on everything on offer would never end: say so before anything runs."""
    nodes = {(offer.gpu, offer.gpus_per_node) for offer in offers}
    verdicts: dict[tuple[int, int, int, int], bool] = {}
    misfits = []
    for job in jobs:
        key = (id(job.speed), job.gpus, job.min_gpus, job.max_gpus)  # jobs of one model share their speed
        if key not in verdicts:
            verdicts[key] = any(_runs_on(job, gpu, gpus_per_node) for gpu, gpus_per_node in nodes)
        if not verdicts[key]:
            misfits.append(job)
    if not misfits:
        return
    kinds = sorted({offer.gpu for offer in offers})
    known = [gpu for gpu in load_gpus() if all(_runs_on(job, gpu, size) for job in misfits[:1] for _, size in nodes)]
    hint = f"rent a kind that was measured ({', '.join(known)}) with --offer" if known else "give another --offer"
    if known:
        hint += f", or add --as-gpu {known[0]} to treat these nodes as if they had {known[0]}s"
    raise Infeasible(
        f"{len(misfits)} of {len(jobs)} jobs have no speed on {' or '.join(kinds)}, such as {misfits[0].id}",
        binding="number of jobs that can run",
        needed=len(jobs),
        available=len(jobs) - len(misfits),
        hint=hint,
    )


# ---------------------------------------------------------------------- helpers


def _runs_on(job: Job, gpu: str, gpus_per_node: int) -> bool:
    widths = dict.fromkeys([job.gpus, job.min_gpus, *useful_widths(job, gpus_per_node, math.inf)])
    return any(job.speed.rate(gpu, packed(gpus, gpus_per_node), 0.0) > 0 for gpus in widths)


def _booting(offers: Sequence[Offer], physics: Physics) -> tuple[Offer, ...]:
    """Offers that say how long a node takes to boot here, and how long before it is taken we are told."""
    return tuple(
        replace(offer, boot_s=physics.provision_s, notice_s=physics.notice_s if offer.market is Market.SPOT else 0.0)
        for offer in offers
    )


def _refuse_an_empty_budget(offers: Sequence[Offer], burn: Price) -> None:
    cheapest = min(offers, key=lambda offer: offer.price)
    if cheapest.price > burn:
        raise Infeasible(
            f"not one node of {cheapest.id} can be rented",
            binding="--budget, in USD per hour,",
            needed=cheapest.price.usd_per_h,
            available=burn.usd_per_h,
            hint="raise --budget, or look for a cheaper node with: sublet offers --limit 20",
        )


def _spot_quota(offers: Mapping[str, Offer], gpus: int) -> dict[str, int]:
    """The cap over all zones, which are one pool."""
    offer = next(iter(offers.values()))
    if gpus % offer.gpus_per_node or not gpus:
        raise InvalidValue("gpus", gpus, f"a multiple of {offer.gpus_per_node}, the GPUs of one spot node")
    return {offer.pool: gpus}


def _find_listed(cloud: str, kind: str, gpu: str, gpus: int) -> tuple[tuple[Offer, ...], str]:
    """Spot offers of this very type, or at least of this cloud and GPU; the newest catalogue that has any."""
    for exact in (True, False):
        for name in CATALOGUES:
            every = load_catalogue(name).select(market=Market.SPOT)
            found = [o for o in every if o.cloud == cloud and (o.gpu, o.gpus_per_node) == (gpu, gpus)]
            if exact:
                found = [o for o in found if o.instance_type == kind]
            if found:
                what = kind if exact else f"a {cloud} node with {gpus} x {gpu}"
                return tuple(found), f"the price of {what} in the {name} catalogue"
    return (), ""


def _regional(listed: Sequence[Offer], zone: str) -> Price:
    """AWS writes a zone as its region and a letter, Google as its region, a hyphen and a letter."""
    here = [o.price.micro_usd_per_h for o in listed if o.region and o.region in {zone[:-1], zone[:-2]}]
    return Price(round(median(here or [o.price.micro_usd_per_h for o in listed])))


def _at_once(seen: Hazard) -> float:
    """The share of the nodes of a zone that a fall took on average."""
    return min(1.0, seen.losses / seen.falls / seen.mean_available) if seen.falls and seen.mean_available else 0.0


def _describe_offer(offer: Offer) -> str:
    return f"{offer.id} ({offer.gpus_per_node} x {offer.gpu}) at USD {offer.price.usd_per_h:,.3f} per hour"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _boot_note(physics: Physics) -> str:
    return f"a node is paid for from its order on and takes {physics.provision_s:g} s to boot"
