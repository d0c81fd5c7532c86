"""`sublet traces`: records of spot markets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.tables import command_line, describe_place, is_present, print_document, print_notes, print_table
from sublet.domain.units import SECONDS_PER_H

if TYPE_CHECKING:
    from sublet.market.hazard import TraceHazard
    from sublet.market.traces import TraceFacts

__all__ = ["traces"]


def traces(context: typer.Context, output: OutputOption = Output.TABLE, json: Json = False) -> None:
    """Records of spot markets, with source and licence."""
    from sublet.market.hazard import trace_hazard
    from sublet.market.traces import TRACES, load_trace

    here = {name: load_trace(name) for name, facts in TRACES.items() if is_present(facts.file)}
    hazards = {name: trace_hazard(here[name]) if name in here else None for name in TRACES}
    put_right = {name: list(here[name].notes) if name in here else [] for name in TRACES}
    if wants_document(output, json):
        listed = [
            {**_json_from_trace(name, facts, hazards[name]), "notes": put_right[name]} for name, facts in TRACES.items()
        ]
        print_document({"schema_version": 1, "command": command_line(context), "traces": listed})
        return
    titles = [
        "trace",
        "node",
        "GPU",
        "zones",
        "hours",
        "mean nodes",
        "lost/node-h",
        "kind",
        "source",
        "licence",
        "data",
    ]
    rows = [_row_from_trace(name, facts, hazards[name]) for name, facts in TRACES.items()]
    print_table(titles, rows, words=(0, 1, 2, 7, 8, 9, 10))
    print_notes(
        [
            "mean nodes: on average to be had, all zones together",
            "lost/node-h: in brackets where no node was held, so that a fall is not sure to be a loss",
            *(f"{name}: {note}" for name, notes in put_right.items() for note in notes),
        ]
    )


def _row_from_trace(name: str, facts: TraceFacts, hazard: TraceHazard | None) -> list[str]:
    zones = mean = lost = "-"
    if hazard is not None:
        zones, mean = f"{len(hazard.zones)}", f"{hazard.pooled.mean_available:,.1f}"
        rate = hazard.pooled.per_h
        lost = "-" if rate is None else f"{rate:.3f}" if hazard.observed else f"({rate:.3f})"
    gpu = facts.gpu if facts.gpus_per_instance is None else f"{facts.gpus_per_instance} x {facts.gpu}"
    return [
        *(name, f"{facts.cloud} {facts.instance_type}", gpu, zones, f"{facts.span_s / SECONDS_PER_H:,.1f}", mean, lost),
        *(facts.kind, facts.source, facts.licence, describe_place(facts.file, bundled=facts.bundled)),
    ]


def _json_from_trace(name: str, facts: TraceFacts, hazard: TraceHazard | None) -> dict[str, object]:
    return {
        "name": name,
        "cloud": facts.cloud,
        "instance_type": facts.instance_type,
        "gpu": facts.gpu,
        "gpus_per_instance": facts.gpus_per_instance,
        "span_s": facts.span_s,
        "zones": None if hazard is None else list(hazard.zones),
        "mean_available": None if hazard is None else hazard.pooled.mean_available,
        "hazard_per_h": None if hazard is None else hazard.pooled.per_h,
        "hazard_observed": None if hazard is None else hazard.observed,
        "kind": facts.kind,
        "source": facts.source,
        "licence": facts.licence,
        "bundled": facts.bundled,
        "present": is_present(facts.file),
    }
