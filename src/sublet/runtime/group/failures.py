"""Whose failure it is that a worker ended, and in which words that is told."""

from __future__ import annotations

import signal
from enum import StrEnum

from sublet.runtime.group.workers import WorkerPhase

__all__ = ["LEFT_ON_ORDER", "Fault", "ending_of", "fault_of", "how_it_ended", "how_it_stopped_short"]

LEFT_ON_ORDER = 83  # exit code of a worker that left as told
NOBODY_CAME = 75  # exit code of a worker that heard no order for too long
SHELL = 128  # a shell says 128 + n of a command that signal n ended
OWN_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})


class Fault(StrEnum):
    """Whose fault it is that a worker ended."""

    USER = "user"
    INFRA = "infra"


def fault_of(code: int) -> Fault:
    """A signal from outside is nobody's bug; a crash or an exit code of its own is the script's."""
    if code in (LEFT_ON_ORDER, NOBODY_CAME, SHELL + signal.SIGKILL, SHELL + signal.SIGTERM):
        return Fault.INFRA
    return Fault.INFRA if code < 0 and -code not in OWN_FAULTS else Fault.USER


def ending_of(code: int) -> str:
    """`exit code 3`, or the name of the signal: `SIGKILL`. Negative codes are signals, as in subprocess."""
    number = -code if code < 0 else code - SHELL
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    if code >= 0:
        return f"exit code {code}" + (f", {name} in a shell" if name else "")
    return name or f"signal {number}"


def how_it_stopped_short(phase: WorkerPhase, worker_id: str = "") -> str:
    """Why a script with the SDK has trained nothing, or not all, though a worker (all, without one) ended with 0."""
    who = f"worker {worker_id}" if worker_id else "the script"
    if phase is WorkerPhase.LAUNCHED:
        return (
            f"{who} ended with exit code 0 and never opened its session, so nothing was trained\n"
            "  next: train inside of `with train.session(...) as s:`, or submit with --no-sdk"
        )
    return (
        f"{who} ended with exit code 0 before its session was over\n"
        "  next: let the `with train.session(...)` block come to its end; to stop early, break out of its loops"
    )


def how_it_ended(worker_id: str, code: int) -> str:
    """Of a worker that nobody had told to."""
    if code == 0:
        return f"{worker_id} ended with exit code 0 while the others train on"
    return f"{worker_id} was ended by {ending_of(code)}" if code < 0 else f"{worker_id} ended with {ending_of(code)}"
