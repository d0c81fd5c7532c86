"""`sublet data` and `sublet data import`: what the studies read that is not ours to ship, and how to get it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, form, print_document, print_notes, print_table

if TYPE_CHECKING:
    from sublet_lab.imports.folder import Held

data_app = typer.Typer(
    help="With sublet-lab: what the studies read that does not ship, and how to get it.", rich_markup_mode=None
)


@data_app.callback(invoke_without_command=True)
def _data(context: typer.Context, output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """Data here, missing data, and how to get it. Every file that is here is read and compared."""
    from sublet import data
    from sublet.errors import InvalidValue
    from sublet_lab.imports.folder import ARTIFACTS, held

    if context.invoked_subcommand is not None:
        if opt.wants_document(output, json):
            raise InvalidValue("data", "its form", f"said after the verb: sublet data import NAME PATH -o {form.get()}")
        return

    found = [held(artifact) for artifact in ARTIFACTS]
    if opt.wants_document(output, json):
        listed = [_json_from(each) for each in found]
        folder = str(data.external())
        print_document({"schema_version": 1, "command": command_line(context), "folder": folder, "artifacts": listed})
        return
    rows = [[each.artifact.name, _told(each), each.artifact.gives, each.artifact.licence] for each in found]
    print_table(["artifact", "files", "without it one cannot run", "licence"], rows, words=(0, 1, 2, 3))
    print_notes([f"folder: {data.external()} (SUBLET_DATA)"])
    for line in _remedies(found):
        typer.echo(line)  # not folded: it is to be copied


@data_app.command("import")
def import_clone(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An artifact: 'sublet data' names them.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Your clone of its repository.")],
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Convert your clone of a published artifact into the files that the studies read, and compare digests."""
    from sublet import data
    from sublet_lab.imports.folder import State, artifact_of, expected, import_from

    states = import_from(artifact_of(name), path, data.external(), digests=expected(name))
    counts = {state: sum(each is state for each in states.values()) for state in (State.HERE, State.SHIPPED)}
    if opt.wants_document(output, json):
        files = {file: str(state) for file, state in states.items()}
        print_document({"schema_version": 1, "command": command_line(context), "artifact": name, "files": files})
        return
    written, equal = counts[State.HERE], counts[State.SHIPPED]
    typer.echo(f"{name}: {written} files written to {data.external()}, {equal} equal to what ships; digests agree")


def _told(each: Held) -> str:
    counts: dict[str, int] = {}
    for state in each.files.values():
        counts[str(state)] = counts.get(str(state), 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _remedies(found: list[Held]) -> list[str]:
    from sublet_lab.imports.folder import State

    told = []
    for each in found:
        if each.count(State.MISSING) or each.count(State.OTHER):
            name = each.artifact.name
            commands = (*each.artifact.clone_commands(name), f"sublet data import {name} {name}")
            told += [f"\n{name}:", *(f"  {command}" for command in commands)]
    return told


def _json_from(each: Held) -> dict[str, object]:
    artifact = each.artifact
    return {
        "name": artifact.name,
        "repository": artifact.repository,
        "branch": artifact.branch,
        "commit": artifact.commit,
        "licence": artifact.licence,
        "gives": artifact.gives,
        "files": {file: str(state) for file, state in each.files.items()},
    }
