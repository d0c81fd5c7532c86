"""Processes as the kernel of the machine sees them: which live, since when, in which session; and their ends.

A pid may be used again, a pid with its start time may not. An instance is a session whose leader is the agent; while
one process of a session lives, the kernel does not give its number away.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
LISTENS = "0A"  # TCP_LISTEN, as /proc/net/tcp has it
PF_EXITING = 0x4  # linux/sched.h; set before a process lets go of its files
KILL_PATIENCE_S = 10.0  # a killed process that is still there is stuck in the kernel (a dead disk)
LOOK_AGAIN_S = 0.002


class Process(NamedTuple):
    """One line of /proc."""

    pid: int
    parent: int
    session: int
    start: int  # clock ticks after boot
    ending: bool = False  # killed, or left: its files are let go of, and it is not a zombie yet


def look(pid: int) -> Process | None:
    """The process with this number, unless it has ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - read by the hundred, twice as fast as Path
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), bool(int(fields[6]) & PF_EXITING))


def ticks_by_parent() -> dict[int, list[tuple[int, int]]]:
    """Parent -> (child, clock ticks that it and its children that have ended spent on processors), of all that run."""
    found: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all it takes
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - as in look
                text = file.read()
        except OSError:
            continue
        fields = text[text.rindex(b")") + 2 :].split()
        found.setdefault(int(fields[1]), []).append((int(name), sum(map(int, fields[11:15]))))
    return found


def alive(pid: int, start: int) -> bool:
    """Whether this very process still runs."""
    seen = look(pid)
    return seen is not None and seen.start == start


def runs(pid: int, start: int) -> bool:
    """Whether this very process is there and not on its way out: it still holds the locks that it took."""
    seen = look(pid)
    return seen is not None and seen.start == start and not seen.ending


def everybody() -> list[Process]:
    """All that run on this machine."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names are all it takes
    return [seen for pid in pids if (seen := look(pid)) is not None]


def children() -> list[int]:
    """Children of this process, if it has one thread; without a look at all processes, where the kernel lists them."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as file:  # noqa: PTH123 - as above
            return [int(word) for word in file.read().split()]
    except OSError:
        return [process.pid for process in everybody() if process.parent == me]


def instance(agent_pid: int, start: int) -> list[Process]:
    """Every process of the agent's session or descended from one in it; the agent first."""
    seen = {process.pid: process for process in everybody()}
    leader = seen.get(agent_pid)
    if leader is not None and leader.start != start:
        return []  # the number has been given away, so none of the session is left
    found = {pid: process for pid, process in seen.items() if agent_pid in (pid, process.session)}
    grown = True
    while grown:
        children = {p.pid: p for p in seen.values() if p.parent in found and p.pid not in found}
        found |= children
        grown = bool(children)
    return sorted(found.values(), key=lambda process: process.pid != agent_pid)


def kill_instance(agent_pid: int, start: int, known: Iterable[Process] = ()) -> bool:
    """SIGKILL to all of it, until none is left; `known` are members that may have left the session since.

    The agent goes first, so that it does not report its workers' deaths as theirs.
    """
    known = list(known)
    until_s = time.monotonic() + KILL_PATIENCE_S
    while True:
        left = [*instance(agent_pid, start), *(process for process in known if alive(process.pid, process.start))]
        if not left:
            return True
        if time.monotonic() > until_s:
            return False
        for process in left:
            if process.pid == os.getpid():
                continue
            if process.session != agent_pid and process not in known:
                known.append(process)  # its parent dies with it, and nothing else would lead to it
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if all(process.pid == os.getpid() for process in left):
            return True
        time.sleep(LOOK_AGAIN_S)


def met_at(port: int) -> bool:
    """Whether a socket of this machine listens on this TCP port, or is connected to it or from it."""
    return any(port in ports for ports in _ports())


def _ports() -> Iterator[tuple[int, int]]:
    for line in _sockets():
        _, local, remote, *_ = line.split()
        yield int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)


def _sockets() -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            yield from Path(table).read_text(encoding="ascii").splitlines()[1:]


def are_alone(pids: Iterable[int]) -> bool:
    """Whether torch is loaded in one of these processes, and none has a TCP socket at which another could meet it."""
    torch, sockets = False, set[str]()
    for pid in pids:
        try:
            torch = torch or "/libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed as we look
                    sockets.add(str(file.readlink()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            return False  # of another's process nothing is known
    return torch and not any(f"socket:[{inode}]" in sockets for inode in _listening())


def _listening() -> Iterator[str]:
    """The listening sockets of this machine, by inode."""
    for line in _sockets():
        fields = line.split()
        if fields[3] == LISTENS:
            yield fields[9]


def die_with_parent() -> None:
    """SIGKILL for this process when the one that forked it ends, however that ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, not of init."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def rename(name: str) -> None:
    """The name of this process in `ps -o comm`, 15 bytes at most."""
    _libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
