"""Programs as real processes: forked from the agent, warm or afresh, each in a group of its own; ended and seen off.

Differences from a fresh interpreter are set right (arguments, search path, random numbers, threads), or the script is
not run this way: `warm_command` refuses options and variables that only a fresh interpreter can obey.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from sublet.runtime.agent.interpreter import enter, is_this_python, program
from sublet.runtime.agent.nursery import Nursery
from sublet.runtime.agent.processes import are_alone, die_with_parent, met_at, rename, ticks_by_parent
from sublet.runtime.agent.users import User, Users
from sublet.runtime.agent.worker import CANNOT_START, AgentWorker
from sublet.wire.messages import StartWorker

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


class Forked:
    """Children of this process, which must have one thread; each as the user of its job, where there are `users`.

    Those come from a `nursery`: a fork of this process would know what it knows.
    """

    def __init__(self, users: Users | None = None, nursery: Nursery | None = None) -> None:
        self._started: set[int] = set()
        self._users, self._nursery = users, nursery

    def start(self, order: StartWorker, own_env: Mapping[str, str]) -> AgentWorker:
        """Fork it, in a process group of its own within the session of the agent; OSError where that cannot be."""
        log, log_from = _open_log(order.log)
        if order.note:
            os.write(log, f"{order.note}\n".encode())
        ours, theirs = socket.socketpair()
        try:
            user = None if self._users is None else self._users.prepare(order, {**order.env, **own_env}, log)
            if self._nursery is not None:
                pid = self._nursery.start(order, own_env, log, theirs.fileno(), user)
            else:
                sys.stdout.flush()
                sys.stderr.flush()
                agent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    begin(order, own_env, log, theirs.fileno(), agent, user)  # does not return
        except OSError:
            ours.close()
            raise
        finally:
            os.close(log)
            theirs.close()
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does it too, in any order
        ours.settimeout(0.0)
        self._started.add(pid)
        return AgentWorker(order, pid, ours, log_from)

    def end(self, pid: int, number: int) -> None:
        """SIGTERM to the process alone, SIGKILL to its whole group."""
        sends = (os.killpg, os.kill) if number == signal.SIGKILL else (os.kill,)
        for send in sends:  # the group may not exist yet, a moment after the fork
            with contextlib.suppress(ProcessLookupError):
                send(pid, number)

    def ended(self) -> Iterator[tuple[int, int]]:
        """See off all children that have ended: those that were started here, and orphans that came to us."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            pid = seen.si_pid
            ours = pid in self._started
            if ours:
                self.end(
                    pid, signal.SIGKILL
                )  # its own children; before it is reaped, while its number is still its own
            os.waitpid(pid, 0)
            if ours:
                self._started.discard(pid)
                yield pid, seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    def ticks(self) -> Mapping[int, list[tuple[int, int]]]:
        """CPU ticks of all processes on this machine."""
        return ticks_by_parent()

    def met_at(self, port: int) -> bool:
        """By the sockets of this machine."""
        return met_at(port)

    def are_alone(self, pids: Iterable[int]) -> bool:
        """By their memory and their sockets."""
        return are_alone(pids)


def _open_log(name: str) -> tuple[int, int]:
    if not name:
        return os.open(os.devnull, os.O_WRONLY), 0
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    return log, os.lseek(log, 0, os.SEEK_END)


def begin(
    order: StartWorker, own_env: Mapping[str, str], log: int, control: int, agent: int, user: User | None
) -> None:
    """Become the program, in a child of the agent that is its own."""
    code = CANNOT_START
    try:
        die_with_parent()
        if os.getppid() != agent:
            return  # it died before we could ask for that
        os.setpgid(0, 0)
        _reset_signals()
        control = _only_descriptors(log, control)
        if user is not None:
            os.environ.update(user.variables())
            user.become()
        for name, value in order.defaults.items():
            os.environ.setdefault(name, value)
        os.environ.update({**order.env, **own_env, "SUBLET_CONTROL_FD": str(control)})
        python = sys.executable if "PATH" in order.env else enter(order.python, os.environ)
        os.chdir(order.cwd or ".")
        argv = program(order.argv, python)
        command = warm_command(argv, order.env)
        if command is None:
            os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - a command is what was asked for
        rename(Path(command.target).name)
        code = run_script(command)
    except OSError as error:
        print(f"cannot run {' '.join(order.argv)}: {error}", file=sys.stderr)  # noqa: T201 - goes to its log
    except BaseException:  # noqa: BLE001 - nothing may return into the agent's own loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _only_descriptors(log: int, control: int) -> int:
    """Standard input, output and error, and the control line; nothing of the agent's. The line's number."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    if control != 3:  # noqa: PLR2004 - the first number after standard error
        os.dup2(control, 3)
    os.set_inheritable(3, True)  # noqa: FBT003 - the call has no name for it
    os.closerange(4, min(1 << 16, os.sysconf("SC_OPEN_MAX")))
    return 3
