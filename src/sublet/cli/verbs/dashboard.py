"""`sublet dashboard`: the fleet, the money and the reasons in a browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

__all__ = ["dashboard"]


def dashboard(
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open it in a browser, where this machine has a screen.")
    ] = True,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Print a link to the page of this controller, and open it: it lets one browser in, once, within a minute."""
    from sublet.api.client import connect

    client = connect()
    told = client.post("/v1/sessions")
    place = f"http://{client.named}" if client.remote else client.address
    address = f"{place}{told['path']}"
    if opt.wants_document(output, json):
        print_document({"schema_version": 1, "address": address, "seconds": told["seconds"]})
    else:
        typer.echo(
            f"{address}\nopens the page once, within {told['seconds']:.0f} s; then a cookie of that browser does"
        )
    if client.remote:
        port = client.named.rpartition(":")[2]
        advice = f"the controller is on its host: forward its port first, ssh -N -L {port}:127.0.0.1:{port} ANCHOR"
        typer.echo(advice, err=True)
    elif browser and _has_screen():
        import webbrowser

        webbrowser.open(address)


def _has_screen() -> bool:
    """Without one, a browser of the terminal would take it over."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
