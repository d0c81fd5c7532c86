"""`sublet profiles`: measured speeds."""

from __future__ import annotations

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.data_files import describe_place, is_present
from sublet.cli.print.tables import command_line, print_document, print_table

__all__ = ["profiles"]


def profiles(context: typer.Context, output: OutputOption = Output.TABLE, json: Json = False) -> None:
    """Measured training speeds, with source and licence."""
    from sublet.perf.profiles import PROFILES

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
        print_document({"schema_version": 1, "command": command_line(context), "profiles": listed})
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
