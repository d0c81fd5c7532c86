"""Which configuration to be in at every step ahead: a max-plus dynamic program with pauses that may outlast a step.

    F_h(c') = max over c of  F_{h-1}(c) + rate(c') x (step - pause(c -> c')) - pay_h(c')

`rate` is worth per second of training and `pay` money per step, so that the objective is samples x value - dollars. A
pause longer than the step leaves the configuration unfinished: it earns nothing, the rest of the pause is carried over,
and moving on from there costs `again` on top. On the true future the same program is the oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Floats, Ints

# H steps, C configurations, S = settled or unfinished, U unfinished ones


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Ahead:
    """The steps to look at. `pause_s[h][c, c']` is infinite where c' is not to be had at step h.

    Steps are all as long, or each has its own length.
    """

    rate_C: Floats
    pause_s: Sequence[Floats]
    step_s: float | Sequence[float]
    again_C: Floats  # on top, if the pause before was not over
    pay_HC: Floats | None = None  # nothing, if not given

    def __post_init__(self) -> None:
        count = len(self.rate_C)
        if not self.pause_s or any(pause.shape != (count, count) for pause in self.pause_s):
            raise InvalidValue("pause_s", [pause.shape for pause in self.pause_s], f"tables of {(count, count)}")
        if len(self.lasts_s) != len(self.pause_s) or not min(self.lasts_s) > 0:
            raise InvalidValue("step_s", self.step_s, "above 0, one or as many as there are steps")
        if self.pay_HC is not None and self.pay_HC.shape != (len(self.pause_s), count):
            raise InvalidValue("pay_HC", self.pay_HC.shape, f"of shape {(len(self.pause_s), count)}")

    @property
    def lasts_s(self) -> Sequence[float]:
        """Seconds of each step."""
        return [self.step_s] * len(self.pause_s) if isinstance(self.step_s, float | int) else self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A configuration per step, and what they are worth together."""

    config_H: tuple[int, ...]
    value: float
    left_s: float  # of a pause that is not over at the end


def best_path(ahead: Ahead, start: int, *, left_s: float = 0.0) -> Path:
    """The path of most value from `start`, of whose pause `left_s` is still to come. Of equals the first is taken.

    Of two unfinished ways into one configuration the one is kept that is worth more once it is finished there.

    Precondition: from each configuration reached something can be had at the next step, else `Infeasible` (a suspended
    configuration always can). Cost: O(H C^2), a numpy operation or five per step.

    >>> stay = np.array([[0.0, 30.0], [30.0, 0.0]])
    >>> ahead = Ahead(rate_C=np.array([1.0, 3.0]), pause_s=[stay] * 3, step_s=60.0, again_C=np.zeros(2))
    >>> best_path(ahead, 0)
    Path(config_H=(1, 1, 1), value=450.0, left_s=0.0)
    """
    count, steps = len(ahead.rate_C), len(ahead.pause_s)
    tables: dict[tuple[int, float], _Table] = {}  # calm markets ask for the same one again and again
    value_SC = np.full((2, count), -np.inf)  # settled, unfinished
    left_C = np.zeros(count)
    value_SC[int(left_s > 0), start] = 0.0
    left_C[start] = left_s
    came_HSC = np.empty((steps, 2, count), dtype=np.intp)  # from c, or from count + c if that was unfinished
    for step, (pause_CC, step_s) in enumerate(zip(ahead.pause_s, ahead.lasts_s, strict=True)):
        key = (id(pause_CC), step_s)
        table = tables[key] = tables.get(key) or _Table.of(ahead.rate_C, pause_CC, step_s)
        pay_C = 0.0 if ahead.pay_HC is None else ahead.pay_HC[step]
        settled = _best(value_SC[0] + table.over_CC, pause_CC)
        owing = _best(value_SC[0] + table.owed_CC, pause_CC) if table.owed_CC is not None else None
        waiting = np.flatnonzero(value_SC[1] > -np.inf)
        if len(waiting):  # a job that stays has the rest to wait, one that moves pays on top
            carried_UC = np.where(pause_CC[waiting] > 0, pause_CC[waiting] + ahead.again_C, left_C[waiting, None])
            also = _Table.of(ahead.rate_C, carried_UC, step_s)
            settled = _better(settled, _best(value_SC[1, waiting] + also.over_CC, carried_UC, count + waiting))
            if also.owed_CC is not None:
                extra = _best(value_SC[1, waiting] + also.owed_CC, carried_UC, count + waiting)
                owing = extra if owing is None else _better(owing, extra)
        later_C = np.full(count, -np.inf)
        came_HSC[step] = settled.came_C
        if owing is not None:
            came_HSC[step, 1] = owing.came_C
            waits_C = owing.value_C > -np.inf
            left_C = np.where(waits_C, owing.pause_C - step_s, 0.0)
            later_C[waits_C] = (owing.value_C + ahead.rate_C * left_C - pay_C)[waits_C]
        value_SC = np.stack([settled.value_C - pay_C, later_C])
    return _back(value_SC, left_C, came_HSC, ahead.rate_C)


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Worth of a step after each pause, targets by sources: of pauses that end within it, and of longer ones if any."""

    over_CC: Floats
    owed_CC: Floats | None

    @classmethod
    def of(cls, rate_C: Floats, pause_CC: Floats, step_s: float) -> _Table:
        gain_CC = np.ascontiguousarray((rate_C * step_s - _loss(rate_C, pause_CC)).T)
        long_CC = step_s < pause_CC.T
        if not (long_CC & np.isfinite(pause_CC.T)).any():
            return cls(gain_CC, None)
        return cls(np.where(long_CC, -np.inf, gain_CC), np.where(long_CC, gain_CC, -np.inf))


@dataclass(frozen=True, slots=True, eq=False)
class _Best:
    value_C: Floats
    came_C: Ints
    pause_C: Floats


def _best(after_CS: Floats, pause_SC: Floats, name_S: Ints | None = None) -> _Best:
    """For each target the best source, and its pause."""
    came_C, every = after_CS.argmax(axis=1), np.arange(len(after_CS))
    return _Best(after_CS[every, came_C], came_C if name_S is None else name_S[came_C], pause_SC[came_C, every])


def _better(first: _Best, second: _Best) -> _Best:
    other_C = second.value_C > first.value_C
    return _Best(
        np.where(other_C, second.value_C, first.value_C),
        np.where(other_C, second.came_C, first.came_C),
        np.where(other_C, second.pause_C, first.pause_C),
    )


def _back(value_SC: Floats, left_C: Floats, came_HSC: Ints, rate_C: Floats) -> Path:
    best = value_SC.copy()
    waits_C = np.isfinite(best[1])
    best[1, waits_C] -= (rate_C * left_C)[waits_C]
    state, config = (int(at) for at in np.unravel_index(best.argmax(), best.shape))
    if not np.isfinite(best[state, config]):
        raise Infeasible(
            "no configuration can be had at every step",
            binding="configurations",
            needed=1,
            available=0,
            hint="add a suspended configuration of 0 instances",
        )
    value, left_s = float(value_SC[state, config]), float(left_C[config]) if state else 0.0
    path = []
    for step in range(len(came_HSC) - 1, -1, -1):
        path.append(config)
        state, config = divmod(int(came_HSC[step, state, config]), len(rate_C))
    return Path(config_H=tuple(reversed(path)), value=value, left_s=left_s)


def _loss(rate_C: Floats, pause_CC: Floats) -> Floats:
    """Worth lost in a pause; infinite where it never ends, at no rate too."""
    return np.where(np.isinf(pause_CC), np.inf, rate_C * np.where(np.isinf(pause_CC), 0.0, pause_CC))
