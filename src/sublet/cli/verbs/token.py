"""`sublet token create|list|revoke`: keys for others, with a name and a scope."""

from __future__ import annotations

from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document, print_table

__all__ = ["token_app"]


token_app = typer.Typer(help="Keys to the controller for others, with a name and a scope.", rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; what they do is in the history under it.")]


@token_app.command()
def create(
    name: Name,
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="read: look at all; user: bring and change jobs; admin: everything.")
    ] = "read",
    user: Annotated[str, typer.Option(metavar="NAME", help="User who pays for its jobs. [default: its name]")] = "",
    team: Annotated[str, typer.Option(metavar="NAME", help="Team of that user, which pays with them.")] = "",
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Make a token, and show it this once."""
    from sublet.api.client import connect

    client = connect()
    made = client.post("/v1/tokens", {"name": name, "scope": scope, "user": user, "team": team})
    if opt.wants_document(output, json):
        print_document(made)
        return
    typer.echo(made["token"])
    typer.echo(
        f"is the token of {name} ({scope}), shown this once; with it: SUBLET_SERVER={client.address} SUBLET_TOKEN=...",
        err=True,
    )


@token_app.command("list")
def list_tokens(output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """Names and scopes; what opens anything is not kept."""
    from sublet.api.client import connect

    found = connect().get("/v1/tokens")
    if opt.wants_document(output, json):
        print_document(found)
    elif not found["tokens"]:
        typer.echo("there is none but the owner's own\nnext: sublet token create NAME")
    else:
        rows = [[t["name"], t["scope"], t["user"], t["team"] or "-", t["made"]] for t in found["tokens"]]
        print_table(["name", "scope", "user", "team", "made"], rows, words=(0, 1, 2, 3, 4))


@token_app.command()
def revoke(name: Name, output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """End a token, and every page that was opened with it."""
    from sublet.api.client import connect, segment

    told = connect().post(f"/v1/tokens/{segment(name)}/revoke")
    if opt.wants_document(output, json):
        print_document(told)
    else:
        typer.echo(f"the token {name} opens nothing any more")
