"""How far from its mean the time of a job may be, by what hits cost: variances of the parts of a cycle.

To finish a checkpoint of c seconds takes a number of tries that is geometric, each lost after a time that is cut off at
c, with a new beginning after it; stays that end well come beside, at random. All tries and stays are independent, so
that their variances add up.
"""

from __future__ import annotations

import numpy as np

from sublet.solve.arrays import Floats

__all__ = ["cut_off", "uninterrupted", "varies_per_s"]

SMALL = 1e-4  # of a product of rate and time: below, the first terms of the series are exact to eight digits


def cut_off(rate_C: Floats, most_C: Floats) -> tuple[Floats, Floats]:
    """Mean and mean square of an exponential time, given that it is below `most`."""
    load_C = rate_C * most_C
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds_C = 1.0 / np.expm1(load_C)
        mean_C = 1.0 / rate_C - most_C * odds_C
        square_C = 2.0 / rate_C**2 - (most_C**2 + 2.0 * most_C / rate_C) * odds_C
        tame_C = load_C > SMALL
        mean_C = np.where(tame_C, np.where(np.isfinite(load_C), mean_C, 1.0 / rate_C), 0.5 * most_C)
        square_C = np.where(tame_C, np.where(np.isfinite(load_C), square_C, 2.0 / rate_C**2), most_C**2 / 3.0)
    return mean_C, square_C


def uninterrupted(rate_C: Floats, lasts_C: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the time until so long has passed without a hit."""
    load_C = rate_C * lasts_C
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        mean_C = np.where(load_C > SMALL, np.expm1(load_C) / rate_C, lasts_C)
        grown_C = np.exp(load_C)
        varies_C = (grown_C**2 - 1.0 - 2.0 * load_C * grown_C) / rate_C**2
    return mean_C, np.where(load_C > SMALL, varies_C, rate_C * lasts_C**3 / 3.0)


def varies_per_s(
    *,
    full_C: Floats,
    anew_C: Floats,
    cycle_C: Floats,
    begin: tuple[Floats, Floats],
    stays_C: Floats,
    stay_square_C: Floats,
) -> Floats:
    """Variance of the finish time per second of undisturbed work, in seconds.

    `full_C` is the time with all workers per second of work. `anew_C` and `stays_C` are the rates of new beginnings and
    of stays that end well in it, `cycle_C` the time of one checkpoint (0: none is needed). `begin` is the mean and mean
    square of the time of a new beginning, `stay_square_C` the mean square of the cost of a stay.
    """
    begin_C, begin_square_C = begin
    cycle_C = np.where(anew_C > 0.0, cycle_C, 0.0)  # never ended, and never lost
    lost_C, lost_square_C = cut_off(anew_C, cycle_C)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        tries_C = np.expm1(anew_C * cycle_C)  # in vain, per checkpoint
        often_C = np.where(anew_C * cycle_C > 0.0, full_C * tries_C / cycle_C, full_C * anew_C)
        each_C = lost_C + begin_C
        square_C = lost_square_C + 2.0 * lost_C * begin_C + begin_square_C
        found_C = often_C * (square_C + tries_C * each_C**2) + stays_C * (full_C + often_C * lost_C) * stay_square_C
    return np.where(anew_C + stays_C > 0.0, found_C, 0.0)
