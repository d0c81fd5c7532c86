"""How `sublet advise` answers: tables, notes and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.print.tables import command_line, print_notes, print_table
from sublet.domain.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sublet.advise.adviser import Advice, Ask, ClusterChoice
    from sublet.advise.error import KindError
    from sublet.advise.hazard import Reclaims
    from sublet.market.hygiene import Quarantined
    from sublet.sim.advice.replay import Quantiles, ReplayedWindows


def has_predictions(shown: Iterable[ClusterChoice]) -> bool:
    """Whether the speed of any of them was not measured."""
    return any(each.how.startswith("predicted") for each in shown)


def print_advice(
    ask: Ask,
    advice: Advice,
    shown: Mapping[ClusterChoice, ReplayedWindows],
    errors: Sequence[KindError],
    *,
    explain: bool,
) -> None:
    """Cost and time of each, the spread of both, and notes."""
    best = advice.best
    what = f"{ask.profile.name}, {ask.samples:,.0f} samples at a batch of {ask.profile.batch}"
    typer.echo(f"{what}: {_describe_goal(ask)}\n")
    rows = [
        [
            f"{'> ' if each == best else ''}{each}",
            _offer_name(each),
            f"{each.hours:,.2f}",
            f"{each.usd:,.2f}",
            f"{each.usd_per_h:,.2f}",
            f"+{100 * each.risk:.0f}%",
            f"{each.reclaims:.1f}",
            each.how.partition(" by")[0].partition(" as")[0],
        ]
        for each in shown
    ]
    titles = ["cluster", "offer", "hours", "USD", "USD/h", "1 in 20", "reclaims", "speed"]
    print_table(titles, rows, words=(0, 1, 7))
    typer.echo()
    _print_windows(ask, best, shown)
    legend = (
        f"> is {ask.goal} within the limits; {len(shown)} of {len(advice.frontier)} points of the frontier of time, "
        "dollars and risk are shown (--top); 1 in 20: that much longer in one run of twenty"
    )
    notes = [
        legend,
        *caveats(ask, shown, errors),
        _describe_checkpoints(best),
        f"in the way: {_binding(advice)}",
        *advice.changes,
    ]
    typer.echo()
    print_notes(notes)
    if explain:
        typer.echo("\nwhy")
        print_notes([*_reasons(best), *_other_places(advice)])


def _print_windows(ask: Ask, best: ClusterChoice, shown: Mapping[ClusterChoice, ReplayedWindows]) -> None:
    """Result of each in the windows."""
    limited = ask.limits.deadline_h < float("inf") or ask.limits.budget_usd < float("inf")
    rows = [
        [
            f"{'> ' if each == best else ''}{each}",
            *(_number(value) for value in (*found.hours, *found.usd)),
            *([f"{100 * found.share_within(ask.limits):.0f}%"] if limited else []),
            " ".join(found.traces) or "speed alone",
        ]
        for each, found in shown.items()
    ]
    titles = [
        "cluster",
        "h p10",
        "p50",
        "p90",
        "USD p10",
        "p50",
        "p90",
        *(["in limits"] if limited else []),
        "replayed",
    ]
    print_table(titles, rows, words=(0, len(titles) - 1))


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < float("inf") else "never"


def caveats(ask: Ask, shown: Mapping[ClusterChoice, ReplayedWindows], errors: Sequence[KindError]) -> list[str]:
    """How the quantiles come about, and how far predicted speeds are off."""
    from sublet.advise.error import error_note

    windows = next(iter(shown.values())).windows
    traced = any(found.traces for found in shown.values())
    on_spot = "start times spread over spot traces, whose losses and waits are replayed; " if traced else ""
    said = [f"p10, p50 and p90 are of {windows} runs: {on_spot}the speed varies by its spread, prices do not"]
    return [*said, error_note(ask.profile, errors)] if has_predictions(shown) else said


def _describe_checkpoints(best: ClusterChoice) -> str:
    """Place of checkpoints, and the events after a loss."""
    from sublet.advise.checkpointing import KEEPERS

    if best.keeper == "nothing":
        return "nodes on demand are not reclaimed: no time for checkpoints is counted"
    said = f"keep checkpoints {KEEPERS[best.keeper]}"
    if best.reclaims > 0:
        after = "go on with the nodes that are left" if best.goes_on else "wait for new nodes"
        said += f", one{_describe_interval(best)}{_describe_copies(best)}; after a loss {after}"
    return said + (f"; traffic between zones costs USD {best.traffic_usd:,.2f}" if best.traffic_usd else "")


def _describe_interval(choice: ClusterChoice) -> str:
    every_s = choice.checkpoint_every_s
    return f" every {every_s:,.0f} s" if every_s < float("inf") else " at each notice"


def _describe_copies(choice: ClusterChoice) -> str:
    every_s = choice.copied_every_s
    return f" and one of them in object storage every {every_s:,.0f} s" if every_s < float("inf") else ""


def _describe_goal(ask: Ask) -> str:
    limits = ask.limits
    said = []
    if "budget_usd" in limits.stated():
        said.append(f"for USD {limits.budget_usd:,.2f}")
    if "usd_per_h" in limits.stated():
        said.append(f"for USD {limits.usd_per_h:,.2f} per hour")
    if "deadline_h" in limits.stated():
        said.append(f"in {limits.deadline_h:,.1f} h")
    return " ".join([f"the {ask.goal}", *said])


def _binding(advice: Advice) -> str:
    from sublet.advise.adviser import WORDS

    return " and ".join(WORDS[name] for name in advice.binding) or "nothing but the offers themselves"


def _reasons(best: ClusterChoice) -> list[str]:
    """How the figures of the choice come about."""
    nodes = f"{best.nodes} nodes" if best.nodes > 1 else "one node"
    speed = f"{best.rate:,.1f} samples per second on {best.gpus} x {best.offer.gpu}, {best.how}"
    rent = f"USD {best.usd_per_h:,.3f} per hour in all, for {best.hours:,.2f} h"
    reasons = [
        f"{speed}; within {100 * best.spread:.0f} % in two of three cases",
        f"{nodes} of {best.offer.gpus_per_node} GPUs at {rent}",
    ]
    if best.reclaims > 0:
        reasons.append(
            f"{best.reclaims:.1f} reclaims are to be expected; they and checkpoints{_describe_interval(best)} "
            f"take {100 * best.lost_share:.1f} % of the time"
        )
    return reasons


def _other_places(advice: Advice) -> list[str]:
    """The same nodes with checkpoints elsewhere."""
    from sublet.advise.checkpointing import KEEPERS

    return [
        f"with checkpoints {KEEPERS[each.keeper]} instead: {each.hours:,.2f} h, USD {each.usd:,.2f}"
        for each in advice.beside
    ]


def notes_on_advice(ask: Ask, advice: Advice, quarantined: list[Quarantined], newest: str) -> list[str]:
    """Assumptions."""
    from sublet.advise.hazard import reclaims_of

    notes = [
        f"speed: {ask.profile.source}; the batch stays the same on any number of GPUs",
        f"{advice.offers:,} offers and {advice.clusters:,} clusters were weighed; prices of {newest} and before",
        f"{len(quarantined):,} prices are quarantined and never recommended: zero, negative, far out, stale and so on",
        f"every start takes {ask.provision_s:g} s for nodes and {ask.profile.restart_s:g} s for the job, both paid for",
        f"a checkpoint has {ask.profile.state_bytes / GIB:,.2f} GiB; intervals are those of Young and Daly",
        "networks are as the clouds document them, else guessed from the number of GPUs of a node",
    ]
    spot = {(each.offer.cloud, each.offer.gpu) for each in advice.frontier if each.spots}
    kinds: dict[Reclaims, list[str]] = {}
    for cloud, gpu in sorted(spot):
        kinds.setdefault(reclaims_of(cloud, gpu), []).append(f"{gpu} on {cloud}")
    for taken, names in kinds.items():
        span = f"{taken.low_per_h:.2f} to {taken.high_per_h:.2f}"
        notes.append(f"{taken.per_h:.2f} reclaims per node-hour ({span}), {taken.source}: {', '.join(names)}")
    return notes


def _offer_name(choice: ClusterChoice) -> str:
    """The name to copy, without its market."""
    return choice.offer.id.rpartition(":")[0]


def json_from_advice(
    context: typer.Context,
    ask: Ask,
    advice: Advice,
    shown: Mapping[ClusterChoice, ReplayedWindows],
    errors: Sequence[KindError],
) -> dict[str, Any]:
    """All of it; the replayed windows only for the clusters that the table would show."""

    def facts(choice: ClusterChoice) -> dict[str, Any]:
        found = shown.get(choice)
        return _json_from_choice(choice) | {"outlook": _json_from_windows(found, ask) if found else None}

    return {
        "schema_version": 1,
        "command": command_line(context),
        "model": ask.profile.name,
        "samples": ask.samples,
        "batch": ask.profile.batch,
        "goal": ask.goal,
        "limits": {name: getattr(ask.limits, name) for name in ask.limits.stated()},
        "best": facts(advice.best),
        "cheapest": facts(advice.cheapest),
        "fastest": facts(advice.fastest),
        "frontier": [facts(each) for each in advice.frontier],
        "beside": [facts(each) for each in advice.beside],
        "binding": list(advice.binding),
        "changes": list(advice.changes),
        "offers": advice.offers,
        "clusters": advice.clusters,
        "speed_errors": {each.kind: each.error for each in errors},
    }


def _json_from_windows(found: ReplayedWindows, ask: Ask) -> dict[str, Any]:
    def parts(quantiles: Quantiles) -> dict[str, float | None]:
        return {name: value if value < float("inf") else None for name, value in quantiles._asdict().items()}

    return {
        "hours": parts(found.hours),
        "usd": parts(found.usd),
        "reclaims": parts(found.reclaims),
        "share_within_limits": found.share_within(ask.limits),
        "windows": found.windows,
        "traces": list(found.traces),
    }


def _json_from_choice(choice: ClusterChoice) -> dict[str, Any]:
    every_s = choice.checkpoint_every_s
    return {
        "offer": choice.offer.id,
        "spot_offers": [spot.id for spot in choice.spots],
        "gpu": choice.offer.gpu,
        "nodes": choice.nodes,
        "nodes_on_demand": choice.steady,
        "gpus": choice.gpus,
        "market": choice.market,
        "zones": max(len(choice.spots), 1),
        "one_zone_at_a_time": choice.together or len(choice.spots) < 2,  # noqa: PLR2004 - several
        "after_a_loss": ("go on" if choice.goes_on else "wait") if choice.reclaims > 0 else None,
        "checkpoints": choice.keeper,
        "checkpoint_every_s": every_s if every_s < float("inf") else None,
        "checkpoint_write_s": choice.checkpoint_write_s,
        "copied_every_s": choice.copied_every_s if choice.copied_every_s < float("inf") else None,
        "hours": choice.hours,
        "late_h": choice.late_h,
        "risk": choice.risk,
        "usd": choice.usd,
        "usd_per_h": choice.usd_per_h,
        "traffic_usd": choice.traffic_usd,
        "samples_per_s": choice.rate,
        "reclaims": choice.reclaims,
        "lost_share": choice.lost_share,
        "speed": choice.how,
        "spread": choice.spread,
    }
