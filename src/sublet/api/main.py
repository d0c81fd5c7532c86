"""The controller's process: `python -m sublet.api.main STATE_DIR`, started by `sublet up`."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path
from typing import Protocol

from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.errors import SubletError
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.controller_host.record import refuse_if_away
from sublet.runtime.logfile import log_to_stderr
from sublet.runtime.settings import Settings, settings_from_json


class Runnable(Api, Protocol):
    """An API with a controller behind it that can be run."""

    async def run(self) -> None:
        """Until `shutdown` was asked for and is done."""
        ...


def main() -> None:
    """Ends with the exit code of the error that stopped it; the reason is left where `sublet up` looks for it."""
    state = StateDir(Path(sys.argv[1]))
    log_to_stderr()
    try:
        settings = settings_from_json(state.settings.read_text(encoding="utf-8"), source=state.settings)
        with state.hold_lock():
            state.failure.unlink(missing_ok=True)
            refuse_if_away(state.path)
            _run_or_leave_reason(state, settings)
    except SubletError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


def _run_or_leave_reason(state: StateDir, settings: Settings) -> None:
    """The reason of a failure is left on disk."""
    try:
        from sublet.runtime.controller_api.assemble import controller_from

        run_controller(state, settings, controller_from(settings))
    except SubletError as error:
        state.write(state.failure, f"{error.exit_code}\n{error}")
        raise
    except Exception as error:
        traceback.print_exc()
        state.write(state.failure, f"1\ninternal error: {type(error).__name__}: {error}\n  next: see {state.log}")
        raise


def run_controller(state: StateDir, settings: Settings, controller: Runnable) -> None:
    """Serve it until it has shut down."""
    sock = bind(settings.host, settings.port)
    asyncio.run(serve(controller, controller.run, state=state, sock=sock, pid=os.getpid()))


if __name__ == "__main__":
    main()
