"""Result of a rehearsal, as a table, the differences and what to do; or as a document."""

from __future__ import annotations

from dataclasses import asdict

import typer

from sublet.cli.print.tables import print_notes, print_table
from sublet.runtime.rehearsal.report import Difference, Report

EXIT_CODES = {"alike": 0, "differs": 1, "cannot run": 2}
RUNS = {
    "one": "one worker",
    "seed": "the same, another seed",
    "width": "{workers} workers",
    "kill": "the same, with kills and a restart",
}


def print_report(found: Report) -> None:
    """For people."""
    rows = [
        [
            RUNS[run.name].format(workers=run.workers),
            *(str(run.steps), run.weights, run.loss, run.lines, run.files, f"{run.seconds:.1f} s"),
        ]
        for run in found.runs
    ]
    print_table(["run", "steps", "weights", "s.loss", "lines", "files", "took"], rows, words=())
    typer.echo()
    if found.why:
        typer.echo(f"It cannot run:\n{found.why}")
        return
    typer.echo(f"{found.verdict}." if found.differences else "alike: nothing differs beyond rounding and noise.")
    for each in found.differences:
        typer.echo(_told(each))
    for each in found.noise[:1]:
        typer.echo(f"noise: with another seed, {_where(each)}: {each.evidence}")
    print_notes(found.notes)


def _told(each: Difference) -> str:
    which = {"width": "at more workers", "kill": "after a kill"}.get(each.run, each.run)
    return f"- {which}, {_where(each)}: {each.evidence}\n    {each.advice}"


def _where(each: Difference) -> str:
    step = "" if each.step is None else f"after step {each.step}, "
    return f"{step}{each.kind}" + (f" {each.name}" if each.name and each.kind in ("weights", "file") else "")


def document_of(found: Report, command: str) -> dict[str, object]:
    """For programs."""
    return {
        "schema_version": 1,
        "command": command,
        "verdict": found.verdict,
        "why": found.why,
        "runs": [asdict(run) for run in found.runs],
        "differences": [asdict(each) for each in found.differences],
        "noise": [asdict(each) for each in found.noise],
        "notes": list(found.notes),
    }
