"""A controller on a controller host, from the laptop's side: what `up --on`, `down` and `move` share.

Where a controller is on its host already, it goes on as it was started, but for limits on spending, which it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.work import controller_process

if TYPE_CHECKING:
    from sublet.api.state import StateDir
    from sublet.runtime.controller_host.life import ControllerHost
    from sublet.runtime.controller_host.record import HostRecord
    from sublet.runtime.settings import Settings


def started_with(state: StateDir) -> Settings:
    """Settings of the controller on the controller host: the laptop's own file stays as it was then."""
    from sublet.errors import MissingData
    from sublet.runtime.settings import settings_from_json

    if not state.settings.is_file():
        hint = "'sublet down' brings the state of the controller host here; then 'sublet up --on aws'"
        raise MissingData(state.settings, hint=hint)
    return settings_from_json(state.settings.read_text(encoding="utf-8"), source=state.settings)


def raise_host(
    state: StateDir, settings: Settings, *, kind: str = "", send_credentials: bool = False, quiet: bool = False
) -> HostRecord:
    """The controller of this state runs on a controller host when it returns."""
    import asyncio

    from sublet.api.client import connect
    from sublet.runtime.controller_host.record import on_host

    if on_host(state.path) is None:
        controller_process.refuse_second(state)
        state.write(state.settings, _as_text(settings))
    _choose_where_nothing_is_said(state.path, send_credentials=send_credentials, quiet=quiet)
    _renew_own_role(state.path, quiet=quiet)
    anchor = _anchor(state.path, quiet=quiet, credentials=_own_credentials() if send_credentials else {})
    record = asyncio.run(anchor.up(settings, kind))
    connect(state.path).get("/v1/health")  # by the way that all other commands will take
    return record


def bring_back(state: StateDir, *, end_jobs: bool = False, quiet: bool = False) -> None:
    """Its jobs are saved, its nodes given back, its state is here again, and the controller host has ended."""
    import asyncio

    anchor = _anchor(state.path, quiet=quiet)
    anchor.stop_there = partial(_ask_to_stop, state.path, end_jobs=end_jobs)
    asyncio.run(anchor.back())


def _anchor(state_dir: Path, *, quiet: bool, credentials: Mapping[str, str] | None = None) -> ControllerHost:
    from sublet.runtime.controller_host.life import ControllerHost
    from sublet.runtime.providers.ssh.hostline import import_asyncssh

    import_asyncssh()
    tell = partial(typer.echo, err=quiet)
    return ControllerHost(state_dir=state_dir, tell=tell, credentials=credentials or {})


def _choose_where_nothing_is_said(state_dir: Path, *, send_credentials: bool, quiet: bool) -> None:
    """An account is enough: what is missing is asked for, told, and written to aws.toml."""
    from sublet.runtime.controller_host.ground import choose, region_from, write_choices
    from sublet.runtime.providers.aws.build import server_of
    from sublet.runtime.providers.aws.calls import client_maker
    from sublet.runtime.providers.aws.config import config_path

    path = config_path(state_dir)
    if path.exists() or path != state_dir / "aws.toml":  # another place was named: it should be there
        return
    make = client_maker()  # that the extra is missing is said as such
    import boto3

    region = region_from(boto3.session.Session().region_name)
    typer.echo(f"there is no {path}: asking AWS what there is in {region}", err=quiet)
    chosen = choose(make, region, server_of(state_dir), credentials_sent=send_credentials)
    write_choices(path, chosen)
    for each in chosen:
        typer.echo(f"  {each}", err=quiet)
    typer.echo(f"written to {path}; what you change there counts from the next start on", err=quiet)


def _renew_own_role(state_dir: Path, *, quiet: bool) -> None:
    """The one that Sublet made: the file may name a bucket for backups by now, or other types."""
    from sublet.errors import SubletError
    from sublet.runtime.controller_host.ground import renew_role, role_name
    from sublet.runtime.providers.aws.build import server_of
    from sublet.runtime.providers.aws.calls import client_maker
    from sublet.runtime.providers.aws.config import config_path, read_config

    config, server = read_config(config_path(state_dir)), server_of(state_dir)
    if config.anchor_profile == role_name(server):
        try:
            renew_role(client_maker(config.endpoint_url), config, server)
        except SubletError as error:  # it may have all that it needs
            typer.echo(f"the role {config.anchor_profile} stays as it is: {error}", err=quiet)


def _ask_to_stop(state_dir: Path, *, end_jobs: bool) -> None:
    """One that does not answer is fenced all the same, and told by a signal in a while."""
    from sublet.api.client import connect
    from sublet.errors import NoController

    try:
        connect(state_dir).post("/v1/shutdown", {"end_jobs": end_jobs})
    except NoController as error:
        typer.echo(f"its controller does not answer: a signal will tell it to save and end ({error})", err=True)


def _as_text(settings: Settings) -> str:
    from sublet.runtime.settings import settings_to_json

    return settings_to_json(replace(settings, provider="aws", engine="local"))


def _own_credentials() -> dict[str, str]:
    """Credentials of this laptop, as boto3 finds them; they are sent because their owner said so."""
    from sublet.errors import NoAccess
    from sublet.runtime.providers.aws.calls import client_maker

    client_maker()  # that the extra is missing is said as such
    import boto3

    found: Any = boto3.session.Session().get_credentials()
    if found is None:
        raise NoAccess("AWS", "there are no credentials to send", hint="aws configure, or AWS_PROFILE")
    keys = found.get_frozen_credentials()
    facts = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    return {**facts, **({"AWS_SESSION_TOKEN": keys.token} if keys.token else {})}


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

    before = started_with(state)
    refuse_what_stays(before, chosen, record, flags=flags, kind=kind)
    record = raise_host(state, before, kind=kind, send_credentials=send_credentials, quiet=quiet)
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
