"""A market for one job: instances over time, all zones together, and every moment at which that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sublet.domain.quantity import positive
from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace


class RideMoment(NamedTuple):
    """A tick or a change; nothing happens until the next one."""

    at_s: float
    lasts_s: float
    was: int
    now: int


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

    @property
    def begins_s(self) -> float:
        """When it starts, on a clock that counts from the first of the earlier ticks."""
        return len(self.before) * self.step_s

    def changes(self) -> list[tuple[float, int]]:
        """Every change as (seconds, instances from then on); the first is the start."""
        ticks = ((tick * self.step_s, now) for tick, now in enumerate(self.capacity))
        return _without_repeats(sorted([*ticks, *self.between]))

    def with_before(self) -> list[tuple[float, int]]:
        """The same, on the clock that counts from the first of the earlier ticks."""
        past = [(tick * self.step_s, now) for tick, now in enumerate(self.before)]
        return _without_repeats([*past, *((self.begins_s + at_s, now) for at_s, now in self.changes())])

    def moments(self) -> list[RideMoment]:
        """All of them, in order."""
        was = self.before[-1] if self.before else 0
        at_now = dict(self.changes())
        times = sorted({tick * self.step_s for tick in range(len(self.capacity))} | set(at_now))
        found, now = [], was
        for at_s, end_s in zip(times, [*times[1:], self.span_s], strict=True):
            was, now = now, at_now.get(at_s, now)
            found.append(RideMoment(at_s, end_s - at_s, was, now))
        return found


def _without_repeats(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    return [point for place, point in enumerate(points) if not place or point[1] != points[place - 1][1]]


def capacity_of(trace: SpotTrace, *, step_s: float = 60.0) -> list[int]:
    """Instances at every tick, all zones together, the last instant included."""
    ticks = int(trace.span_s // step_s) + 1
    return [sum(trace.value_at(zone, tick * step_s) for zone in trace.zones) for tick in range(ticks)]


def record_of(trace: SpotTrace, *, most: int | None = None, step_s: float = 60.0, ticks: int | None = None) -> Record:
    """Instances at every tick and at every change between ticks, all zones together, `most` at most.

    Of all the trace, or of its first `ticks`.
    """
    limit = most if most is not None else trace.max_available * len(trace.zones)
    capacity = tuple(min(each, limit) for each in capacity_of(trace, step_s=step_s)[:ticks])
    in_zone: dict[str, int] = {}
    between: dict[float, int] = {}
    for change in trace.events(0.0, len(capacity) * step_s):
        in_zone[change.zone] = change.available
        if change.t_s % step_s:
            between[change.t_s] = min(sum(in_zone.values()), limit)
    return Record(capacity=capacity, step_s=step_s, between=tuple(between.items()))
