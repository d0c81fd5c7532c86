"""`sublet up` and `sublet down`: start the controller as a process of its own, and stop it with all that it rented."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

if TYPE_CHECKING:
    from sublet.api.state import Address, StateDir
    from sublet.runtime.settings import Settings

__all__ = ["down", "start", "stop", "up"]

Made = TypeVar("Made")
BUDGET = ("burn_usd_per_h", "average_usd_per_h", "purse_usd")
DEFAULT_BURN = "2/h"  # nobody should learn of an unlimited budget from the bill
COMMAND = (sys.executable, "-m", "sublet.api.main")
START_WITHIN_S = 60.0
STOP_WITHIN_S = 120.0
POLL_S = 0.05
FLAGS = {  # what a setting is called on the command line
    "burn_usd_per_h": "--budget",
    "average_usd_per_h": "--average",
    "purse_usd": "--purse",
    "most_nodes": "--nodes",
    "decide_limit_s": "--decide-limit",
    "notice_s": "--notice-s",
    "boot_s": "--boot-s",
    "speedup": "--speedup",
    "strikes": "--strike",
    "seed": "--seed",
    "port": "--port",
    "provider": "--provider",
    "engine": "--engine",
}
NEEDED = ("fastapi", "prometheus_client", "pydantic", "uvicorn", "yaml")


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
        str | None, typer.Option(metavar="NAME", help="Who rents: local is a cloud on this machine.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who runs: local or ray. [default: as the provider needs]")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A name from 'sublet policies'.", autocompletion=opt.complete_policy),
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
            metavar="S:VERB:N", help="At second S of the cloud notice, kill or restore N spot nodes; may be repeated."
        ),
    ] = None,
    boot_s: Annotated[
        float | None, typer.Option(metavar="S", help="From renting a node to using it, at least.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="Hold at most N nodes.")] = None,
    decide_limit_s: Annotated[
        float | None,
        typer.Option("--decide-limit", metavar="S", help="Seconds that the policy may think about one plan."),
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
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Start the controller: it rents, runs jobs and keeps to the budget until 'sublet down'.

    Without an option it goes on as it was, budget and all; an option changes that one thing, and says so.
    """
    from sublet.cli.parse import money_from_text, price_from_text
    from sublet.errors import InvalidValue

    if no_budget and (budget or purse or average):
        raise InvalidValue("--no-budget", True, "left out beside --budget, --average or --purse")
    given = {
        "provider": provider,
        "engine": engine,
        "policy": None if policy is None else _known_policy(policy),
        "hurry": hurry,
        "burn_usd_per_h": None if budget is None else price_from_text("--budget", budget).usd_per_h,
        "average_usd_per_h": None if average is None else price_from_text("--average", average).usd_per_h,
        "purse_usd": None if purse is None else money_from_text("--purse", purse).usd,
        "speedup": speedup,
        "market": None if not market else _traces(market),
        "polarity": opt.meaning_of(polarity),
        "notice_s": notice_s,
        "strikes": tuple(strike) if strike else None,
        "boot_s": boot_s,
        "most_nodes": nodes,
        "decide_limit_s": decide_limit_s,
        "seed": seed,
        "port": port,
    }
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if no_budget:
        asked |= dict.fromkeys(BUDGET)
    if provider is not None and engine is None:
        asked["engine"] = "ray" if provider == "ray" else "local"
    _refuse_odd_strikes(strike or ())
    _go_on(asked, fresh=fresh, moved=moved, foreground=foreground, document=opt.wants_document(output, json))


def _go_on(asked: Mapping[str, Any], *, fresh: bool, moved: bool, foreground: bool, document: bool) -> None:
    """From what was asked for, and what there was, to a controller."""
    from sublet.api.state import StateDir
    from sublet.cli.parse import price_from_text
    from sublet.market.traces import load_trace
    from sublet.runtime import kept
    from sublet.runtime.settings import PRICED_GPU, PRICED_LIKE, Settings, default_state_dir

    state = StateDir(default_state_dir())
    if state.path.is_dir():
        _refuse_twice(state)
    aside = kept.set_aside(state.path) if fresh else None
    before = kept.kept_settings(state.path)
    if before is None:
        if not asked.keys() & {"burn_usd_per_h", "purse_usd"}:
            asked = {**asked, "burn_usd_per_h": price_from_text("--budget", DEFAULT_BURN).usd_per_h}
        settings = _as_typed(partial(Settings, state_dir=str(state.path), **asked))
    else:
        settings = _as_typed(partial(replace, before, **asked))
    changed = [] if before is None else kept.changes(before, settings)
    kept.refuse_while_rented(state.path, changed)
    # A file that is refused is refused here; the controller could only write it to its log.
    traces = [load_trace(name, polarity=settings.polarity) for name in settings.market]
    if before is not None and asked.keys() & set(BUDGET):
        kept.set_budget_anew(state.path)
    if moved and before is not None:
        kept.say_moved(state.path)
    if not document:
        if aside is not None:
            typer.echo(f"what was there is now {aside}")
        for change in changed:
            typer.echo(str(change))
    address = start(settings, foreground=foreground)
    if document:
        facts = {"address": str(address), "state_dir": str(state.path), "kept": before is not None}
        facts |= {"aside": None if aside is None else str(aside), "changed": [asdict(change) for change in changed]}
        print_document({"schema_version": 1, **facts, "settings": asdict(settings)})
        return
    as_before = "" if before is None else ", as changed" if changed else ", as before"
    typer.echo(f"controller at {address}, {_limits(settings)}, policy {settings.policy}{as_before}")
    for trace in traces:
        typer.echo(
            f"market {trace.name}: its nodes come and go"
            + (f", as {trace.gpu}s did; here each costs what a {PRICED_GPU} costs ({PRICED_LIKE})" if trace.gpu else "")
        )
    typer.echo("next: sublet submit FILE | sublet ps -w | sublet budget show | sublet down")


def _as_typed(make: Callable[[], Made]) -> Made:
    """What is wrong is told by the name of the option, not of the setting that it becomes."""
    from sublet.errors import InvalidValue

    try:
        return make()
    except InvalidValue as error:
        if error.field not in FLAGS:
            raise
        raise InvalidValue(FLAGS[error.field], error.value, error.allowed) from None


def _refuse_odd_strikes(texts: Sequence[str]) -> None:
    if not texts:
        return
    # Half a second of imports, for those who script losses.
    from sublet.runtime.providers.local.build import strike_from_text

    for text in texts:
        _as_typed(partial(strike_from_text, text))


def _traces(names: list[str]) -> tuple[str, ...]:
    if names == ["none"]:
        return ()
    return tuple(str(Path(name).absolute()) if Path(name).is_file() else name for name in names)


def down(
    end_jobs: Annotated[
        bool, typer.Option("--end-jobs", help="Cancel the jobs too; otherwise 'up' resumes them.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Save and stop all jobs, give back everything that is rented, and stop the controller."""
    from sublet.api.state import StateDir
    from sublet.errors import NoController
    from sublet.runtime.settings import default_state_dir

    state = StateDir(default_state_dir())
    try:
        state.address()
        ran = True
    except NoController:
        ran = False
    stopped = ran and stop(state, end_jobs=end_jobs)
    if not ran:
        told = f"no controller runs ({state.path})"
    elif stopped:
        told = "stopped; nothing is rented" + ("" if end_jobs else ", jobs go on at the next 'sublet up'")
    else:
        told = "it was gone already; what it rented ends with its lease, and 'sublet up' resumes the jobs"
    if opt.wants_document(output, json):
        facts = {"state_dir": str(state.path), "ran": ran, "stopped": stopped, "jobs_ended": stopped and end_jobs}
        print_document({"schema_version": 1, **facts, "told": told})
    else:
        typer.echo(told)


# ---------------------------------------------------------------------- start


def start(settings: Settings, *, foreground: bool = False) -> Address:
    """Start a controller with these settings; returns when it answers."""
    from sublet.api.state import StateDir
    from sublet.errors import SubletError
    from sublet.runtime.settings import settings_to_json

    _refuse_without_extras()
    state = StateDir(Path(settings.state_dir))
    state.prepare()
    _refuse_twice(state)
    before = state.settings.read_text(encoding="utf-8") if state.settings.is_file() else None
    state.write(state.settings, settings_to_json(settings))
    state.failure.unlink(missing_ok=True)
    if foreground:
        typer.echo("Ctrl-C stops the controller and everything it rented", err=True)
        os.execv(COMMAND[0], [*COMMAND, str(state.path)])  # noqa: S606 - no shell
    try:
        return _awaited(state, _spawned(state))
    except SubletError:
        if before is not None and not state.taken:  # what could not be started is nothing to go on with
            state.write(state.settings, before)
        raise


def _spawned(state: StateDir) -> int:
    """A process of its own session, so that Ctrl-C in this terminal is not for it; its number."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        COMMAND[0],
        [*COMMAND, str(state.path)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(state.log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _awaited(state: StateDir, pid: int) -> Address:
    from sublet.api.client import Client
    from sublet.errors import NoController, Refused

    give_up = time.monotonic() + START_WITHIN_S
    while time.monotonic() < give_up:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _start_failure(state, os.waitstatus_to_exitcode(status))
        try:
            address = state.address()
            health = Client(host=address.host, port=address.port, token=state.token(), timeout_s=5.0).get("/v1/health")
        except (NoController, Refused):
            time.sleep(POLL_S)
            continue
        if health["started"]:  # ready or not: what stands in its way may have to be mended through it
            if health["why"]:
                typer.echo(f"it is not ready: {health['why']}", err=True)
            return address
        time.sleep(POLL_S)
    os.kill(pid, signal.SIGTERM)
    raise NoController(state.path, f"it was not ready within {START_WITHIN_S:g} s; see {state.log}")


def _start_failure(state: StateDir, code: int) -> Exception:
    from sublet.errors import Refused

    try:
        number, _, text = state.failure.read_text(encoding="utf-8").partition("\n")
        return Refused(text, exit_code=int(number))
    except (OSError, ValueError):
        return Refused(f"the controller ended at once with code {code}\n  next: see {state.log}")


def _refuse_twice(state: StateDir) -> None:
    from sublet.errors import BadInput, NoController

    if not state.taken:
        state.address_file.unlink(missing_ok=True)  # of one that was killed
        return
    try:
        address = state.address()
    except NoController:
        raise BadInput(state.path, "a controller starts or stops here", hint="try again in a few seconds") from None
    why = f"a controller runs at {address} already (process {address.pid})"
    raise BadInput(state.path, why, hint="sublet ps; sublet budget set; or sublet down before starting another")


def _refuse_without_extras() -> None:
    from importlib.util import find_spec

    from sublet.errors import MissingExtra

    for name in NEEDED:
        if find_spec(name) is None:
            raise MissingExtra(name, "server")


def _known_policy(name: str) -> str:
    from sublet import plugins
    from sublet.errors import UnknownName

    known = plugins.names("sublet.policies")
    if name not in known:
        raise UnknownName("policy", name, known)
    return name


def _limits(settings: Settings) -> str:
    limits = []
    if settings.burn_usd_per_h is not None:
        limits.append(f"at most USD {settings.burn_usd_per_h:g}/h")
    if settings.average_usd_per_h is not None:
        limits.append(f"USD {settings.average_usd_per_h:g}/h on average")
    if settings.purse_usd is not None:
        limits.append(f"USD {settings.purse_usd:g} in all")
    return ", ".join(limits) or "no limit on spending"


# ---------------------------------------------------------------------- stop


def stop(state: StateDir, *, end_jobs: bool = False) -> bool:
    """Stop the controller and wait for its end; False if it was gone already."""
    from sublet.api.client import connect
    from sublet.errors import NoController

    address = state.address()
    try:
        connect(state.path).post("/v1/shutdown", {"end_jobs": end_jobs})
    except NoController:
        if state.taken:
            raise
        state.address_file.unlink(missing_ok=True)
        return False
    give_up = time.monotonic() + STOP_WITHIN_S
    while time.monotonic() < give_up:
        if not state.taken:
            return True
        time.sleep(POLL_S)
    raise NoController(address, f"it did not stop within {STOP_WITHIN_S:g} s; see {state.log}")
