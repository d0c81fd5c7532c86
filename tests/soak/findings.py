"""What a soak found: laws that must hold, and figures beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sublet.domain.money import Money
from tests.soak.faults import Faults
from tests.soak.machine import Sample
from tests.soak.work import Work
from tests.soak.world import SoakRig

__all__ = ["Findings", "Law", "findings_from", "table"]

MOST_GROWTH = 0.05  # of memory, after a warm-up
WARM_UP_S = 60.0
WAL_BYTES = 5_000_000  # SQLite's own log is cut at 1,000 pages, and keeps its length
SEEN_LATE_S = 1.0  # a node's end is seen at the next look
WINDOW = 5  # samples whose median is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One condition."""

    name: str
    holds: bool
    figure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Laws, and everything else as facts for JSON."""

    laws: tuple[Law, ...]
    facts: dict[str, Any]

    @property
    def sound(self) -> bool:
        """Whether all hold."""
        return all(law.holds for law in self.laws)


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
    sizes = world.store_sizes
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
        Law(
            name="no node lived longer than was paid for",
            holds=short_s <= SEEN_LATE_S,
            figure=f"{short_s:.2f} s at worst ({over_s:.1f} s too much at worst)",
        ),
        _within("memory of the controller", controller),
        _within("memory of an old agent", agent),
        Law(
            name="descriptors of the controller, without nodes",
            holds=idle["empty_again"].get("files", 0) <= idle["empty"].get("files", 0) + 1,
            figure=f"{idle['empty'].get('files')} at first, {idle['empty_again'].get('files')} at the end",
        ),
        Law(
            name="descriptors of an old agent",
            holds=agent.get("files", 0) <= 0,
            figure=f"{agent.get('files', 0):+d}" if agent else "none was old enough",
        ),
        Law(
            name="the store grows by less than a kilobyte an event",
            holds=idle["store"] <= WAL_BYTES + 1000 * audit["events"] + 4000 * len(work),
            figure=f"{idle['store'] / 1e6:.2f} MB after {audit['events']} events, {len(work)} jobs",
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
        "nodes": audit["nodes"],
        "events": audit["events"],
        "told": dict(audit["told"]),
        "spent_usd": usd,
        "store_bytes": sizes[:: max(1, len(sizes) // 60)],
        "store_bytes_at_the_end": idle["store"],
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
    rows = [f"{'holds' if law.holds else 'BROKEN':6}  {law.name:{width}}  {law.figure}" for law in found.laws]
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
        return Law(name=name, holds=True, figure="none lived long enough to be measured")
    before, after = found["rss_mb"]
    figure = f"{before} -> {after} MB ({found['growth']:+.2%} in {found['over_s']:.0f} s)"
    return Law(name=name, holds=found["growth"] < MOST_GROWTH, figure=figure)
