"""Every commit and every call of a provider in a life as a crash point: the same story again, dead before or after it.

A commit is what the store writes; a call is what a controller asks of its provider (open, list, rent, release), at any
cloud; a request is what the shipped provider asks of EC2 for that. Points end where everybody is content: an end that
was asked for is not begun again.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sublet_lab.world.faults import AT_CALL, AT_COMMIT, AT_REQUEST
from sublet_lab.world.life import Life, Outcome, live
from sublet_lab.world.story import Fault, Story, draw_story

SPAN_S = 3600.0  # in which a controller may die: until all jobs have ended
A_BATCH = 20  # points that a process is given at once


class Point(NamedTuple):
    """Before or after the `number`-th of its kind."""

    kind: str
    number: int
    before: bool

    def __str__(self) -> str:
        return f"{'before' if self.before else 'after'} {NAMES[self.kind]} {self.number}"


NAMES = {AT_COMMIT: "commit", AT_CALL: "call", AT_REQUEST: "request"}


def points_of(story: Story) -> list[Point]:
    """All of a life; with the faults that it has."""
    life = Life(replace(story, span_s=SPAN_S))
    life.live()
    counts = zip(NAMES, life.stage.before_peace, strict=True)
    too_late = {Point(AT_CALL, number, before=False) for number in life.stage.under_way}
    points = [
        Point(kind, number, before) for kind, most in counts for number in range(most) for before in (True, False)
    ]
    return [point for point in points if point not in too_late]


def sample_of(story: Story, count: int, seed: int | str) -> list[Point]:
    """Some of them, drawn by a seed; of each kind that there is, as many of it as its share."""
    points = points_of(story)
    return sorted(random.Random(f"{seed}/points").sample(points, min(count, len(points))))  # noqa: S311 - no secret


def die_at(story: Story, point: Point) -> Outcome:
    """The outcome. If it has lived once only, there was no death."""
    fault = Fault(at_s=0.0, kind=point.kind, rng=2 * point.number + (not point.before))
    return live(replace(story, span_s=SPAN_S, faults=(fault, *story.faults)))


@dataclass
class Deaths:
    """The deaths of many lives."""

    lives: int = 0  # of calm seeds, each died in at all of these points
    points: Counter[str] = field(default_factory=Counter)  # by kind
    deaths: int = 0
    broken: list[str] = field(default_factory=list)
    laws: Counter[str] = field(default_factory=Counter)  # that were broken, and at how many points

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} at {NAMES[kind]}s" for kind, count in sorted(self.points.items()))
        laws = ", ".join(f"{law} {count}" for law, count in sorted(self.laws.items()))
        broke = f"{len(self.broken)} broke a law" + (f" ({laws})" if laws else "")
        return f"{self.lives} lives, {self.points.total()} points ({kinds}): {self.deaths} deaths, {broke}"

    def row(self, **facts: object) -> dict[str, object]:
        """As one line of JSON, with these facts about the run."""
        points = {NAMES[kind]: count for kind, count in sorted(self.points.items())}
        told = {"lives": self.lives, "points": points, "deaths": self.deaths, "laws": dict(self.laws)}
        return {**told, "broken": self.broken, **facts}


def die_everywhere(
    seeds: Sequence[int],
    *,
    every: int = 1,
    most: float = math.inf,
    processes: int = 2,
    cloud: str = "",
    policy: str = "",
) -> Iterator[Deaths]:
    """At every `every`-th point of each life without any other fault; the sum so far, as it grows.

    Lives of more than `most` points are left out: each point is a life again.
    """
    found = Deaths()
    context = multiprocessing.get_context("spawn")  # as runner.py
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        asked = [(seed, cloud, policy) for seed in seeds]
        lives = [
            (life, points) for life, points in zip(asked, pool.map(_points, asked), strict=True) if len(points) <= most
        ]
        found.lives = len(lives)
        batches = [
            (*life, points[::every][at : at + A_BATCH])
            for life, points in lives
            for at in range(0, len(points[::every]), A_BATCH)
        ]
        for batch in pool.map(_die, batches):
            found.points.update(batch.points)
            found.deaths += batch.deaths
            found.broken += batch.broken
            found.laws.update(batch.laws)
            yield found


def _calm_story(seed: int, cloud: str, policy: str) -> Story:
    return replace(draw_story(seed, cloud=cloud, policy=policy), faults=())


def _points(life: tuple[int, str, str]) -> list[Point]:
    return points_of(_calm_story(*life))


def _die(batch: tuple[int, str, str, list[Point]]) -> Deaths:
    *life, points = batch
    story, found = _calm_story(*life), Deaths()  # type: ignore[arg-type]  # mypy does not follow a star
    for point in points:
        found.points[point.kind] += 1
        try:
            outcome = die_at(story, point)
        except Exception as error:  # noqa: BLE001 - a finding, too, and all other points are to be died at
            found.laws["WORLD"] += 1
            found.broken.append(f"seed {story.seed}, {point}: WORLD: {error!r}")
            continue
        found.deaths += outcome.lives > 1
        if outcome.broken is not None:
            found.laws[outcome.broken.law] += 1
            found.broken.append(f"seed {story.seed}, {point}: {outcome.broken}")
    gc.collect()
    return found
