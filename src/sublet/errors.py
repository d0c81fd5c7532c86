"""Every error that Sublet raises on purpose, in one tree.

    SubletError
    |-- InvalidValue        a number or name that cannot exist (field, value, what is allowed)
    |-- BadInput            a file or text that cannot be read as what it claims to be (source, line, why)
    |   `-- StoreFailed         a store that could be read and cannot be written any more: nobody's input (path, why)
    |-- UnknownName         a policy, workload, offer ... that is not there (with "did you mean")
    |-- MissingData         a file that this installation does not have (path, where it comes from)
    |-- MissingExtra        an optional dependency that is not installed (which extra to install)
    |-- Infeasible          what was asked for cannot be had (binding limit, needed, available)
    |-- RentFailed          a cloud did not give a node (offer, why, when to try again)
    |-- NoAccess            a cloud does not let us in, or not do that (what, why, how to get it)
    |-- NoAnswer            a cloud gave no clear answer: it may have been done, or not (what, why)
    |-- StaleController     another controller has its store now: it does nothing any more (path, its life, the other's)
    |-- TooManyCalls        a cloud is asked more often than it likes; nothing was done (what, why, how long to wait)
    |-- StewardGone         what looked after nodes of a Ray cluster is dead, with all that it had started (what, why)
    |-- NoController        nothing answers where the controller should be
    |-- NoSuchJob           no job, or more than one, is called that
    |-- NotNow              a verb that does not fit the phase of the job (job, phase, verb)
    |-- OutOfBudget         the money is spent (spent, limit)
    |-- Refused             the controller said no, in its own words
    |-- DamagedCheckpoint   a checkpoint that cannot be trusted (path, why)
    |-- NoCheckpointLeft    all checkpoints of a directory are damaged (directory, how many, why of the newest)
    |-- CheckpointFailed    a checkpoint that was not written (path, why); those before it are as they were
    |   `-- StaleWriter         its writer belongs to a generation that is over
    |-- OutOfMemory         a step that does not fit into the memory of its device (samples at a time)
    |-- RanksDiffer         workers of one job that no longer train the same model (what, which ranks, step)
    |-- PlanRefused         a policy asked for more than its limits allow
    |-- PolicyFailed        a policy gave no plan: it raised, was too slow, or answered nonsense (why)
    `-- KernelError         the brain and the world disagree
        |-- UnexpectedEvent     an event that cannot follow from the state (with the job's story)
        |-- NeverAtRest         a simulation that goes round in circles (where, how often, what came last)
        `-- InvariantBroken     a law of the kernel does not hold after an event

Each error carries facts as attributes, and its message ends with the next step where there is one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "BadInput",
    "CheckpointFailed",
    "DamagedCheckpoint",
    "Infeasible",
    "InvalidValue",
    "InvariantBroken",
    "KernelError",
    "MissingData",
    "MissingExtra",
    "NeverAtRest",
    "NoAccess",
    "NoAnswer",
    "NoCheckpointLeft",
    "NoController",
    "NoSuchJob",
    "NotNow",
    "OutOfBudget",
    "OutOfMemory",
    "PlanRefused",
    "PolicyFailed",
    "RanksDiffer",
    "Refused",
    "RentFailed",
    "StaleController",
    "StaleWriter",
    "StewardGone",
    "StoreFailed",
    "SubletError",
    "TooManyCalls",
    "UnexpectedEvent",
    "UnknownName",
]


class SubletError(Exception):
    """The root: catching this catches every error that Sublet raises on purpose."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """With its facts, whatever its constructor takes: an error may come from another process."""
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


def _rebuilt(kind: type[SubletError], args: tuple[object, ...], facts: dict[str, object]) -> SubletError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


LONGEST_VALUE = 200  # letters of a wrong value that are repeated


def _short(value: object) -> str:
    """A value as it was written, cut where it is too long to be read."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


class InvalidValue(SubletError, ValueError):
    """A value that cannot exist."""

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field} = {_short(value)} is not allowed; it must be {allowed}")


class BadInput(SubletError):
    """A file or text that cannot be read as what it claims to be."""

    exit_code = 2

    def __init__(self, source: object, why: str, *, line: int | None = None, hint: str = "") -> None:
        self.source, self.why, self.line, self.hint = str(source), why, line, hint
        where = f"{source}, line {line}" if line is not None else f"{source}"
        super().__init__(f"{where}: {why}" + (f"\n  next: {hint}" if hint else ""))


class StoreFailed(BadInput):
    """The store of a controller that runs cannot be written any more. Nothing was done; the input was right."""

    exit_code = 74  # EX_IOERR


class UnknownName(SubletError):
    """A name that nothing answers to."""

    exit_code = 2

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        close = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        few = len(self.known) <= 20  # noqa: PLR2004 - as many names as fit a glance
        others = "known: " + (", ".join(self.known) or "none") if few else f"{len(self.known)} are known"
        advice = "did you mean " + " or ".join(close) + "?" if close else others
        super().__init__(f"no {kind} is called {name!r}; {advice}" + (f"\n  next: {hint}" if hint else ""))


class MissingData(SubletError):
    """A file that this installation does not have."""

    def __init__(self, path: object, *, hint: str) -> None:
        self.path, self.hint = str(path), hint
        super().__init__(f"{path} does not exist\n  next: {hint}")


class MissingExtra(SubletError):
    """An optional dependency that is not installed."""

    def __init__(self, what: str, extra: str, *, place: str = "'.[{}]'") -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} is not installed\n  next: pip install {place.format(extra)} in your clone of Sublet")


class Infeasible(SubletError):
    """The request cannot be met; `binding` names the limit in the way."""

    exit_code = 112

    def __init__(
        self, what: str, *, binding: str, needed: float, available: float, hint: str = "", exit_code: int = 112
    ) -> None:
        self.what, self.binding, self.needed, self.available = what, binding, needed, available
        self.exit_code = exit_code  # 110 if money is in the way, 111 if time is
        super().__init__(
            f"{what}: {binding} is {available:g}, {needed:g} is needed" + (f"\n  next: {hint}" if hint else "")
        )


class RentFailed(SubletError):
    """A cloud did not give a node; nothing is paid. `wait_s` is when to try this offer again.

    `was_there`: an earlier call with this token did have one, which was paid for, and it is gone.
    """

    exit_code = 75

    def __init__(self, offer_id: str, why: str, *, wait_s: float = 60.0, was_there: bool = False) -> None:
        self.offer_id, self.why, self.wait_s, self.was_there = offer_id, why, wait_s, was_there
        super().__init__(f"no node of {offer_id}: {why}; it is tried again in {wait_s:g} s")


class NoAccess(SubletError):
    """A cloud does not let us in, or lets us in and not do that. Nothing was done."""

    exit_code = 77  # EX_NOPERM

    def __init__(self, what: str, why: str, *, hint: str) -> None:
        self.what, self.why, self.hint = what, why, hint
        super().__init__(f"{what} is not allowed: {why}\n  next: {hint}")


class NoAnswer(SubletError):
    """A cloud gave no clear answer: what was asked for may have been done, or not. Asking again does no harm."""

    exit_code = 75

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: no clear answer ({why}); it is asked again")


class StaleController(SubletError):
    """A controller that slept while another one took its store over: it does nothing any more."""

    exit_code = 75

    def __init__(self, path: object, *, life: int, now: int | None) -> None:
        self.path, self.life, self.now = str(path), life, now
        if now is None:
            why = f"is another file than the one that controller {life} of it had opened"
        else:
            why = f"controller {now} of it has begun, this one was controller {life}"
        text = f"{path}: {why}: nothing more is written, ordered or rented here"
        super().__init__(f"{text}\n  next: 'sublet ps' asks the one that goes on; 'sublet up' where none does")


class TooManyCalls(SubletError):
    """A cloud was asked more often than it likes. Nothing was done; `wait_s` is how long it wants peace, if it says."""

    exit_code = 75

    def __init__(self, what: str, why: str, *, wait_s: float | None = None) -> None:
        self.what, self.why, self.wait_s = what, why, wait_s
        super().__init__(f"{what}: too many calls ({why}); it is asked again, more slowly")


class StewardGone(SubletError):
    """Ray says for certain that an actor of ours, and with it all that it had started, is dead."""

    exit_code = 75

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: its steward is gone ({why}); another one is started when there is need")


class NoController(SubletError):
    """Nothing answers where the controller should be; if `silent`, something is there, stopped or hanging."""

    exit_code = 75

    def __init__(self, where: object, why: str, *, hint: str = "sublet up", silent: bool = False) -> None:
        self.where, self.why, self.silent = str(where), why, silent
        super().__init__(f"no controller answers at {where}: {why}\n  next: {hint}")


class NoSuchJob(SubletError):
    """No job, or more than one, answers to this name, id or prefix."""

    exit_code = 102  # as SkyPilot's JobExitCode

    def __init__(self, asked: str, known: Iterable[str], *, several: Sequence[str] = ()) -> None:
        self.asked, self.several = asked, tuple(several)
        if self.several:
            text = f"{len(self.several)} jobs are called {asked!r}: {', '.join(self.several)}"
            super().__init__(f"{text}\n  next: give the id, or more of it")
            return
        close = difflib.get_close_matches(asked, sorted(set(known)), n=3, cutoff=0.5)
        advice = "did you mean " + " or ".join(close) + "?" if close else "there is none like it"
        super().__init__(f"no job is called {asked!r}; {advice}\n  next: sublet ps")


class NotNow(SubletError):
    """A verb that does not fit the phase of the job."""

    def __init__(self, job_id: str, phase: str, verb: str, *, hint: str = "sublet ps") -> None:
        self.job_id, self.phase, self.verb, self.hint = job_id, phase, verb, hint
        super().__init__(f"job {job_id} is {phase}: it cannot {verb}\n  next: {hint}")


class OutOfBudget(SubletError):
    """The money is spent, or reserved to give up safely what is rented."""

    exit_code = 110

    def __init__(
        self, what: str, *, spent_usd: float, limit_usd: float, hint: str = "sublet budget top-up USD"
    ) -> None:
        self.what, self.spent_usd, self.limit_usd, self.hint = what, spent_usd, limit_usd, hint
        text = f"{what}: USD {spent_usd:.2f} of USD {limit_usd:.2f} are spent or reserved"
        super().__init__(f"{text}\n  next: {hint}")


class Refused(SubletError):
    """The controller said no; its words, and the exit code that goes with them."""

    def __init__(self, said: str, *, exit_code: int = 1, status: int = 0) -> None:
        self.said, self.exit_code, self.status = said, exit_code, status
        super().__init__(said)


class DamagedCheckpoint(SubletError):
    """A checkpoint that cannot be trusted."""

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = str(path), why
        super().__init__(f"the checkpoint {path} is damaged: {why}; an older one is used where there is one")


class NoCheckpointLeft(SubletError):
    """There are checkpoints, and none can be trusted: training starts from nothing only on request."""

    def __init__(self, directory: object, count: int, why: str) -> None:
        self.directory, self.count, self.why = str(directory), count, why
        hint = "bring one back from a copy, or set SUBLET_START_OVER=1 to set them aside and begin at step 0"
        super().__init__(f"all {count} checkpoints in {directory} are damaged (the newest: {why})\n  next: {hint}")


class CheckpointFailed(SubletError):
    """A checkpoint that was not written; those before it are as they were."""

    def __init__(self, path: object, why: str, *, hint: str) -> None:
        self.path, self.why, self.hint = str(path), why, hint
        super().__init__(f"no checkpoint was written at {path}: {why}; the ones before it are kept\n  next: {hint}")


class StaleWriter(CheckpointFailed):
    """A writer of a generation that is over tried to commit."""

    def __init__(self, path: object, step: int, *, generation: int, announced: int) -> None:
        self.step, self.generation, self.announced = step, generation, announced
        why = f"step {step} is of generation {generation}, but generation {announced} has begun"
        super().__init__(path, why, hint="nothing: the newer generation writes its own")


class OutOfMemory(SubletError):
    """A step does not fit into memory, and only its author can make it smaller."""

    def __init__(self, samples: int, *, hint: str) -> None:  # 0 samples: when all of them are gone again
        self.samples, self.hint = samples, hint
        what = {0: "the optimizer's step does", 1: "one sample at a time does"}.get(samples, f"{samples} at a time do")
        super().__init__(f"{what} not fit into the memory of the device\n  next: {hint}")


class RanksDiffer(SubletError):
    """Workers of one job that no longer train the same model."""

    def __init__(self, what: str, *, ranks: Sequence[int], step: int, hint: str) -> None:
        self.what, self.ranks, self.step, self.hint = what, list(ranks), step, hint
        named = f"{', '.join(map(str, ranks))} " + ("differs from rank 0" if len(ranks) == 1 else "differ from rank 0")
        who = ("rank " if len(ranks) == 1 else "ranks ") + (named if ranks else "differ")  # which is not known
        super().__init__(f"at step {step} {who} in {what}: this is no result\n  next: {hint}")


class PlanRefused(SubletError):
    """A policy asked for more than its limits allow: a fault in the policy, not in the world."""

    def __init__(self, binding: str, *, needed: float, available: float, now_s: float) -> None:
        self.binding, self.needed, self.available, self.now_s = binding, needed, available, now_s
        super().__init__(f"the plan at {now_s:.3f} s needs {needed:g} of {binding}, but only {available:g} may be used")


class PolicyFailed(SubletError):
    """A policy gave no plan, for whatever reason. The request is not done; the plan before it stands."""

    exit_code = 75

    def __init__(self, why: str, detail: str = "") -> None:
        self.why, self.detail = why, detail
        super().__init__(f"the policy gave no plan: {why}" + (f" ({detail})" if detail else ""))


class KernelError(SubletError):
    """The brain and the world disagree."""


class UnexpectedEvent(KernelError):
    """An event that cannot follow from the state; `story` is what happened to its subject before."""

    def __init__(self, event: object, why: str, story: Sequence[str] = ()) -> None:
        self.event, self.why, self.story = event, why, tuple(story)
        tale = "".join(f"\n    {line}" for line in self.story)
        super().__init__(f"{why}: {event}" + (f"\n  its story so far:{tale}" if tale else ""))


class NeverAtRest(KernelError):
    """A simulation that goes round in circles, and would for ever: a fault in the policy or in the kernel."""

    def __init__(self, what: str, *, count: int, now_s: float, last: Sequence[object]) -> None:
        self.what, self.count, self.now_s, self.last = what, count, now_s, tuple(last)
        tale = "".join(f"\n    {_short(event)}" for event in self.last)
        super().__init__(f"at {now_s:.3f} s: {what}, {count:,} times in a row; the last of them:{tale}")


class InvariantBroken(KernelError):
    """A law of the kernel does not hold after an event."""

    def __init__(self, law: str, found: str, story: Sequence[str] = ()) -> None:
        self.law, self.found, self.story = law, found, tuple(story)
        tale = "".join(f"\n    {line}" for line in self.story)
        super().__init__(f"{law}: {found}" + (f"\n  its story so far:{tale}" if tale else ""))
