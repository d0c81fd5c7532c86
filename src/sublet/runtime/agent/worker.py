"""One worker of an agent: how its process begins, what is kept of it, and the last words of its log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from sublet.runtime.agent.line_reader import LineReader
from sublet.runtime.agent.processes import die_with_parent, rename
from sublet.runtime.agent.reading import Reading
from sublet.runtime.agent.script import run_script, warm_command
from sublet.runtime.agent.watching import Watch
from sublet.wire.messages import StartWorker, WorkerUp

__all__ = ["Worker", "start"]

CANNOT_START = 127  # as a shell says of a command that is not there
LAST_LINES = 20
LAST_BYTES = 8192  # looked at for the last lines, however long they are


class Worker:
    """A process, and the agent's end of its control line."""

    def __init__(self, order: StartWorker, pid: int, line: socket.socket, log_from: int) -> None:
        self.worker_id, self.job_id = order.worker_id, order.job_id
        self.pid = pid
        self.line: socket.socket | None = line  # None = closed by the worker
        self.reader = LineReader()
        self.unsent = bytearray()
        self.complaints = 0
        self.kill_at_s: float | None = None  # when its grace is over
        self.up: WorkerUp | None = None  # what was told of its start
        self.watch: Watch | None = None  # for one without a session
        self._log, self._log_from = order.log, log_from

    def close(self) -> None:
        """Our end of the line."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def last_words(self) -> str:
        """The last lines that it printed."""
        if not self._log:
            return ""
        try:
            with Path(self._log).open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_from, end - LAST_BYTES))
                text = file.read(LAST_BYTES).decode(errors="replace")
        except OSError as error:
            return f"its log cannot be read: {error}"
        return "\n".join(text.splitlines()[-LAST_LINES:])


def start(order: StartWorker, own_env: Mapping[str, str]) -> Worker:
    """Fork it, in a process group of its own within the session of the agent; OSError where that cannot be."""
    log, log_from = _open_log(order.log)
    if order.note:
        os.write(log, f"{order.note}\n".encode())
    folder = {**order.env, **own_env}.get("SUBLET_CHECKPOINT_DIR", "")
    reading = Reading(folder) if order.reads else None  # before it can read anything
    ours, theirs = socket.socketpair()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        agent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _child(order, own_env, log, theirs.fileno(), agent)  # does not return
    except OSError:
        ours.close()
        if reading is not None:
            reading.let_go()
        raise
    finally:
        os.close(log)
        theirs.close()
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # the child does it too: whoever comes first
    ours.settimeout(0.0)
    worker = Worker(order, pid, ours, log_from)
    if order.watch:
        env = {**order.env, **own_env}
        worker.watch = Watch(worker.worker_id, pid, order.log, env, time.monotonic(), reading)
    return worker


def _open_log(name: str) -> tuple[int, int]:
    if not name:
        return os.open(os.devnull, os.O_WRONLY), 0
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    return log, os.lseek(log, 0, os.SEEK_END)


def _child(order: StartWorker, own_env: Mapping[str, str], log: int, control: int, agent: int) -> None:
    code = CANNOT_START
    try:
        die_with_parent()
        if os.getppid() != agent:
            return  # it died before we could ask for that
        os.setpgid(0, 0)
        _reset_signals()
        control = _only_descriptors(log, control)
        for name, value in order.defaults.items():
            os.environ.setdefault(name, value)
        os.environ.update({**order.env, **own_env, "SUBLET_CONTROL_FD": str(control)})
        os.chdir(order.cwd or ".")
        command = warm_command(order.argv, order.env)
        if command is None:
            os.execvpe(order.argv[0], order.argv, os.environ)  # noqa: S606 - a command is what was asked for
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
