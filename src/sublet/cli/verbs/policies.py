"""`sublet policies`: what is installed."""

from __future__ import annotations

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.tables import command_line, print_document, print_table

__all__ = ["policies"]


def policies(context: typer.Context, output: OutputOption = Output.TABLE, json: Json = False) -> None:
    """Policies that are installed, one line each."""
    from sublet import plugins

    found = {name: plugins.load("sublet.policies", name) for name in plugins.names("sublet.policies")}
    rows = [[name, _first_line(policy)] for name, policy in found.items()]
    if wants_document(output, json):
        listed = [{"name": name, "description": text} for name, text in rows]
        print_document({"schema_version": 1, "command": command_line(context), "policies": listed})
    else:
        print_table(["policy", "what it does"], rows, words=(0, 1))


def _first_line(policy: object) -> str:
    return (policy.__doc__ or "").strip().partition("\n")[0]
