"""`sublet workloads`: jobs that can be simulated by name."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.tables import command_line, describe_place, is_present, print_document, print_notes, print_table

if TYPE_CHECKING:
    from sublet.sim.workloads.catalog import Entry

__all__ = ["workloads"]


def workloads(
    context: typer.Context,
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only names that contain this.")] = "",
    output: OutputOption = Output.TABLE,
    json: Json = False,
) -> None:
    """Job traces that have a name, with source and licence."""
    from sublet.sim.workloads.catalog import CATALOG
    from sublet.sim.workloads.recipe import EXAMPLE

    entries = [entry for name, entry in CATALOG.items() if contains in name]
    jobs = _jobs_by_file()
    if wants_document(output, json):
        listed = [_json_from_entry(entry, jobs.get(entry.file)) for entry in entries]
        print_document({"schema_version": 1, "command": command_line(context), "workloads": listed})
        return
    rows = [
        [
            entry.name,
            jobs.get(entry.file, "-"),
            entry.description,
            entry.source,
            entry.licence,
            describe_place(entry.file, bundled=entry.bundled),
        ]
        for entry in entries
    ]
    print_table(["workload", "jobs", "what it is", "source", "licence", "data"], rows, words=(0, 2, 3, 4, 5))
    print_notes([f"generated ones have recipes, for example {EXAMPLE}", "for your own, give the path of a CSV file"])


def _json_from_entry(entry: Entry, jobs: str | None) -> dict[str, object]:
    return {
        "name": entry.name,
        "jobs": None if jobs is None else int(jobs),
        "description": entry.description,
        "source": entry.source,
        "licence": entry.licence,
        "bundled": entry.bundled,
        "present": is_present(entry.file),
    }


def _jobs_by_file() -> dict[str, str]:
    """Rows of each trace as the indexes beside them state: to count them would take seconds."""
    from sublet import data

    jobs: dict[str, str] = {}
    for index in (data.external() / "jobs/index.csv", data.bundled("jobs/index.csv")):
        if index.exists():
            with index.open(encoding="utf-8", newline="") as file:
                jobs |= {f"jobs/{row['file']}": row["jobs"] for row in csv.DictReader(file)}
    return jobs
