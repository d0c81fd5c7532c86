"""Diaries of the workers of a paced grid: their places over time, and whether each sample was taken once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One applied step of one worker."""

    worker: str
    generation: int
    step: int  # steps made before it
    grid: tuple[int, int]  # copies, parts
    place: tuple[int, int]  # copy, part
    samples: tuple[int, ...]  # that its copy took
    since_s: float  # of the machine's monotonic clock, when its first micro-batch began
    at_s: float  # when the step was over
    loss: str  # to the bit


@dataclass(frozen=True, slots=True)
class Span:
    """A worker at its place, as long as it stayed there."""

    place: tuple[int, int]
    worker: str
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Accounts of all steps that a worker reports as applied."""

    steps: int
    missing: int  # samples of these steps that no copy says it took
    twice: int  # that were taken more than once in their epoch
    disputed: int  # steps of which two workers say different things
    again: int  # steps that were made once more, since all had gone back to a checkpoint

    @property
    def clean(self) -> bool:
        """Every sample once, and all agree."""
        return not (self.missing or self.twice or self.disputed)


def read_rows(folder: Path) -> list[Row]:
    """Rows of all workers that wrote there, in order of time; a line that is being written is left out.

    A worker that was killed, or lost its place, before it could report a step has said which samples it took. They
    count if others say that the step was applied in that very generation: made again, it is of a later one.
    """
    found, took = [], dict[tuple[int, int, str], dict[str, Any]]()
    for path in sorted(folder.iterdir()):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                facts = json.loads(line)
                facts |= {name: tuple(facts[name]) for name in ("grid", "place", "samples")}
                if "loss" in facts:
                    found.append(Row(**facts))
                else:
                    took[facts["step"], facts["generation"], facts["worker"]] = facts
    applied = {(row.step, row.generation): row for row in found}
    for row in found:
        took.pop((row.step, row.generation, row.worker), None)
    for (step, generation, _), facts in took.items():
        if (other := applied.get((step, generation))) is not None:
            found.append(Row(**facts, loss=other.loss, at_s=other.at_s))
    return sorted(found, key=lambda row: row.at_s)


def accounts(rows: Sequence[Row], *, steps: int, batch: int, samples: int) -> Accounts:
    """Whether `steps` steps took each sample of their epochs once; batches do not go over the end of an epoch.

    The parts of a copy that take samples take the same, and one of them is enough to say so. Of a step that was made
    again what counts is the last time: going back to a checkpoint has undone what was before.
    """
    last: dict[int, int] = {}  # generation that made it
    for row in rows:
        last[row.step] = max(row.generation, last.get(row.step, row.generation))
    by_step: dict[int, list[Row]] = {}
    for row in rows:
        if row.generation == last[row.step]:
            by_step.setdefault(row.step, []).append(row)
    disputed = 0
    taken: dict[int, Counter[int]] = {}  # by epoch
    per_epoch = -(-samples // batch)
    for step, said in by_step.items():
        by_copy = {row.place[0]: row.samples for row in said if row.samples}
        agree = all(row.samples == by_copy[row.place[0]] for row in said if row.samples)
        disputed += not (agree and len({(row.grid, row.loss) for row in said}) == 1)
        for each in by_copy.values():
            taken.setdefault(step // per_epoch, Counter()).update(each)
    whole, over = divmod(steps, per_epoch)
    wanted = whole * samples + min(over * batch, samples)
    once = sum(len(counts) for counts in taken.values())
    return Accounts(
        steps=len(by_step),
        missing=wanted - once,
        twice=sum(counts.total() - len(counts) for counts in taken.values()),
        disputed=disputed,
        again=len({(row.step, row.generation) for row in rows}) - len(last),
    )


def steps_per_s(*runs: Sequence[Row]) -> dict[tuple[int, int], float]:
    """By grid, over all of these runs: steps that followed one of the same grid, and how long they took together."""
    counts, took_s = Counter[tuple[int, int]](), defaultdict[tuple[int, int], float](float)
    for rows in runs:
        ends: dict[tuple[int, int], tuple[Row, float]] = {}
        for row in rows:
            _, at_s = ends.get((row.generation, row.step), (row, row.at_s))
            ends[row.generation, row.step] = row, max(at_s, row.at_s)
        for (generation, step), (row, at_s) in ends.items():
            if (generation, step - 1) in ends:
                counts[row.grid] += 1
                took_s[row.grid] += at_s - ends[generation, step - 1][1]
    return {grid: count / took_s[grid] for grid, count in counts.items()}


def spans(rows: Sequence[Row]) -> list[Span]:
    """Places of workers, each from the first step that it began there to the last that it ended, by place and time."""
    found: list[Span] = []
    last: dict[tuple[int, int], tuple[Span, int]] = {}
    for row in rows:
        before, step = last.get(row.place, (None, 0))
        if before is not None and before.worker == row.worker and row.step <= step + 1:
            last[row.place] = (Span(row.place, row.worker, before.since_s, row.at_s), row.step)
            continue
        if before is not None:
            found.append(before)
        last[row.place] = (Span(row.place, row.worker, row.since_s, row.at_s), row.step)
    return sorted([*found, *(span for span, _ in last.values())], key=lambda span: (span.place, span.since_s))
