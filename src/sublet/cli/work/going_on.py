"""`sublet up --on aws` with a controller on its host already: it goes on as it was started, but for the budget.

A limit on spending is told to the live controller. Everything else it knows from its start: an option that is another
then is refused before anything is done, with the commands that change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sublet.cli.work import hosted

if TYPE_CHECKING:
    from sublet.api.state import StateDir
    from sublet.runtime.controller_host.record import HostRecord
    from sublet.runtime.settings import Settings

__all__ = ["go_on_there", "refuse_what_stays"]

LIMITS = {  # as the API calls them
    "burn_usd_per_h": "burn_limit_usd_per_h",
    "average_usd_per_h": "average_usd_per_h",
    "purse_usd": "purse_usd",
}


def go_on_there(
    state: StateDir,
    record: HostRecord,
    chosen: Mapping[str, Any],
    *,
    flags: Mapping[str, str],
    kind: str,
    send_credentials: bool,
    quiet: bool,
) -> tuple[HostRecord, Settings]:
    """The controller host, and what its controller goes by: the limits are those that it says itself."""
    from sublet.api.client import connect

    before = hosted.started_with(state)
    refuse_what_stays(before, chosen, record, flags=flags, kind=kind)
    record = hosted.raise_host(state, before, kind=kind, send_credentials=send_credentials, quiet=quiet)
    client, limits = connect(state.path), {LIMITS[name]: chosen[name] for name in LIMITS if name in chosen}
    found = client.post("/v1/budget", limits) if limits else client.get("/v1/budget")
    return record, replace(before, **{name: found[said] for name, said in LIMITS.items()})


def refuse_what_stays(
    before: Settings, chosen: Mapping[str, Any], record: HostRecord, *, flags: Mapping[str, str], kind: str
) -> None:
    """BadInput for what a controller that lives cannot be told."""
    from sublet.errors import BadInput

    others = {name: value for name, value in chosen.items() if name not in LIMITS and value != getattr(before, name)}
    stays = [f"{flags[name]} {_text(value)} (it has {_text(getattr(before, name))})" for name, value in others.items()]
    if kind and kind != record.kind:
        stays.append(f"--anchor-type {kind} (it is a {record.kind})")
    if any(name in chosen and chosen[name] is None for name in LIMITS):
        stays.append("--no-budget ('sublet budget set' raises a limit of a controller that runs, and removes none)")
    if stays:
        why = f"the controller on {record.instance} was started otherwise, and would not hear of {', '.join(stays)}"
        hint = "'sublet down' saves its jobs; 'sublet up --on aws' with these options goes on with them"
        raise BadInput("sublet up --on aws", why, hint=hint)


def _text(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
