"""A Python script, run inside a process that was forked warm, as if `python script.py` had been started.

Differences from a fresh interpreter are set right (arguments, search path, random numbers, threads), or the script is
not run this way: `warm_command` refuses options and variables that only a fresh interpreter can obey.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from sublet.runtime.agent.interpreter import is_this_python

__all__ = ["WarmCommand", "run_script", "warm_command"]

# Read by the loader, the allocator or the interpreter when a process begins: too late after a fork.
COLD_VARIABLES = ("LD_", "MALLOC_", "GLIBC_", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONMALLOC", "PYTHONOPTIMIZE")
NO_SUCH_FILE = 2  # what python itself returns when it cannot open the script
INTERRUPTED = 130  # as a shell says of SIGINT


class AtExit:
    """Functions registered with `atexit` from now on: only the end of the interpreter calls them, not a fork."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._register, self._unregister = atexit.register, atexit.unregister
        atexit.register, atexit.unregister = self.register, self.unregister

    def register(self, function: Callable[..., Any], /, *args: Any, **facts: Any) -> Callable[..., Any]:
        """There too: a process that is no fork ends by itself."""
        self._calls.append((function, args, facts))
        return self._register(function, *args, **facts)

    def unregister(self, function: Callable[..., Any], /) -> None:
        """All calls of it."""
        self._calls = [each for each in self._calls if each[0] != function]
        self._unregister(function)

    def call(self) -> None:
        """The last first; one that fails is told as the interpreter would, and the others are called."""
        while self._calls:
            function, args, facts = self._calls.pop()
            try:
                function(*args, **facts)
            except BaseException as error:  # noqa: BLE001 - user's code
                print(f"Exception ignored in atexit callback: {function!r}", file=sys.stderr)  # noqa: T201 - as above
                users = None if error.__traceback__ is None else error.__traceback__.tb_next
                traceback.print_exception(type(error), error, users)


AT_EXIT = AtExit()  # before anything is imported that registers


class WarmCommand(NamedTuple):
    """`python [-u] target arguments` or, as a module, `python [-u] -m target arguments`."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]


def warm_command(argv: Sequence[str], env: Mapping[str, str]) -> WarmCommand | None:
    """The command for a forked process; None = start it afresh."""
    if not argv or not is_this_python(argv[0]) or any(name.startswith(COLD_VARIABLES) for name in env):
        return None
    rest = list(argv[1:])
    if rest and rest[0] == "-u":
        del rest[0]  # lines are written as they end in any case
    if len(rest) > 1 and rest[0] == "-m":
        return WarmCommand(rest[1], is_module=True, arguments=tuple(rest[2:]))
    if rest and not rest[0].startswith("-"):
        return WarmCommand(rest[0], is_module=False, arguments=tuple(rest[1:]))
    return None


def run_script(command: WarmCommand) -> int:
    """Run it as __main__ and see it off like the interpreter would; the exit code."""
    _refresh()
    sys.argv = [command.target, *command.arguments]
    place = "" if command.is_module else str(Path(command.target).resolve().parent)
    sys.path[0] = place or str(Path.cwd())
    code = _main(command)
    try:
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - waits for threads, as at any exit
    except BaseException:  # noqa: BLE001 - user's code
        traceback.print_exc()
    AT_EXIT.call()  # DataLoaders and multiprocessing tidy up here
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1  # what was printed is lost: a full disk
    return code


def _main(command: WarmCommand) -> int:
    if not command.is_module and not Path(command.target).exists():
        print(f"{sys.executable}: can't open file {command.target!r}: no such file", file=sys.stderr)  # noqa: T201 - what Python itself would say
        return NO_SUCH_FILE
    try:
        if command.is_module:
            runpy.run_module(command.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command.target, run_name="__main__")
    except SystemExit as end:
        return _exit_code(end.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - whatever the script raises
        users = _users_part(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(users), users)
        return 1
    return 0


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201 - as sys.exit("why") does
    return 1


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that led to the script; None if it never ran, as for a syntax error."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        part = part.tb_next
    return part


def _refresh() -> None:
    """Redo the choices of libraries at their import, before the fork."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text stream, as it was not replaced yet
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[1:1] = [part for part in path if part not in sys.path[1:]]  # the first is the script's own place, soon
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # or all workers would draw the same; Python's own generator sees to it by itself
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if (torch := sys.modules.get("torch")) is not None and threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
