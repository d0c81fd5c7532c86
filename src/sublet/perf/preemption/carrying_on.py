"""A job whose survivors carry on: from one time that it begins anew from storage to the next.

It has all workers, hit L times per second. A hit makes it begin anew with chance p. Else its survivors pause for a,
train at their share until new nodes are there after g, and pause for b until these train too. So a hit costs a stay of
D = g + b. A hit meanwhile makes that stay, or the new beginning, start over. So a stay ends with all workers with
chance s = e / (1 - q), e = exp(-L D), q = (1 - p) (1 - e), and the full state ends in a new beginning at the rate

    f = L (1 - (1 - p) s)

of time with all workers. Checkpoints are written every T seconds of that time, and take w; what survivors do meanwhile
is in the next. So between two new beginnings 1 / (exp(f (T + w)) - 1) checkpoints are finished, each with T and what
the survivors did, and all is exact. With p = 1 it is Daly's formula (`cycles`), and with p = 0 nothing is ever redone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.perf.preemption.cycles import (
    RARE,
    Toll,
    checkpoint_interval_s,
    cut_off,
    undisturbed,
    uninterrupted,
    varies_per_s,
)
from sublet.perf.preemption.survivors import Pausing
from sublet.solve.arrays import Floats

TINY = 1e-300  # in the place of 0, where 0 is divided by it

# C shapes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stay:
    """The time after a hit that leaves survivors, until all train again or none does; per visit."""

    through_C: Floats  # the chance that all train again
    lasts_C: Floats  # seconds
    trains_C: Floats  # of these the survivors train
    saved_C: Floats  # the same, of stays that end well
    well_C: Floats  # seconds of stays that end well, and
    try_C: Floats  # of what a hit cut short within them, and
    try_square_C: Floats
    tried_C: Floats  # what survivors trained in it
    tries_C: Floats  # how many of these
    ill_C: Floats  # of those that do not


def carry_on(
    hits_C: Floats,
    *,
    again_C: Floats,
    none_left_C: Floats,
    share_C: Floats,
    pauses: Pausing,
    boot_s: npt.ArrayLike,
    write_s: float,
    every_s: float | None,
) -> Toll:
    """The speed kept by survivors that go on, or wait, whichever is better. Cost: O(C).

    `again_C` is the chance that a hit makes the job begin anew, `share_C` the speed of the survivors. `every_s` 0: a
    notice leaves the time to write a checkpoint; None: after Young and Daly, by how often it begins anew.
    """
    fresh_C = np.asarray(boot_s, dtype=np.float64) + pauses.fresh_C
    going = _stay(hits_C, again_C, pauses.shrink_C, np.asarray(boot_s), pauses.grow_C)
    waiting = _stay(hits_C, again_C, np.asarray(np.inf), np.asarray(boot_s), pauses.refill_C)
    on, off = (
        _toll(hits_C, again_C, none_left_C, share_C, fresh_C, stay, write_s, every_s) for stay in (going, waiting)
    )
    return on.where(on.kept_C > off.kept_C, off)


def _stay(hits_C: Floats, again_C: Floats, shrink_C: Floats, boot_C: Floats, grow_C: Floats) -> _Stay:
    hits_C = np.maximum(hits_C, RARE)
    window_C = np.maximum(0.0, boot_C - shrink_C)
    through_C = np.exp(-hits_C * (boot_C + grow_C))
    once_more_C = (1.0 - again_C) * (1.0 - through_C)
    ends_C = np.maximum(1.0 - once_more_C, TINY)
    with np.errstate(invalid="ignore"):
        trains_C = np.where(window_C > 0.0, np.exp(-hits_C * shrink_C) * -np.expm1(-hits_C * window_C) / hits_C, 0.0)
    whole_C = boot_C + grow_C
    cut_C, cut_square_C = cut_off(hits_C, whole_C)  # what a hit leaves of it
    tries_C = once_more_C / ends_C
    return _Stay(
        through_C=through_C / ends_C,
        lasts_C=(1.0 - through_C) / hits_C / ends_C,
        trains_C=trains_C / ends_C,
        saved_C=window_C + (1.0 - again_C) * (trains_C - window_C * through_C) / ends_C,
        well_C=whole_C + tries_C * cut_C,
        try_C=cut_C,
        try_square_C=cut_square_C,
        tried_C=(trains_C - window_C * through_C) / np.maximum(1.0 - through_C, TINY),
        tries_C=tries_C,
        ill_C=cut_C / ends_C,
    )


def _toll(
    hits_C: Floats,
    again_C: Floats,
    none_left_C: Floats,
    share_C: Floats,
    fresh_C: Floats,
    stay: _Stay,
    write_s: float,
    every_s: float | None,
) -> Toll:
    """All per second with all workers."""
    stays_C = (1.0 - again_C) * hits_C
    anew_C = hits_C - stays_C * stay.through_C
    anew_C = np.where(again_C < RARE, 0.0, anew_C)  # what is left are rounding errors
    with np.errstate(over="ignore", invalid="ignore"):
        begins_C = np.where(anew_C > 0.0, anew_C * np.expm1(hits_C * fresh_C) / np.maximum(hits_C, RARE), 0.0)
    survived_C = share_C * stays_C
    every_C = np.asarray(checkpoint_interval_s(write_s, anew_C) if every_s is None else every_s)
    if every_s == 0.0:
        kept_C, written_C = 1.0 + survived_C * stay.trains_C, np.zeros(len(hits_C))
    else:
        finished_C = _finished(anew_C, every_C + write_s)
        with np.errstate(invalid="ignore"):
            part_C = np.where(np.isfinite(every_C), finished_C * every_C, anew_C < RARE)
            both_C = np.where(np.isfinite(every_C), finished_C * (every_C + write_s), anew_C < RARE)
        kept_C = part_C + both_C * survived_C * stay.through_C * stay.saved_C
        written_C = both_C - part_C
    begin = _begin(hits_C, again_C, anew_C, fresh_C, stay)
    idle_C = np.maximum(0.0, stay.lasts_C - stay.trains_C)  # by rounding, it may be less
    lasts_C = 1.0 + begins_C + stays_C * stay.lasts_C
    return Toll.of(
        hits_C=hits_C,
        none_left_C=none_left_C,
        kept_C=kept_C / lasts_C,
        paused_C=np.where(np.isfinite(lasts_C), (begins_C + stays_C * idle_C) / lasts_C, 1.0),
        slower_C=(stays_C - survived_C) * stay.trains_C / lasts_C,
        written_C=written_C / lasts_C,
        best_C=undisturbed(every_C, write_s) + 0.0 * hits_C,
        varies_C=_varies(hits_C, anew_C, share_C, kept_C / lasts_C, begin, stay, every_C, write_s),
    )


def _begin(hits_C: Floats, again_C: Floats, anew_C: Floats, fresh_C: Floats, stay: _Stay) -> tuple[Floats, Floats]:
    """Mean and mean square of what a new beginning takes; some follow a stay that did not end well."""
    begin_C, varies_C = uninterrupted(np.maximum(hits_C, RARE), fresh_C)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        begin_C = begin_C + np.where(anew_C > 0.0, (1.0 - again_C * hits_C / anew_C) * stay.ill_C, 0.0)
        return begin_C, varies_C + begin_C**2


def _varies(
    hits_C: Floats,
    anew_C: Floats,
    share_C: Floats,
    kept_C: Floats,
    begin: tuple[Floats, Floats],
    stay: _Stay,
    every_C: Floats,
    write_s: float,
) -> Floats:
    """Variance of the finish time per second of work. The work of survivors saves the time that it takes on average."""
    well_C = hits_C - anew_C  # stays that end well, per second with all workers
    gain_C = share_C * stay.saved_C
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        net_C = 1.0 - share_C * stay.tried_C / kept_C / stay.try_C  # of what a try takes
        tries_C = stay.tries_C * (stay.try_square_C + stay.tries_C * stay.try_C**2) * net_C**2
        stay_square_C = np.nan_to_num(tries_C) + (stay.well_C - gain_C / kept_C) ** 2
    return varies_per_s(
        full_C=1.0 / (undisturbed(every_C, write_s) + well_C * gain_C),
        anew_C=anew_C,
        cycle_C=np.where(every_C > 0.0, every_C + write_s, 0.0),
        begin=begin,
        stays_C=well_C,
        stay_square_C=np.where(well_C > 0.0, stay_square_C, 0.0),
    )


def _finished(anew_C: Floats, cycle_C: Floats) -> Floats:
    """Checkpoints that are finished per second with all workers, those before a new beginning that is not reached."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        found_C = np.where(anew_C < RARE, 1.0 / cycle_C, anew_C / np.expm1(anew_C * cycle_C))
    return np.where(np.isfinite(found_C), found_C, 0.0)
