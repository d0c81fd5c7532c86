"""What a market does to one job: instances over time, and every moment at which something can be decided.

Instances are to be had from an instant on, at ticks of a clock or between them. A loss may be announced `notice_s`
before it happens: then there is a moment to prepare for it. Instances that come are not announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sublet.domain.quantity import at_least, positive
from sublet.errors import InvalidValue
from sublet.planning.lookahead import AnnouncedLoss

__all__ = ["Moment", "Record"]


class Moment(NamedTuple):
    """A tick, a change, or an announcement; nothing happens until the next one."""

    at_s: float
    lasts_s: float
    tick: int  # the last one so far
    on_tick: bool
    was: int
    now: int
    warned: tuple[AnnouncedLoss, ...]  # what has been announced and has not happened yet, the nearest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Instances at every tick, changes between ticks as (seconds, instances from then on), and earlier ticks."""

    capacity: tuple[int, ...]
    step_s: float = 60.0
    between: tuple[tuple[float, int], ...] = ()
    before: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        positive("step_s", self.step_s)
        counts = [*self.capacity, *self.before, *(now for _, now in self.between)]
        if not self.capacity or min(counts) < 0:
            raise InvalidValue("capacity", counts, "instances at one tick or more, none below 0")
        times = [at_s for at_s, _ in self.between]
        off_tick = all(at_s % self.step_s for at_s in times)
        if times != sorted(set(times)) or not off_tick or (times and not 0.0 < times[-1] < self.span_s):
            raise InvalidValue("between", times, f"rising times between ticks, before {self.span_s:g} s")

    @property
    def span_s(self) -> float:
        """How long it is."""
        return len(self.capacity) * self.step_s

    def changes(self) -> list[tuple[float, int]]:
        """Every change as (seconds, instances from then on); the first is the start."""
        points = sorted([*((tick * self.step_s, now) for tick, now in enumerate(self.capacity)), *self.between])
        return [point for place, point in enumerate(points) if not place or point[1] != points[place - 1][1]]

    def moments(self, notice_s: float = 0.0) -> list[Moment]:
        """All of them, in order."""
        at_least("notice_s", notice_s, 0.0)
        was = self.before[-1] if self.before else 0
        changes = self.changes()
        losses = [(at[0], last[1] - at[1]) for last, at in pairwise(changes) if at[1] < last[1]]
        at_now = dict(changes)
        announced = {max(0.0, at_s - notice_s) for at_s, _ in losses} if notice_s else set()
        times = sorted({tick * self.step_s for tick in range(len(self.capacity))} | set(at_now) | announced)
        found, now, gone = [], was, 0
        for place, at_s in enumerate(times):
            was, now = now, at_now.get(at_s, now)
            while gone < len(losses) and losses[gone][0] <= at_s:
                gone += 1
            lasts_s = (times[place + 1] if place + 1 < len(times) else self.span_s) - at_s
            tick, over_s = divmod(at_s, self.step_s)
            warned = _announced_losses(losses, gone, at_s, notice_s) if notice_s else ()
            found.append(Moment(at_s, lasts_s, int(tick), over_s == 0.0, was, now, warned))
        return found


def _announced_losses(
    losses: Sequence[tuple[float, int]], gone: int, at_s: float, notice_s: float
) -> tuple[AnnouncedLoss, ...]:
    warned = []
    for loss_s, lost in losses[gone:]:
        if max(0.0, loss_s - notice_s) > at_s:
            break
        warned.append(AnnouncedLoss(loss_s - at_s, lost))
    return tuple(warned)
