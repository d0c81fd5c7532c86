"""`sublet profiles`: measured speeds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.tables import command_line, describe_place, is_present, print_document, print_table
from sublet.domain.units import GB

if TYPE_CHECKING:
    from sublet.perf.live.stored import StoredProfile

__all__ = ["profiles"]


def profiles(context: typer.Context, output: OutputOption = Output.TABLE, json: Json = False) -> None:
    """Measured training speeds: those that come along, with source and licence, and those of jobs that ran here."""
    from sublet.perf.profiles import PROFILES
    from sublet.runtime.profiles.store import ProfileStore
    from sublet.runtime.settings import default_state_dir

    own = list(ProfileStore(default_state_dir() / "profiles").all())
    if wants_document(output, json):
        listed = [
            {
                "name": profile.name,
                "description": profile.description,
                "source": profile.source,
                "licence": profile.licence,
                "bundled": profile.bundled,
                "present": is_present(f"profiles/{profile.file}"),
                "columns": [column.name for column in profile.columns],
            }
            for profile in PROFILES
        ]
        measured = [{**asdict(profile), "rows": [asdict(row) for row in profile.rows]} for profile in own]
        found = {"schema_version": 1, "command": command_line(context), "profiles": listed, "measured": measured}
        print_document(found)
        return
    rows = [
        [
            profile.name,
            profile.description,
            profile.source,
            profile.licence,
            describe_place(f"profiles/{profile.file}", bundled=profile.bundled),
        ]
        for profile in PROFILES
    ]
    print_table(["profile", "what it is", "source", "licence", "data"], rows, words=range(5))
    if own:
        typer.echo()
        rows = [
            [
                profile.name,
                f"CPUs, as {profile.gpu}" if profile.is_of_cpus else profile.gpu,
                " ".join(sorted({str(row.gpus) for row in profile.rows}, key=int)),
                f"{profile.batches[1]} to {profile.batches[2]}",
                "" if profile.noise is None else f"{profile.noise:,.0f}",
                _memory(profile),
                profile.script[:12],
                profile.torch,
                profile.date[:10],
            ]
            for profile in own
        ]
        titles = ["measured here", "GPU", "widths", "batches", "noise", "memory", "script", "torch", "date"]
        print_table(titles, rows, words=(0, 1, 2, 3, 5, 6, 7, 8))


def _memory(profile: StoredProfile) -> str:
    """The most that was seen on a GPU, and the samples at a time with which; "" where it cannot be told."""
    if not profile.memory:
        return ""
    samples, most = max(profile.memory.items(), key=lambda each: each[1])
    return f"{most / GB:.3g} GB at {samples}"
