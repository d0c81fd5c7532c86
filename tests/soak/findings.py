"""What a soak found: laws that must hold, and figures beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sublet.domain.money import Money
from sublet.runtime.providers.local.build import local_offers
from tests.soak.faults import Faults
from tests.soak.machine import Sample
from tests.soak.work import Work
from tests.soak.world import SoakRig

__all__ = ["Findings", "Law", "findings_from", "table"]

MOST_GROWTH = 0.05  # of memory, after a warm-up
WARM_UP_S = 60.0
WAL_BYTES = 2 * 1000 * (4096 + 24)  # SQLite begins its own log anew at 1,000 pages; one commit may be long
SEEN_LATE_S = 1.0  # a node's end is seen at the next look
WINDOW = 5  # samples whose median is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One condition."""

    name: str
    holds: bool | None  # None = nothing was there to measure it by, and that is not to hold
    figure: str

    @property
    def verdict(self) -> str:
        """For a person."""
        return {True: "holds", False: "BROKEN", None: "not measured"}[self.holds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Laws, and everything else as facts for JSON."""

    laws: tuple[Law, ...]
    facts: dict[str, Any]

    @property
    def sound(self) -> bool:
        """Whether all were measured, and hold."""
        return all(law.holds is True for law in self.laws)

    @property
    def broken(self) -> list[str]:
        """Those that were measured, and do not."""
        return [law.name for law in self.laws if law.holds is False]


def findings_from(
    world: SoakRig,
    *,
    work: list[Work],
    ended: dict[str, dict[str, Any]],
    audit: dict[str, Any],
    bill: dict[str, Any],
    faults: Faults,
    log: str,
    idle: dict[str, Any],
    **run: float,
) -> Findings:
    """After everything has ended; `audit` has found no process and an exact ledger, or it would have raised."""
    speedup = run["speedup"]
    wrong = [f"{each.key}: {_wrong(world, each, ended)}" for each in work if _wrong(world, each, ended)]
    short_s, over_s = _against_the_machine(world, audit["leases"], speedup)
    controller = _growth(max(world.controllers, key=len))
    old = max(world.lives.values(), key=lambda life: len(life.samples), default=None)
    agent = _growth(old.samples if old is not None else [])
    parts = sum(job["usd_total"] for job in bill.get("jobs", []))
    usd = audit["spent"].usd
    errors = [line for line in log.splitlines() if " ERROR " in line or line.startswith("Traceback")]
    store, sizes, empties = idle["store"], world.store_sizes, (idle["empty"], idle["empty_again"])
    laws = (
        Law(name="every job came to its right end", holds=not wrong, figure=f"{len(work) - len(wrong)} of {len(work)}"),
        Law(name="one job per key", holds=len(ended) == len(work), figure=f"{len(ended)} jobs of {len(work)} keys"),
        Law(
            name="nothing is left running, no node is still rented", holds=True, figure=f"{audit['nodes']} nodes in all"
        ),
        Law(
            name="the bill is the sum of its leases, to the grain",
            holds=audit["spent"] == sum((lease.cost for lease in audit["leases"]), Money()),
            figure=f"USD {usd:.6f}",
        ),
        Law(name="jobs do not pay for more than was spent", holds=parts <= usd * (1 + 1e-6), figure=f"USD {parts:.6f}"),
        Law(name="the purse is kept", holds=usd <= run["purse_usd"], figure=f"{usd:.6f} of USD {run['purse_usd']:.2f}"),
        _budgets(world, work, ended, speedup),
        Law(
            name="no node lived longer than was paid for",
            holds=short_s <= SEEN_LATE_S,
            figure=f"{short_s:.2f} s at worst ({over_s:.1f} s too much at worst)",
        ),
        _within("memory of the controller", controller),
        _within("memory of an old agent", agent),
        Law(
            name="descriptors of the controller, without nodes",
            holds=idle["empty_again"]["files"] <= idle["empty"]["files"] if all(empties) else None,
            figure=" at first, ".join(f"{empty.get('files')}" for empty in empties) + " at the end",
        ),
        Law(
            name="descriptors of an old agent",
            holds=agent["files"] <= 0 if agent else None,
            figure=f"{agent['files']:+d}" if agent else "none was old enough",
        ),
        Law(
            name="the store grows by less than a kilobyte an event, and four a job",
            holds=store["at_the_end"] - store["at_first"] <= 1000 * audit["events"] + 4000 * len(work),
            figure=f"{store['at_first'] / 1e6:.2f} -> {store['at_the_end'] / 1e6:.2f} MB in {audit['events']} events",
        ),
        Law(
            name="SQLite's own log is begun anew",
            holds=world.longest_wal <= WAL_BYTES,
            figure=f"{world.longest_wal / 1e6:.2f} MB at most",
        ),
        Law(name="nothing unexpected in the controller's log", holds=not errors, figure=f"{len(errors)} errors"),
    )
    facts = {
        **run,
        "jobs": len(work),
        "phases": dict(Counter(view["phase"] for view in ended.values())),
        "faults": dict(faults.done),
        "faults_without_effect": dict(faults.idle),
        "preemptions_noticed": sum(view["preemptions_noticed"] for view in ended.values()),
        "preemptions_unnoticed": sum(view["preemptions_unnoticed"] for view in ended.values()),
        "resizes": sum(view["resizes"] for view in ended.values()),
        "controllers": len(world.controllers),
        "longest_away_s": world.longest_away_s,
        "nodes": audit["nodes"],
        "events": audit["events"],
        "told": dict(audit["told"]),
        "spent_usd": usd,
        "store_bytes": sizes[:: max(1, len(sizes) // 60)],
        "store_bytes_at_the_end": store["at_the_end"],
        "longest_wal_bytes": world.longest_wal,
        "controller_growth": controller,
        "agent_growth": agent,
        "errors": errors[:20],
        "wrong": wrong,
        "laws": {law.name: [law.holds, law.figure] for law in laws},
    }
    return Findings(laws=laws, facts=facts)


def table(found: Findings) -> str:
    """For a person."""
    width = max(len(law.name) for law in found.laws)
    rows = [f"{law.verdict:12}  {law.name:{width}}  {law.figure}" for law in found.laws]
    names = ("wall_s", "phases", "faults", "preemptions_noticed", "resizes", "controllers", "nodes", "events", "told")
    return "\n".join(
        [*rows, *(f"{name}: {found.facts[name]}" for name in names), *found.facts["wrong"], *found.facts["errors"]]
    )


def _wrong(world: SoakRig, work: Work, ended: dict[str, dict[str, Any]]) -> str:
    """ "" = as it should be."""
    view = ended.get(work.job_id)
    if view is None:
        return "unknown"
    may = (*work.ends, "cancelled") if work.job_id in world.cancelled else work.ends
    if view["phase"] not in may:
        return f"{view['phase']}: {view['error'] or view['reason']}"[:300]
    if view["phase"] == "finished":
        saved = next(iter(world.state.path.glob(f"jobs/{work.job_id}/checkpoints/step")), Path("/nowhere"))
        made = int(saved.read_text(encoding="ascii")) if saved.exists() else -1
        return "" if made == work.steps else f"finished after {made} of {work.steps} steps"
    return ""


def _budgets(world: SoakRig, work: list[Work], ended: dict[str, dict[str, Any]], speedup: float) -> Law:
    """Of jobs; beside a budget stands what its nodes cost while no controller was there to stop them."""
    name, breaks, worst, count = "no job spends more than its own budget", [], 0.0, 0
    dearest = max(offer.price.usd_per_h for offer in local_offers(world.settings, ()))
    for each in work:
        budget, view = each.facts.get("purse_usd"), ended.get(each.job_id)
        if budget is None or view is None:
            continue
        count += 1
        alone_usd = world.longest_away_s * speedup / 3600.0 * dearest * each.facts["max_workers"]
        worst = max(worst, view["usd_total"] / budget)
        if view["usd_total"] > budget + alone_usd:
            breaks.append(each.key)
    figure = f"{len(breaks)} breaks of {count} budgets, {worst:.0%} spent at most"
    return Law(name=name, holds=not breaks if count else None, figure=figure)


def _against_the_machine(world: SoakRig, leases: Any, speedup: float) -> tuple[float, float]:
    """(worst seconds that a node lived and were not paid, worst that were paid and it did not live), on the wall."""
    paid_s = {lease.node_id: (lease.end_us - lease.start_us) / 1e6 / speedup for lease in leases}
    off_s = [life.lasted_s - paid_s.get(life.node_id, 0.0) for life in world.lives.values()]
    return max(off_s, default=0.0), -min(off_s, default=0.0)


def _growth(samples: list[Sample]) -> dict[str, Any]:
    """Of one process, from its warm-up to its end; {} = it was not there for long."""
    warm = [each for each in samples if each.at_s >= samples[0].at_s + WARM_UP_S]
    if len(warm) < 2 * WINDOW:
        return {}
    first, last = warm[:WINDOW], warm[-WINDOW:]
    before, after = (median(each.rss_mb for each in part) for part in (first, last))
    return {
        "rss_mb": [round(before, 2), round(after, 2)],
        "growth": round(after / before - 1.0, 4),
        "files": min(each.files for each in last) - min(each.files for each in first),
        "threads": min(each.threads for each in last) - min(each.threads for each in first),
        "over_s": round(warm[-1].at_s - warm[0].at_s, 1),
    }


def _within(name: str, found: dict[str, Any]) -> Law:
    if not found:
        return Law(name=name, holds=None, figure="none lived long enough")
    before, after = found["rss_mb"]
    figure = f"{before} -> {after} MB ({found['growth']:+.2%} in {found['over_s']:.0f} s)"
    return Law(name=name, holds=found["growth"] < MOST_GROWTH, figure=figure)
