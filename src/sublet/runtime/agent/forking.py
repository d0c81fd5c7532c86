"""Programs as real processes: forked from the agent, warm or afresh, each in a group of its own; ended and seen off."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sublet.runtime.agent.interpreter import enter, program
from sublet.runtime.agent.nursery import Nursery
from sublet.runtime.agent.processes import are_alone, die_with_parent, met_at, rename, ticks_by_parent
from sublet.runtime.agent.script import run_script, warm_command
from sublet.runtime.agent.users import User, Users
from sublet.runtime.agent.worker import CANNOT_START, AgentWorker
from sublet.wire.messages import StartWorker

__all__ = ["Forked", "begin"]


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
