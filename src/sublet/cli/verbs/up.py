"""`sublet up`: start the controller as it was, or with what the options change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document
from sublet.cli.work import controller_process

if TYPE_CHECKING:
    from sublet.api.state import StateDir
    from sublet.runtime.controller_host.record import HostRecord
    from sublet.runtime.settings import Settings

__all__ = ["up"]


Made = TypeVar("Made")
BUDGET = ("burn_usd_per_h", "average_usd_per_h", "purse_usd")
DEFAULT_BURN = "2/h"  # an unlimited budget should not be a surprise on the bill
FLAGS = {  # what a setting is called on the command line
    "burn_usd_per_h": "--budget",
    "average_usd_per_h": "--average",
    "purse_usd": "--purse",
    "most_nodes": "--nodes",
    "mix_markets": "--mix-markets",
    "decide_limit_s": "--decide-limit",
    "silence_s": "--silence-s",
    "notice_s": "--notice-s",
    "boot_s": "--boot-s",
    "speedup": "--speedup",
    "strikes": "--strike",
    "seed": "--seed",
    "port": "--port",
    "provider": "--provider",
    "hosts": "--hosts",
    "engine": "--engine",
    "policy": "--policy",
    "hurry": "--hurry",
    "market": "--market",
    "polarity": "--polarity",
}


def up(  # noqa: PLR0913 - one argument per option
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="USD/H",
            help=f"Never rent for more than this per hour. [default: as before; first {DEFAULT_BURN} without --purse]",
        ),
    ] = None,
    average: opt.Average = None,
    purse: opt.Purse = None,
    no_budget: Annotated[bool, typer.Option("--no-budget", help="No limit at all, from now on.")] = False,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="Provider: local is a cloud on this machine.")
    ] = None,
    hosts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own machines, by ssh: hosts.toml. Means --provider ssh.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Engine: local or ray. [default: as the provider needs]")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A name from 'sublet policies', with its options if need be: 'mip(horizon_s=3600)'.",
            autocompletion=opt.complete_policy,
        ),
    ] = None,
    hurry: Annotated[
        bool | None,
        typer.Option("--hurry/--no-hurry", help="The quickest within the limits; else money is saved where it can be."),
    ] = None,
    market: Annotated[
        list[str] | None,
        typer.Option(
            "--market", metavar="TRACE", help="Spot nodes come and go as in this trace; may be repeated; none = steady."
        ),
    ] = None,
    polarity: opt.Means = None,
    speedup: Annotated[
        float | None, typer.Option(metavar="X", help="Cloud seconds per second, market and money alike.")
    ] = None,
    notice_s: Annotated[
        float | None, typer.Option(metavar="S", help="Warning before a spot node is taken; 0 = none.")
    ] = None,
    strike: Annotated[
        list[str] | None,
        typer.Option(
            metavar="S:VERB:N",
            help="At second S of the cloud, or after S% of the work, notice, kill or restore N spot nodes; repeatable.",
        ),
    ] = None,
    boot_s: Annotated[
        float | None, typer.Option(metavar="S", help="From renting a node to using it, at least.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", help="Hold at most N nodes of each offer: N on spot and N on demand."),
    ] = None,
    mix_markets: Annotated[
        bool | None,
        typer.Option(
            "--mix-markets/--no-mix-markets",
            help="One job may have spot and on-demand nodes at once; else each job is on one market.",
        ),
    ] = None,
    decide_limit_s: Annotated[
        float | None,
        typer.Option("--decide-limit", metavar="S", help="Seconds that the policy may think about one plan."),
    ] = None,
    silence_s: Annotated[
        float | None,
        typer.Option(metavar="S", help="A job that stands goes on without a node that is not heard for so long."),
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Listen here, on 127.0.0.1; 0 = any free port.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of all that is drawn at random.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew: what is there is moved aside, never deleted.")
    ] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="This directory was moved: take over what it rented at its old place.")
    ] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in this terminal; Ctrl-C stops it.")] = False,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="CLOUD", help="Not here, but on a small machine rented there, the controller host: aws."
        ),
    ] = None,
    anchor_type: opt.AnchorType = None,
    send_credentials: opt.SendCredentials = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Start the controller: it rents, runs jobs and keeps to the budget until 'sublet down'.

    Without an option it goes on as it was, budget and all; an option changes that one thing, and says so.
    """
    from sublet.cli.parse.values import parse_money, parse_price
    from sublet.errors import InvalidValue

    if hosts is not None and provider not in (None, "ssh"):
        raise InvalidValue("--hosts", str(hosts), f"left out beside --provider {provider}")
    provider = "ssh" if hosts is not None else provider
    if no_budget and (budget or purse or average):
        raise InvalidValue("--no-budget", True, "left out beside --budget, --average or --purse")
    given = {
        "provider": provider,
        "hosts": None if hosts is None else str(hosts.absolute()),
        "engine": engine,
        "policy": None if policy is None else _check_policy(policy),
        "hurry": hurry,
        "burn_usd_per_h": None if budget is None else parse_price("--budget", budget).usd_per_h,
        "average_usd_per_h": None if average is None else parse_price("--average", average).usd_per_h,
        "purse_usd": None if purse is None else parse_money("--purse", purse).usd,
        "speedup": speedup,
        "market": None if not market else _trace_names(market),
        "polarity": opt.meaning_of(polarity),
        "notice_s": notice_s,
        "strikes": tuple(strike) if strike else None,
        "boot_s": boot_s,
        "most_nodes": nodes,
        "mix_markets": mix_markets,
        "decide_limit_s": decide_limit_s,
        "silence_s": silence_s,
        "seed": seed,
        "port": port,
    }
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if no_budget:
        chosen |= dict.fromkeys(BUDGET)
    if provider is not None and engine is None:
        chosen["engine"] = _engine_for(provider)
    _check_strikes(strike or ())
    if on is not None:
        if on != "aws" or provider not in (None, "aws"):
            raise InvalidValue("--on", on, "aws, and then --provider is aws, too")
        for flag, is_given in (("--fresh", fresh), ("--moved", moved), ("--foreground", foreground)):
            if is_given:
                raise InvalidValue(flag, True, "left out beside --on: it is about a controller here")
        document = opt.wants_document(output, json)
        _start_on(chosen, kind=anchor_type or "", send_credentials=send_credentials, document=document)
        return
    _start(chosen, fresh=fresh, moved=moved, foreground=foreground, document=opt.wants_document(output, json))


def _start(chosen: Mapping[str, Any], *, fresh: bool, moved: bool, foreground: bool, document: bool) -> None:
    """From what the options say, and what there was, to a controller."""
    from sublet.api.state import StateDir
    from sublet.cli.parse.values import parse_price
    from sublet.cli.work.taking_along import refuse_to_strand, take_along
    from sublet.market.traces import load_trace
    from sublet.runtime import last_run
    from sublet.runtime.settings import PRICED_GPU, PRICED_LIKE, Settings, default_state_dir

    state = StateDir(default_state_dir())
    if state.path.is_dir():
        controller_process.refuse_second(state)
    aside = last_run.move_aside(state.path) if fresh else None
    before, is_lost = last_run.last_settings(state.path), not state.settings.is_file()
    of_log = None
    if before is None:
        before = of_log = _named_by_option(partial(last_run.settings_of_log, state.path, chosen))
    if before is None:
        if not chosen.keys() & {"burn_usd_per_h", "purse_usd"}:
            chosen = {**chosen, "burn_usd_per_h": parse_price("--budget", DEFAULT_BURN).usd_per_h}
        settings = _named_by_option(partial(Settings, state_dir=str(state.path), **chosen))
    else:
        settings = _named_by_option(partial(replace, before, **chosen))
        kept = f"{state.path} was last run with it: install what it came with again, or use 'sublet up --policy NAME'"
        _check_policy(settings.policy, hint=kept)  # this name was not typed
    changed = [] if before is None else last_run.list_changes(before, settings)
    last_run.refuse_while_rented(state.path, changed)
    refuse_to_strand(state.path, before, settings.provider)
    # A file that is refused is refused here; the controller could only write it to its log.
    traces = [load_trace(name, polarity=settings.polarity) for name in settings.market]
    if before is not None and chosen.keys() & set(BUDGET):
        last_run.reset_budget(state.path)
    if moved and before is not None:
        last_run.mark_moved(state.path)
    if not document:
        if aside is not None:
            typer.echo(f"what was there is now {aside}")
        if is_lost and before is not None and of_log is None:
            typer.echo(f"{state.settings.name} is missing: all as the log has it")
        if of_log is not None:
            typer.echo(f"{state.settings.name} is missing: provider {of_log.provider}, the rest as at a first start")
            typer.echo(f"budget as in the log: {last_run.show_budget(of_log)}")
        for change in changed:
            typer.echo(str(change))
    take_along(state.path, before, settings.provider, partial(typer.echo, err=document))
    address = controller_process.start(settings, foreground=foreground)
    if document:
        facts = {"address": str(address), "state_dir": str(state.path), "kept": before is not None}
        facts |= {"aside": None if aside is None else str(aside), "changed": [asdict(change) for change in changed]}
        print_document({"schema_version": 1, **facts, "settings": asdict(settings)})
        return
    as_before = "" if before is None or of_log is not None else ", as changed" if changed else ", as before"
    typer.echo(f"controller at {address}, {_describe_limits(settings)}, policy {settings.policy}{as_before}")
    for trace in traces:
        typer.echo(
            f"market {trace.name}: its nodes come and go"
            + (f", as {trace.gpu}s did; here each costs what a {PRICED_GPU} costs ({PRICED_LIKE})" if trace.gpu else "")
        )
    typer.echo("next: sublet submit FILE | sublet ps -w | sublet budget show | sublet down")


def _start_on(chosen: Mapping[str, Any], *, kind: str, send_credentials: bool, document: bool) -> None:
    """The same on a controller host; one that is there, or was stopped, goes on as it was."""
    from sublet.api.state import StateDir
    from sublet.cli.parse.values import parse_price
    from sublet.cli.work import hosted
    from sublet.cli.work.taking_along import refuse_to_strand, take_along
    from sublet.runtime import last_run
    from sublet.runtime.controller_host.record import on_host
    from sublet.runtime.settings import Settings, default_state_dir

    state = StateDir(default_state_dir())
    state.prepare()
    if (there := on_host(state.path)) is not None:
        record, settings = hosted.go_on_there(
            state, there, chosen, flags=FLAGS, kind=kind, send_credentials=send_credentials, quiet=document
        )
        _tell_of_anchor(state, record, settings, document=document)
        return
    chosen = {**chosen, "provider": "aws", "engine": "local"}
    before = last_run.last_settings(state.path)
    if before is None:
        if not chosen.keys() & {"burn_usd_per_h", "purse_usd"}:
            chosen = {**chosen, "burn_usd_per_h": parse_price("--budget", DEFAULT_BURN).usd_per_h}
        settings = _named_by_option(partial(Settings, state_dir=str(state.path), **chosen))
    else:
        settings = _named_by_option(partial(replace, before, **chosen))
        last_run.refuse_while_rented(state.path, last_run.list_changes(before, settings))
        refuse_to_strand(state.path, before, settings.provider)
        if chosen.keys() & set(BUDGET):
            last_run.reset_budget(state.path)
        take_along(state.path, before, settings.provider, partial(typer.echo, err=document))
    record = hosted.raise_host(state, settings, kind=kind, send_credentials=send_credentials, quiet=document)
    _tell_of_anchor(state, record, settings, document=document)


def _tell_of_anchor(state: StateDir, record: HostRecord, settings: Settings, *, document: bool) -> None:
    if document:
        facts = {"state_dir": str(state.path), "anchor": record.instance, "address": record.address}
        print_document({"schema_version": 1, **facts, "settings": asdict(settings)})
        return
    typer.echo(
        f"controller on {record.instance} ({record.address}), {_describe_limits(settings)}; you may close the lid"
    )
    typer.echo("next: sublet submit FILE | sublet ps -w | sublet cost | sublet down")


def _named_by_option(make: Callable[[], Made]) -> Made:
    """Errors name the option, not the setting that it becomes."""
    from sublet.errors import InvalidValue

    try:
        return make()
    except InvalidValue as error:
        if error.field not in FLAGS:
            raise
        raise InvalidValue(FLAGS[error.field], error.value, error.allowed) from None


def _check_strikes(texts: Sequence[str]) -> None:
    if not texts:
        return
    # Half a second of imports, for scripted losses.
    from sublet.runtime.providers.local.build import strike_from_text

    for text in texts:
        _named_by_option(partial(strike_from_text, text))


def _trace_names(names: list[str]) -> tuple[str, ...]:
    if names == ["none"]:
        return ()
    return tuple(str(Path(name).absolute()) if Path(name).is_file() else name for name in names)


def _engine_for(provider: str) -> str:
    """The engine of the provider's own name, where there is one."""
    from sublet import plugins

    return provider if provider in plugins.names("sublet.engines") else "local"


def _check_policy(text: str, hint: str = "") -> str:
    from sublet import plugins
    from sublet.errors import UnknownName

    known, (name, options, _) = plugins.names("sublet.policies"), text.partition("(")
    if name not in known:
        raise UnknownName("policy", name, known, hint=hint)
    if options:
        from sublet.policies.named import policy_named  # it imports the policy, which takes time

        policy_named(text)
    return text


def _describe_limits(settings: Settings) -> str:
    limits = []
    if settings.burn_usd_per_h is not None:
        limits.append(f"at most USD {settings.burn_usd_per_h:g}/h")
    if settings.average_usd_per_h is not None:
        limits.append(f"USD {settings.average_usd_per_h:g}/h on average")
    if settings.purse_usd is not None:
        limits.append(f"USD {settings.purse_usd:g} in all")
    return ", ".join(limits) or "no limit on spending"
