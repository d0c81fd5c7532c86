"""From one hit to the next: what a job that loses its work at each of them has done by then, on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sublet.domain.units import SECONDS_PER_H
from sublet.solve.arrays import Bools, Floats

RARE = 1e-12  # a loss with this chance, or a hit in as many seconds, is left out: it would be one in 30,000 years

# C shapes; what is said of them are numbers, or arrays that fit one another


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recovery:
    """The cost of a hit to a job."""

    every_s: npt.ArrayLike  # trained between two checkpoints; 0 = a notice leaves the time to write one
    write_s: npt.ArrayLike
    boot_s: npt.ArrayLike  # until new nodes are there, as far as no notice covered it
    restart_s: npt.ArrayLike  # until it trains again, the checkpoint read
    sold_out_s: npt.ArrayLike = 0.0  # before nodes can be had again at all, on average
    none_left: npt.ArrayLike = 0.0  # the chance that a hit leaves no survivors to go on with


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Toll:
    """The use of a job's time under reclaims, in parts of all its time; they add up to 1."""

    hits_C: Floats  # per second
    none_left_C: Floats  # the chance that a hit leaves no whole copy of the model
    kept_C: Floats  # of its undisturbed speed: what all of this is about
    paused_C: Floats  # none trains
    slower_C: Floats  # survivors train, and this is what they lack
    written_C: Floats  # checkpoints are written
    redone_C: Floats  # what is done is lost again
    best_C: Floats  # of its undisturbed speed, kept by a run that is not hit: it writes checkpoints all the same
    varies_C: Floats  # variance of the time to the end, per second of undisturbed work

    @classmethod
    def of(
        cls,
        *,
        hits_C: Floats,
        none_left_C: Floats,
        kept_C: Floats,
        paused_C: Floats,
        slower_C: Floats,
        written_C: Floats,
        best_C: Floats,
        varies_C: Floats,
    ) -> Toll:
        """Work that is in none of the other parts was done in vain."""
        redone_C = np.maximum(0.0, 1.0 - kept_C - paused_C - slower_C - written_C)
        return cls(
            hits_C=hits_C,
            none_left_C=none_left_C,
            kept_C=kept_C,
            paused_C=paused_C,
            slower_C=slower_C,
            written_C=written_C,
            redone_C=redone_C,
            best_C=best_C,
            varies_C=varies_C,
        )

    @classmethod
    def nothing(cls, shapes: int) -> Toll:
        """The toll of shapes that are not reclaimed."""
        none_C, all_C = np.zeros(shapes), np.ones(shapes)
        return cls.of(
            hits_C=none_C,
            none_left_C=none_C,
            kept_C=all_C,
            paused_C=none_C,
            slower_C=none_C,
            written_C=none_C,
            best_C=all_C,
            varies_C=none_C,
        )

    def where(self, these_C: Bools, other: Toll) -> Toll:
        """This one for these shapes, and the other for the rest."""
        return Toll(
            **{
                each.name: np.where(these_C, getattr(self, each.name), getattr(other, each.name))
                for each in fields(self)
            }
        )


def speed_kept(hits_per_s_C: Floats, recovery: Recovery, survivors_C: npt.ArrayLike | None = None) -> Floats:
    """The part of its undisturbed speed that a job keeps if it is hit so often, and recovers like this.

    From one hit to the next it does (kept work) in (1 / L + sold out). With survivors the remaining nodes train
    meanwhile, until the others are there or the next hit comes, and only a hit that leaves none waits.

    Precondition: hits are independent of one another, and a recovery is hit as often as the whole job. Cost: O(C).
    """
    hits_C = np.asarray(hits_per_s_C, dtype=np.float64)
    every_C, write_C, boot_C, pause_C, sold_out_C, none_left_C = (
        np.asarray(value, dtype=np.float64)
        for value in (
            recovery.every_s,
            recovery.write_s,
            recovery.boot_s,
            recovery.restart_s,
            recovery.sold_out_s,
            recovery.none_left,
        )
    )
    kept_C = _kept(hits_C, every_C, write_C)
    waits_C: Floats = np.exp(-hits_C * (boot_C + pause_C)) * kept_C
    if survivors_C is None:
        return waits_C / (1.0 + hits_C * sold_out_C)
    window_C = np.maximum(0.0, sold_out_C + boot_C - pause_C)
    on_C: Floats = np.exp(-hits_C * (sold_out_C + boot_C + pause_C)) * kept_C
    trained_C = _window_s(hits_C, window_C, every_C, write_C)
    on_C = on_C + np.asarray(survivors_C) * hits_C * np.exp(-hits_C * pause_C) * trained_C
    return (none_left_C * waits_C + (1.0 - none_left_C) * on_C) / (1.0 + none_left_C * hits_C * sold_out_C)


def toll_of_waiting(hits_per_s_C: Floats, recovery: Recovery, none_left_C: Floats) -> Toll:
    """The use of time of a job that loses its work at every hit, and waits for new nodes. Cost: O(C)."""
    hits_C = np.asarray(hits_per_s_C, dtype=np.float64)
    kept_C = speed_kept(hits_C, recovery)
    every_C, write_C = np.asarray(recovery.every_s, dtype=np.float64), np.asarray(recovery.write_s, dtype=np.float64)
    pause_C = np.asarray(recovery.boot_s, dtype=np.float64) + np.asarray(recovery.restart_s)
    trains_C = np.exp(-hits_C * pause_C)
    trains_C = trains_C / (1.0 + hits_C * np.asarray(recovery.sold_out_s))
    begin_C, begin_varies_C = uninterrupted(hits_C, pause_C)
    with np.errstate(over="ignore"):
        begin_C = begin_C + np.asarray(recovery.sold_out_s) * np.exp(hits_C * pause_C)  # each time that it begins anew
    with np.errstate(divide="ignore", invalid="ignore"):
        written_C = np.where(np.isfinite(every_C) & (every_C > 0.0), kept_C * write_C / every_C, 0.0)
    return Toll.of(
        hits_C=hits_C,
        none_left_C=none_left_C,
        kept_C=kept_C,
        paused_C=1.0 - trains_C,
        slower_C=np.zeros_like(hits_C),
        written_C=written_C,
        best_C=undisturbed(every_C, write_C) + 0.0 * hits_C,
        varies_C=varies_per_s(
            full_C=1.0 / undisturbed(every_C, write_C),
            anew_C=hits_C,
            cycle_C=np.where(every_C > 0.0, every_C + write_C, 0.0),
            begin=(begin_C, begin_varies_C + np.square(begin_C)),
            stays_C=np.zeros_like(hits_C),
            stay_square_C=np.zeros_like(hits_C),
        ),
    )


def undisturbed(every_C: Floats, write_s: npt.ArrayLike) -> Floats:
    """The share kept by a job that writes checkpoints and is never hit; all if it writes only at a notice."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isfinite(every_C) & (every_C > 0.0), every_C / (every_C + np.asarray(write_s)), 1.0)


def hit_cost_s(
    hits_per_s_C: Floats, speed_C: Floats, every_s: npt.ArrayLike = 1.0, write_s: npt.ArrayLike = 0.0
) -> Floats:
    """The mean cost of one hit, whatever it consists of: what is lost but not to writing, over how often.

    >>> hit_cost_s(np.array([1 / 3600]), np.array([0.9])).round(6).tolist()
    [360.0]
    """
    every_C, write_C = np.asarray(every_s, dtype=np.float64), np.asarray(write_s, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        lost_C = np.maximum(0.0, undisturbed(every_C, write_C) - speed_C)
        return np.where(hits_per_s_C < RARE, 0.0, lost_C / hits_per_s_C)


def checkpoint_interval_s(write_s: npt.ArrayLike, hits_per_s_C: Floats) -> Floats:
    """Time trained between two checkpoints, after Young and Daly; infinite where nothing is ever lost.

    >>> checkpoint_interval_s(50.0, np.array([1 / 3600, 0.0])).round(6).tolist()
    [600.0, inf]
    """
    with np.errstate(divide="ignore"):
        # In hours and back, as rates are stated: plans do not change by a rounding error.
        return np.asarray(np.sqrt(2.0 * np.asarray(write_s) * SECONDS_PER_H / (hits_per_s_C * SECONDS_PER_H)))


def missing_nodes(hits_per_s_C: Floats, at_once_C: Floats, nodes_C: Floats, gone_s_C: Floats) -> Floats:
    """How many nodes are gone, on average while any is, if a hit takes `at_once_C` and these are back after `gone_s_C`.

    Nodes come and go as in a repair shop where all are repaired at once: each is away a share of the time, and with
    many hits within `gone_s_C` losses add up.

    >>> missing_nodes(np.array([1e-6, 1.0]), np.array(2.0), np.array(8.0), np.array(60.0)).round(2).tolist()
    [2.0, 7.5]
    """
    nodes_C = np.maximum(nodes_C, 1e-9)
    load_C = hits_per_s_C * at_once_C / nodes_C * gone_s_C
    away_C = load_C / (1.0 + load_C)
    with np.errstate(divide="ignore", invalid="ignore"):
        any_C = -np.expm1(-np.log1p(load_C) * nodes_C / at_once_C)
        missing_C = nodes_C * away_C / any_C
    return np.where(any_C > RARE, np.maximum(missing_C, at_once_C), at_once_C)


# ---------------------------------------------------------------------- parts of a cycle


def _kept(hits_C: Floats, every_C: Floats, write_C: Floats) -> Floats:
    """The share of its time with all workers that is in a checkpoint when the next hit comes; 1 where all is."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        kept_C = hits_C * every_C / np.expm1(hits_C * (every_C + write_C))
    kept_C = np.where(np.isfinite(kept_C), kept_C, 0.0)  # a job that never writes keeps nothing
    return np.where((every_C == 0.0) | (hits_C < RARE), 1.0, kept_C)


def _window_s(hits_C: Floats, window_C: Floats, every_C: Floats, write_C: Floats) -> Floats:
    """Mean time that survivors train and keep, of a window that ends with the next hit, or whole with the new nodes."""
    whole_C = np.exp(-hits_C * window_C)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cycle_C = every_C + write_C
        times_C = np.where(np.isfinite(cycle_C), np.floor(window_C / cycle_C), 0.0)
        once_C = np.exp(-hits_C * cycle_C)
        saved_C = once_C * (1.0 - once_C**times_C) / (1.0 - once_C) - times_C * whole_C
        kept_C = whole_C * (window_C - times_C * write_C) + np.where(times_C > 0, every_C * saved_C, 0.0)
    return np.where(every_C == 0.0, -np.expm1(-hits_C * window_C) / hits_C, kept_C)


# ---------------------------------------------------------------------- variances of the parts of a cycle

# To finish a checkpoint of c seconds takes a number of tries that is geometric, each lost after a time that is cut off
# at c, with a new beginning after it; stays that end well come beside, at random. All tries and stays are independent,
# so their variances add up.


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


# ---------------------------------------------------------------------- when a job ends, with how sure that is

# Without a hit, a job of W seconds of work takes W' (its checkpoints are written all the same). With hits L per second
# it takes W' + c_1 + ... + c_N, with N a Poisson number of mean L W': the chance that nothing happens is exact. The
# cost of a hit has the mean that makes the mean of the whole exact (`Toll.kept_C`), and the variance that follows from
# pauses and repeated work (`Toll.varies_C`). Given N, the end is taken to be lognormal, as is the error of the speed.


NORMAL = NormalDist()
CERTAIN = 1e-9  # standard deviation of the logarithm of what does not vary
TERMS = 60.0  # hits beyond which their number is taken to be one lognormal with all the rest
TAIL = 8.0  # standard deviations of a number of hits: what is beyond has no weight
MOST_LOOKS = 120
CLOSE = 1e-12  # of a logarithm: a quantile is so much above, so that rounding does not put it below
SAME = 1e-14  # of a chance
ROOT_2 = math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Finish:
    """A mixture by the number of hits: weights, and mean and standard deviation of the logarithm of the seconds."""

    mean_s: float
    terms: tuple[tuple[float, float, float], ...]

    def quantile_s(self, share: float) -> float:
        """By when so many of all runs have ended.

        It lies between the earliest and the latest of the terms' own. There, by the regula falsi that halves the weight
        of an end that stays (Illinois), and by halving at every third look, for steps: a page asks this of every job.
        """
        z = NORMAL.inv_cdf(share)
        ends = [mid + wide * z for _, mid, wide in self.terms]
        low, high = min(ends), max(ends)
        if len(ends) == 1:
            return math.exp(high + CLOSE)
        below, above = self._chance_by_log(low) - share, self._chance_by_log(high) - share
        for look in range(MOST_LOOKS):
            if high - low <= CLOSE or not below < 0.0 < above:
                break
            at = 0.5 * (low + high) if look % 3 == 2 else (low * above - high * below) / (above - below)  # noqa: PLR2004 - every third
            found = self._chance_by_log(at) - share
            if abs(found) < SAME:
                return math.exp(at + CLOSE)
            if found < 0.0:
                low, below, above = at, found, above / 2
            else:
                high, above, below = at, found, below / 2
        return math.exp((high if below < 0.0 else low) + CLOSE)

    def _chance_by_log(self, log_s: float) -> float:
        return sum(weight * 0.5 * math.erfc((mid - log_s) / (ROOT_2 * wide)) for weight, mid, wide in self.terms)


def finish_of(work_s: float, toll: Toll, *, spread: float = 0.0, at: int = 0) -> Finish | None:
    """When a job of so many undisturbed seconds ends in shape `at` of these; None if it never does.

    `spread` is the standard deviation of the logarithm of its speed. Cost: O(terms), at most some hundred.

    >>> calm = finish_of(3600.0, Toll.nothing(1), spread=0.1)
    >>> [round(calm.quantile_s(share)) for share in (0.1, 0.5, 0.9)]
    [3167, 3600, 4092]
    """
    kept, best = float(toll.kept_C[at]), float(toll.best_C[at])
    if not kept > 0.0 or not math.isfinite(work_s):
        return None
    if work_s <= 0.0:
        return Finish(0.0, ((1.0, -math.inf, 1.0),))
    calm_s, mean_s = work_s / best, work_s / kept
    hits, varies = float(toll.hits_C[at]) * calm_s, float(toll.varies_C[at]) * work_s
    if hits < RARE or mean_s <= calm_s:
        return Finish(mean_s, (_term(1.0, mean_s, 0.0, spread),))
    if hits > TERMS:
        return Finish(mean_s, (_term(1.0, mean_s, varies, spread),))
    each_s, each_varies = (mean_s - calm_s) / hits, max(0.0, varies / hits - ((mean_s - calm_s) / hits) ** 2)
    most = math.ceil(hits + TAIL * math.sqrt(hits) + TAIL)
    weights = _poisson(hits, most)
    terms = [_term(weight, calm_s + n * each_s, n * each_varies, spread) for n, weight in enumerate(weights)]
    return Finish(mean_s, tuple(terms))


def _term(weight: float, mean_s: float, varies: float, spread: float) -> tuple[float, float, float]:
    own = math.log1p(varies / mean_s**2)
    return weight, math.log(mean_s) - 0.5 * own, max(math.sqrt(own + spread**2), CERTAIN)


def _poisson(mean: float, most: int) -> Sequence[float]:
    many = np.arange(most + 1.0)
    logs: Floats = many * math.log(mean) - mean - np.concatenate(([0.0], np.cumsum(np.log(many[1:]))))
    weights = np.exp(logs)
    found: list[float] = (weights / weights.sum()).tolist()
    return found
