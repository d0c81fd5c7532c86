"""Every error that Sublet raises on purpose, in one tree.

    SubletError
    |-- InvalidValue        a number or name that cannot exist (field, value, what is allowed)
    |-- BadInput            a file or text that cannot be read as what it claims to be (source, line, why)
    |-- UnknownName         a policy, workload, offer ... that is not there (with "did you mean")
    |-- MissingData         a file that this installation does not have (path, where it comes from)
    |-- MissingExtra        an optional dependency that is not installed (which extra to install)
    |-- Infeasible          what was asked for cannot be had (binding limit, needed, available)
    |-- RentFailed          a cloud did not give a node (offer, why, when to try again)
    |-- NoController        nothing answers where the controller should be
    |-- DamagedCheckpoint   a checkpoint that cannot be trusted (path, why)
    |-- PlanRefused         a policy asked for more than its limits allow
    `-- KernelError         the brain and the world disagree
        |-- UnexpectedEvent     an event that cannot follow from the state (with the job's story)
        `-- InvariantBroken     a law of the kernel does not hold after an event

Each error carries facts as attributes, and its message ends with the next step where there is one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "BadInput",
    "DamagedCheckpoint",
    "Infeasible",
    "InvalidValue",
    "InvariantBroken",
    "KernelError",
    "MissingData",
    "MissingExtra",
    "NoController",
    "PlanRefused",
    "RentFailed",
    "SubletError",
    "UnexpectedEvent",
    "UnknownName",
]


class SubletError(Exception):
    """The root: catching this catches every error that Sublet raises on purpose."""

    exit_code = 1


class InvalidValue(SubletError, ValueError):
    """A value that cannot exist."""

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field} = {value!r} is not allowed; it must be {allowed}")


class BadInput(SubletError):
    """A file or text that cannot be read as what it claims to be."""

    exit_code = 2

    def __init__(self, source: object, why: str, *, line: int | None = None, hint: str = "") -> None:
        self.source, self.why, self.line, self.hint = str(source), why, line, hint
        where = f"{source}, line {line}" if line is not None else f"{source}"
        super().__init__(f"{where}: {why}" + (f"\n  next: {hint}" if hint else ""))


class UnknownName(SubletError):
    """A name that nothing answers to."""

    exit_code = 2

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        close = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        if close:
            advice = "did you mean " + " or ".join(close) + "?"
        elif len(self.known) <= 20:  # noqa: PLR2004 - as many names as fit a glance
            advice = "known: " + (", ".join(self.known) or "none")
        else:
            advice = f"{len(self.known)} are known"
        super().__init__(f"no {kind} is called {name!r}; {advice}" + (f"\n  next: {hint}" if hint else ""))


class MissingData(SubletError):
    """A file that this installation does not have."""

    def __init__(self, path: object, *, hint: str) -> None:
        self.path, self.hint = str(path), hint
        super().__init__(f"{path} does not exist\n  next: {hint}")


class MissingExtra(SubletError):
    """An optional dependency that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} is not installed\n  next: pip install 'sublet[{extra}]'")


class Infeasible(SubletError):
    """What was asked for cannot be had; `binding` names the limit in the way."""

    exit_code = 112

    def __init__(self, what: str, *, binding: str, needed: float, available: float, hint: str = "") -> None:
        self.what, self.binding, self.needed, self.available = what, binding, needed, available
        super().__init__(
            f"{what}: {binding} is {available:g}, {needed:g} is needed" + (f"\n  next: {hint}" if hint else "")
        )


class RentFailed(SubletError):
    """A cloud did not give a node; nothing is paid. `wait_s` is when to try this offer again."""

    exit_code = 75

    def __init__(self, offer_id: str, why: str, *, wait_s: float = 60.0) -> None:
        self.offer_id, self.why, self.wait_s = offer_id, why, wait_s
        super().__init__(f"no node of {offer_id}: {why}; it is tried again in {wait_s:g} s")


class NoController(SubletError):
    """Nothing answers where the controller should be."""

    exit_code = 75

    def __init__(self, where: object, why: str) -> None:
        self.where, self.why = str(where), why
        super().__init__(f"no controller answers at {where}: {why}\n  next: sublet up")


class DamagedCheckpoint(SubletError):
    """A checkpoint that cannot be trusted."""

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = str(path), why
        super().__init__(f"the checkpoint {path} is damaged: {why}; an older one is used where there is one")


class PlanRefused(SubletError):
    """A policy asked for more than its limits allow: a fault in the policy, not in the world."""

    def __init__(self, binding: str, *, needed: float, available: float, now_s: float) -> None:
        self.binding, self.needed, self.available, self.now_s = binding, needed, available, now_s
        super().__init__(f"the plan at {now_s:.3f} s needs {needed:g} of {binding}, but only {available:g} may be used")


class KernelError(SubletError):
    """The brain and the world disagree."""


class UnexpectedEvent(KernelError):
    """An event that cannot follow from the state; `story` is what happened to its subject before."""

    def __init__(self, event: object, why: str, story: Sequence[str] = ()) -> None:
        self.event, self.why, self.story = event, why, tuple(story)
        tale = "".join(f"\n    {line}" for line in self.story)
        super().__init__(f"{why}: {event}" + (f"\n  its story so far:{tale}" if tale else ""))


class InvariantBroken(KernelError):
    """A law of the kernel does not hold after an event."""

    def __init__(self, law: str, found: str, story: Sequence[str] = ()) -> None:
        self.law, self.found, self.story = law, found, tuple(story)
        tale = "".join(f"\n    {line}" for line in self.story)
        super().__init__(f"{law}: {found}" + (f"\n  its story so far:{tale}" if tale else ""))
