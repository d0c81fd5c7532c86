"""Runs of one script compared: the first difference of each kind that random numbers do not explain."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sublet.runtime.rehearsal.advice import advice_on
from sublet.runtime.rehearsal.nearness import Allowance, apart, weights_apart
from sublet.runtime.rehearsal.report import Difference
from sublet.runtime.rehearsal.seen import Seen, SeenStep
from sublet.runtime.rehearsal.text import Odd, Twins, first_odd

__all__ = ["Noise", "compared"]

WEIGHTS, LOSS = Allowance(rounding=2e-6), Allowance(rounding=1e-5)
SMALLER, DEVIATIONS = 0.7, 4.0
FEW = 5  # steps
DRAWN = 1e-3  # losses, or most weights, that are further apart with other random numbers were drawn for, not rounded


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
    return [advice_on(each, base, run, found) for each in [*found, *more]]


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
