"""Runs of one script compared: the first difference of each kind that random numbers do not explain.

The allowed distance comes from a third run, which differs from the first in its random numbers alone. Numbers that
differ there though nothing is drawn are times of day, or what a step took.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from sublet.runtime.rehearsal.report import Difference, Seen, SeenStep

RNG = 3.0  # times the effect of other random numbers
CHAOS, CHAOS_MOST = 20.0, 1e-4  # times what a rounding grows to, as long as it stays one
OF_SUMS = 8.0  # a sum of many is that much less exact than they are
NUMBER = re.compile(r"(?<![A-Za-z_\d.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|(?<!\w)(?:nan|inf)(?!\w)")
TAKES = re.compile(r"time|elapsed|\bsec|speed|\beta\b|\bdt\b|pid|date|per.?s\b|/s\b|lasted|took", re.IGNORECASE)
UNIT = re.compile(r"\s*(?:ms|us|s|sec|seconds?|minutes?|min|h)\b|\s*[\w-]*/s")
WIDTH = re.compile(r"worker|world|rank|process|gpu|device|width", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowed difference."""

    rounding: float

    def of(self, noise: float) -> float:
        """The allowance where random numbers make so much of a difference."""
        return max(self.rounding, RNG * noise, min(CHAOS * noise, CHAOS_MOST))


PRINTED = Allowance(rounding=1e-3)  # rounded to a few digits as they are


def apart(one: float, two: float) -> float:
    """As a part of the larger."""
    if one == two or (math.isnan(one) and math.isnan(two)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(two)):
        return math.inf
    return abs(one - two) / max(abs(one), abs(two))


def weights_apart(one: np.ndarray, two: np.ndarray) -> float:
    """Two states of a parameter (`Step.weights`), as a part of its length."""
    if one.shape != two.shape:
        return math.inf
    if np.array_equal(one, two, equal_nan=True):
        return 0.0
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        return math.inf
    length, some = max(one[1], two[1]), max(float(np.linalg.norm(one[2:])), float(np.linalg.norm(two[2:])))
    found = [abs(one[0] - two[0]) / OF_SUMS / length, abs(one[1] - two[1]) / length]
    return float(max(*found, np.linalg.norm(one[2:] - two[2:]) / some if some else 0.0))


@dataclass(frozen=True, slots=True)
class Odd:
    """A line that the other run has otherwise; "" = it has none."""

    here: str
    there: str
    ratio: float | None = None  # of the number that differs


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    numbers: tuple[str, ...]
    takes: tuple[bool, ...]  # it is a time


@dataclass(frozen=True, slots=True)
class Twins:
    """The same lines of two runs that differ in their random numbers alone."""

    one: Sequence[str]
    two: Sequence[str]
    draws: bool = False  # random numbers make another training
    usual: float = 0.0  # how far its losses are apart then: one pair of numbers may be near by chance


def first_odd(base: Sequence[str], run: Sequence[str], twins: Twins, *, repeats: bool, workers: int = 1) -> Odd | None:
    """The first difference of `run` from `base`; None = nothing.

    With `repeats` lines may come twice, since steps are made again, and lines of its own are no matter.
    """
    known, found = _by_shape(base), _by_shape(run)
    ones, twos = _by_shape(twins.one), _by_shape(twins.two)
    for shape, lines in known.items():
        pairs = ones.get(shape, []), twos.get(shape, [])
        if len(pairs[0]) != len(pairs[1]) or (twins.draws and not pairs[0]):
            continue  # it depends on random numbers, or on the time
        allowed = _allowed(lines[0], *pairs, twins)
        odd = (_odd_in_sets if repeats else _odd_in_order)(lines, found.get(shape, []), allowed, workers)
        if odd is not None:
            return odd
    more = [lines[0] for shape, lines in found.items() if shape not in known and shape not in twos]
    return Odd(more[0].text, "") if more and not repeats else None


def _odd_in_order(
    lines: Sequence[_Line], others: Sequence[_Line], allowed: Sequence[float | None], workers: int
) -> Odd | None:
    for line, other in zip(lines, others, strict=False):
        if (at := _differs(line, other, allowed, workers)) is not None:
            return Odd(other.text, line.text, _ratio(line, other, at))
    if len(others) > len(lines):
        return Odd(others[len(lines)].text, "")
    return Odd("", lines[len(others)].text) if len(lines) > len(others) else None


def _odd_in_sets(
    lines: Sequence[_Line], others: Sequence[_Line], allowed: Sequence[float | None], workers: int
) -> Odd | None:
    for other in others:
        if all(_differs(line, other, allowed, workers) is not None for line in lines):
            near = max(lines, key=partial(_alike, other))
            return Odd(other.text, near.text)
    for line in lines:
        if all(_differs(line, other, allowed, workers) is not None for other in others):
            return Odd("", line.text)
    return None


def _alike(one: _Line, two: _Line) -> list[bool]:
    """Number by number; the first say most."""
    return [a == b for a, b in zip(one.numbers, two.numbers, strict=True)]


def _differs(line: _Line, other: _Line, allowed: Sequence[float | None], workers: int) -> int | None:
    """The first number that does."""
    for at, (one, two, most) in enumerate(zip(line.numbers, other.numbers, allowed, strict=True)):
        if most is None or one == two or (one == "1" and two == str(workers) and WIDTH.search(line.text)):
            continue
        if "." not in one + two and "e" not in one + two and most <= PRINTED.rounding:
            return at
        last_digit = 1.5 * 10.0 ** -len(one.partition(".")[2]) if "e" not in one.lower() else 0.0
        if apart(float(one), float(two)) > most and not abs(float(one) - float(two)) < last_digit:
            return at
    return None


def _ratio(line: _Line, other: _Line, at: int) -> float | None:
    one, two = float(line.numbers[at]), float(other.numbers[at])
    return two / one if one else None


def _allowed(line: _Line, ones: Sequence[_Line], twos: Sequence[_Line], twins: Twins) -> list[float | None]:
    """For each number of this shape how far two may be apart, as a part of them; None = it is a time."""
    columns: list[float | None] = []
    for at, number in enumerate(line.numbers):
        pairs = [(float(a.numbers[at]), float(b.numbers[at])) for a, b in zip(ones, twos, strict=True)]
        noise = max((apart(one, two) for one, two in pairs), default=0.0)
        is_time = line.takes[at] or (not twins.draws and noise > PRINTED.rounding)
        if twins.draws and (noise or not number.lstrip("+-").isdecimal()):
            noise = max(noise, twins.usual)
        columns.append(None if is_time else PRINTED.of(noise))
    return columns


def _by_shape(lines: Sequence[str]) -> dict[str, list[_Line]]:
    found: dict[str, list[_Line]] = defaultdict(list)
    for text in lines:
        numbers, takes, last = [], [], 0
        for match in NUMBER.finditer(text):
            numbers.append(match[0])
            takes.append(bool(TAKES.search(text[last : match.start()]) or UNIT.match(text[match.end() :])))
            last = match.end()
        found[NUMBER.sub("#", text)].append(_Line(text, tuple(numbers), tuple(takes)))
    return found


NEAR = 0.02  # of a ratio
SUM = "the loss is a sum over samples: say reduction='sum' in train.session(...)"
COUNTED = (
    "the loss is no mean over samples (a mean over tokens, or over what is not masked?): give the sum, "
    "s.step(loss_sum, counted=n) with reduction='counted'"
)
EDITED = (
    "the loss is the same and the update is not: look for what changes gradients in the loop (a clip is "
    "clip_norm=...), and for layers with batch statistics"
)
LATER = "look for what the script changes between steps by its own part of the batch, such as a rate by loss.item()"
LOST = "something that training depends on is lost with a process: s.keep(...) it, or give it as extra_state="
LOG = "log s.loss, the mean over the global batch; loss.item() is of this worker's part"
COUNT = "it counts this worker's part of the batch: let it follow from s.steps, which is the same at any worker count"
ONE_WRITER = "write it by one worker: `if s.rank == 0:`"
AGAIN = "what it says is lost with a process: s.keep(...) it; and open the file to append, by one worker"
KEEP = "what it says is lost with a process: s.keep(...) it, or let it follow from s.steps"
FOLLOWS = "it may follow from the difference above"
OWN_BATCH = (
    "each worker has batches of its own: divide the batch by WORLD_SIZE and print means over all, or give the script a "
    "session (`sublet convert`)"
)
OWN_WRITER = "write it by one worker: `if rank == 0:`, by the variable RANK"
OWN_CHECKPOINT = "go on from a checkpoint of the script's own (train.checkpointed), with all that it says in it"
FAILED = "look at the last lines; `sublet run --workers 2 -- ...` shows all of them"
WEIGHTS, LOSS = Allowance(rounding=2e-6), Allowance(rounding=1e-5)
SMALLER, DEVIATIONS = 0.7, 4.0
FEW = 5  # steps
DRAWN = 1e-3  # losses, or most weights, that are further apart with other random numbers were drawn for, not rounded


def _advice_on(difference: Difference, base: Seen, run: Seen, states: Sequence[Difference]) -> Difference:
    """The same, with what to do."""
    return replace(difference, advice=_advice(difference, base, run, states))


def _advice(difference: Difference, base: Seen, run: Seen, states: Sequence[Difference]) -> str:
    killed, kind = difference.run == "kill", difference.kind
    if kind == "failure":
        return FAILED
    if kind in ("loss", "weights") and difference is not states[0]:
        return FOLLOWS
    if kind in ("loss", "weights", "steps"):
        return LOST if killed else _of_width(base, run, states)
    plain = not base.steps  # it has no session
    if "written by several" in difference.evidence:
        return OWN_WRITER if plain else ONE_WRITER
    if plain:
        return OWN_CHECKPOINT if killed else OWN_BATCH
    if states:
        return FOLLOWS
    if kind == "file":
        return AGAIN if killed else f"{ONE_WRITER}; {LOG}"
    if killed:
        return KEEP
    return COUNT if _is_share(difference, run.workers) else LOG


def _of_width(base: Seen, run: Seen, states: Sequence[Difference]) -> str:
    """If the loss differs first, it did so of the same weights."""
    if any("on average" in each.evidence for each in states):
        return SUM
    loss, weights = (_first(states, kind) for kind in ("loss", "weights"))
    if loss is not None and (weights is None or loss <= weights):
        one, two = base.steps[loss].loss, run.steps[loss].loss
        return SUM if one and apart(two / one, 1.0 / run.workers) < NEAR else COUNTED
    return EDITED if weights == 1 else LATER


def _first(states: Sequence[Difference], kind: str) -> int | None:
    return next((each.step for each in states if each.kind == kind), None)


def _is_share(difference: Difference, workers: int) -> bool:
    found = re.findall(r"\d+(?:\.\d+)?", difference.evidence)
    half = len(found) // 2
    pairs = zip(found[:half], found[half:], strict=False)
    return any(float(b) and apart(float(a) / float(b), 1.0 / workers) < NEAR for a, b in pairs)


@dataclass(slots=True)
class Noise:
    """The distance of two runs that differ in their random numbers alone, up to each step."""

    base: Seen
    again: Seen
    loss: float = 0.0  # at any step
    weights: dict[int, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        most = dict[str, float]()
        for step, one, two in _both(self.base, self.again):
            self.loss = max(self.loss, apart(one.loss, two.loss))
            for name, far in _weights(one, two):
                most[name] = max(most.get(name, 0.0), far)
            usual = float(np.median(list(most.values()))) if most else 0.0
            self.weights[step] = {name: max(far, usual) for name, far in most.items()}
        known = sorted(self.weights)
        for step in known[:FEW]:  # one pair at one step is no measure yet
            self.weights[step] = self.weights[known[:FEW][-1]]

    @property
    def draws(self) -> bool:
        """Whether other random numbers make another training."""
        last = list(self.weights.get(max(self.weights, default=0), {}).values())
        return self.loss > DRAWN or (bool(last) and float(np.median(last)) > DRAWN)


def compared(noise: Noise, base: Seen, run: Seen, *, killed: bool) -> list[Difference]:
    """Differences of `run` from `base`, in the order in which they show."""
    name = "kill" if killed else "width"
    found = [*_failures(name, base, run), *_states(noise, name, base, run)]
    found.sort(key=lambda each: math.inf if each.step is None else each.step)
    more = _texts(noise, name, base, run, killed=killed)
    return [_advice_on(each, base, run, found) for each in [*found, *more]]


def _failures(name: str, base: Seen, run: Seen) -> Iterator[Difference]:
    if run.failure and not base.failure:
        yield Difference(run=name, kind="failure", evidence=run.failure)


def _states(noise: Noise, name: str, base: Seen, run: Seen) -> Iterator[Difference]:
    has_loss = has_weights = False
    for step, one, two in _both(base, run):
        if not has_loss and apart(one.loss, two.loss) > LOSS.of(noise.loss) and step:
            has_loss = True
            yield Difference(
                run=name, kind="loss", step=step, name="s.loss", evidence=f"{two.loss:.6g} in place of {one.loss:.6g}"
            )
        if has_weights:
            continue
        known = noise.weights.get(step, {})
        over = {each: far for each, far in _weights(one, two) if far > WEIGHTS.of(known.get(each, 0.0))}
        if over:
            has_weights = True
            worst = max(over, key=lambda each: over[each])
            evidence = f"differs by {over[worst]:.2g} of its length, with another seed by {known.get(worst, 0.0):.2g}"
            yield Difference(run=name, kind="weights", step=step, name=worst, evidence=evidence)
    if not has_loss and noise.draws and (evidence := _halved(noise, base, run)):
        yield Difference(run=name, kind="loss", name="s.loss", evidence=evidence)
    if not run.failure and not base.failure and run.made != base.made:
        evidence = f"{run.made} steps in place of {base.made}"
        yield Difference(run=name, kind="steps", evidence=evidence)


def _halved(noise: Noise, base: Seen, run: Seen) -> str:
    """Each loss may be within the noise, and all together are not."""
    there, usual = _log_ratios(base, run), _log_ratios(base, noise.again)
    if not there.size or not usual.size or there.mean() > math.log(SMALLER):
        return ""
    spread = max(abs(float(usual.mean())), float(usual.std()) / math.sqrt(usual.size))
    ratio = math.exp(there.mean())
    return f"on average {ratio:.2f} of what it is in the other run" if -there.mean() > DEVIATIONS * spread else ""


def _log_ratios(one: Seen, two: Seen) -> np.ndarray:
    pairs = [(a.loss, b.loss) for step, a, b in _both(one, two) if step and a.loss > 0.0 and b.loss > 0.0]
    return np.log([b / a for a, b in pairs]) if pairs else np.zeros(0)


def _texts(noise: Noise, name: str, base: Seen, run: Seen, *, killed: bool) -> Iterator[Difference]:
    if run.failure and not base.failure:
        return  # it has not come so far
    again = noise.again
    twins = Twins(noise.base.lines, again.lines, noise.draws, noise.loss)
    lines = (base.all_lines, run.all_lines) if killed else (base.lines, run.lines)
    odd = first_odd(*lines, twins, repeats=killed, workers=run.workers)
    if odd is not None:
        yield Difference(run=name, kind="line", name=odd.here or odd.there, evidence=_said(odd, "printed"))
    for path in run.shared:
        if not killed and path in run.files:
            yield Difference(run=name, kind="file", name=path, evidence=f"written by several of {run.workers} workers")
    shapes = {_shape(path) for path in base.files}
    for path in sorted({*base.files, *run.files}):
        if (path in base.files) != (path in again.files) and path in noise.base.files:
            continue
        if path not in run.files:
            yield Difference(run=name, kind="file", name=path, evidence="it is not written")
        elif path not in base.files:
            if _shape(path) not in shapes:
                yield Difference(run=name, kind="file", name=path, evidence="it is written in this run alone")
        elif path not in run.shared or killed:
            texts = [_text(seen.files.get(path, b"")) for seen in (base, run, noise.base, again)]
            if any(text is None for text in texts):
                continue
            here, there, one, two = (text or [] for text in texts)
            twins = Twins(one, two, noise.draws, noise.loss)
            odd = first_odd(here, there, twins, repeats=killed, workers=run.workers)
            if odd is not None:
                yield Difference(run=name, kind="file", name=path, evidence=_said(odd, "has the line"))


def _said(odd: Odd, verb: str) -> str:
    if not odd.there:
        return f"{verb} {odd.here!r}, which the other run has not, or not so often"
    return f"{verb} {odd.here!r} in place of {odd.there!r}" if odd.here else f"{odd.there!r} is missing"


def _text(content: bytes) -> list[str] | None:
    """Its lines; None = it is no text."""
    try:
        return None if b"\0" in content else [line for line in content.decode("utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError:
        return None


def _shape(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _both(one: Seen, two: Seen) -> Iterator[tuple[int, SeenStep, SeenStep]]:
    for step in sorted(one.steps.keys() & two.steps.keys()):
        yield step, one.steps[step], two.steps[step]


def _weights(one: SeenStep, two: SeenStep) -> Iterator[tuple[str, float]]:
    for name in one.weights.keys() | two.weights.keys():
        both = name in one.weights and name in two.weights
        yield name, weights_apart(one.weights[name], two.weights[name]) if both else math.inf
