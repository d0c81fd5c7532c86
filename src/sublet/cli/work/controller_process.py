"""The controller as a process of its own: start it and wait until it answers, stop it and wait until it is gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from sublet.api.state import Address, StateDir
    from sublet.runtime.settings import Settings

COMMAND = (sys.executable, "-m", "sublet.api.main")
START_WITHIN_S = 60.0
STOP_WITHIN_S = 120.0
POLL_S = 0.05
HEALTH_S = 5.0  # for an answer that takes a controller no work


def start(settings: Settings, *, foreground: bool = False) -> Address:
    """Start a controller with these settings; returns when it answers."""
    from sublet import plugins
    from sublet.api.state import StateDir
    from sublet.errors import SubletError
    from sublet.runtime.settings import settings_to_json

    plugins.refuse_without("server", *plugins.SERVER)
    state = StateDir(Path(settings.state_dir))
    state.prepare()
    refuse_second(state)
    before = state.settings.read_text(encoding="utf-8") if state.settings.is_file() else None
    state.write(state.settings, settings_to_json(settings))
    state.failure.unlink(missing_ok=True)
    if foreground:
        typer.echo("Ctrl-C stops the controller and everything it rented", err=True)
        os.execv(COMMAND[0], [*COMMAND, str(state.path)])  # noqa: S606 - no shell
    try:
        return _wait_until_ready(state, _spawn(state))
    except SubletError:
        if before is not None and not state.in_use:  # what could not be started is nothing to go on with
            state.write(state.settings, before)
        raise


def _spawn(state: StateDir) -> int:
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


def _wait_until_ready(state: StateDir, pid: int) -> Address:
    from sublet.errors import NoController

    give_up = time.monotonic() + START_WITHIN_S
    while time.monotonic() < give_up:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _start_failure(state, os.waitstatus_to_exitcode(status))
        address, health = _found(state, pid)
        if address is not None and health["started"]:  # ready or not: what is in its way may be mended through it
            if health["why"]:
                typer.echo(f"it is not ready: {health['why']}", err=True)
            return address
        time.sleep(POLL_S)
    os.kill(pid, signal.SIGTERM)
    raise NoController(state.path, f"it was not ready within {START_WITHIN_S:g} s; see {state.log}")


def _found(state: StateDir, pid: int) -> tuple[Address | None, dict[str, Any]]:
    """The controller that is this process, and its health; (None, {}) while it does not answer."""
    from sublet.errors import NoController, Refused

    try:
        address = state.address()
        if address.pid == pid:  # else it is another's, which may live
            return address, _ask_health(state, address)
    except (NoController, Refused):
        pass
    return None, {}


def _ask_health(state: StateDir, address: Address) -> dict[str, Any]:
    from sublet.api.client import Client

    return Client(host=address.host, port=address.port, token=state.token(), timeout_s=HEALTH_S).get("/v1/health")


def _start_failure(state: StateDir, code: int) -> Exception:
    from sublet.errors import Refused

    try:
        number, _, text = state.failure.read_text(encoding="utf-8").partition("\n")
        return Refused(text, exit_code=int(number))
    except (OSError, ValueError):
        return Refused(f"the controller ended at once with code {code}\n  next: see {state.log}")


def refuse_second(state: StateDir) -> None:
    """A state directory has one controller at a time; what one that was killed left is removed."""
    from sublet.errors import BadInput, NoController
    from sublet.runtime.controller_host.record import refuse_if_away

    refuse_if_away(state.path)
    in_use = state.in_use
    if not in_use and not _answers_without_lock(state):
        return
    try:
        address = state.address()
    except NoController:
        if not in_use:
            return
        raise BadInput(state.path, "a controller starts or stops here", hint="try again in a few seconds") from None
    why = f"a controller runs at {address} already (process {address.pid})"
    raise BadInput(state.path, why, hint="sublet ps; sublet budget set; or sublet down before starting another")


def _answers_without_lock(state: StateDir) -> bool:
    """Whether one lives here that holds no lock: the file was removed, or the disk has no locks.

    The address of one that is gone is removed; of one that says nothing it stays: if it is not succeeded, it is needed
    again.
    """
    from sublet.errors import NoController, Refused

    try:
        return bool(_ask_health(state, state.address()))
    except (NoController, Refused) as error:
        if not getattr(error, "silent", False):
            state.address_file.unlink(missing_ok=True)
        return False


def stop(state: StateDir, *, end_jobs: bool = False) -> bool:
    """Stop the controller and wait for its end; False if it was gone already."""
    from sublet.api.client import connect
    from sublet.errors import NoController

    address = state.address()
    try:
        connect(state.path).post("/v1/shutdown", {"end_jobs": end_jobs})
    except NoController as error:
        if state.in_use or error.silent:
            raise
        state.address_file.unlink(missing_ok=True)
        return False
    give_up = time.monotonic() + STOP_WITHIN_S
    while time.monotonic() < give_up:
        if not state.in_use:
            return True
        time.sleep(POLL_S)
    raise NoController(address, f"it did not stop within {STOP_WITHIN_S:g} s; see {state.log}")
