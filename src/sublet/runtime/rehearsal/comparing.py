"""Runs of one script compared: the first difference of each kind that random numbers do not explain."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sublet.runtime.rehearsal.report import Difference, Seen, SeenStep
from sublet.runtime.rehearsal.text import Allowance, Odd, Twins, apart, first_odd, weights_apart

__all__ = ["Noise", "compared"]

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
