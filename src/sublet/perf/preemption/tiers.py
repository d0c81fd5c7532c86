"""Tiers of checkpoints: how often each is written, what that costs training, and what a loss costs then.

    peers             memory of data-parallel copies on other nodes     survives the loss of some nodes
    disk              that of the node                                  survives the death of processes
    controller host   the controller's machine, on demand               survives the loss of all nodes
    bucket            an object store                                   survives the loss of the controller host

A loss takes the tiers up to some one, and the job goes on from the next. Of tier k these are h_k per second; a copy
costs training c_k seconds, is there l_k after the step that it is of, and takes r_k to be had back. Written every T_k,
what is lost of all time is, to the first order of Young and Daly,

    sum of  c_k / T_k + h_k (T_k / 2 + l_k + r_k)

A copy is made of the one in the tier before it, so T_k is a whole multiple of T_(k-1). For given multiples the best
T_0 is known in closed form, also under limits; multiples are tried on either side of where they would be if they need
not be whole. A tier that costs nothing and takes no time is always there (T = 0); one that is not worth its cost is
not written (T infinite), and its losses are those of the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from sublet.perf.preemption.cycles import RARE, checkpoint_interval_s
from sublet.solve.arrays import Bools, Floats

# K tiers, nearest first; C cases (any shape): arrays are K by C
Tier = Literal["peers", "disk", "anchor", "bucket"]
TIERS: Mapping[Tier, str] = MappingProxyType(
    {
        "peers": "the loss of some nodes",
        "disk": "the death of processes",
        "anchor": "the loss of all nodes",
        "bucket": "the loss of the controller host",
    }
)
ROUNDS = 2  # of multiples: the second starts from the intervals of the first
MOST_TIMES = 1e6  # one tier as often as the next


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ladder:
    """The tiers of each case; all arrays K by C, or numbers that fit."""

    hits_per_s: npt.ArrayLike  # losses that this tier survives, and none before it
    cost_s: npt.ArrayLike  # of training, by one copy
    lag_s: npt.ArrayLike = 0.0  # from a step to its copy, while training goes on
    read_s: npt.ArrayLike = 0.0  # to have it back
    least_s: npt.ArrayLike = 0.0  # no more often than that

    def arrays(self) -> tuple[Floats, ...]:
        """The intervals and costs of one shape."""
        return np.broadcast_arrays(*(np.asarray(getattr(self, each.name), dtype=np.float64) for each in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiering:
    """How often each tier is written, and where the time goes then, in parts of all of it."""

    every_s_KC: Floats  # trained between two copies; 0 = at every step, infinite = none is made
    slower_C: Floats  # by copies
    redone_C: Floats  # what no copy had; infinite where a loss takes all tiers
    resuming_C: Floats  # copies that are had back

    @property
    def lost(self) -> Floats:
        """All of it."""
        return self.slower_C + self.redone_C + self.resuming_C

    def where(self, these_C: Bools, other: Tiering) -> Tiering:
        """This one in these cases, and the other in the rest."""
        return Tiering(
            **{
                each.name: np.where(these_C, getattr(self, each.name), getattr(other, each.name))
                for each in fields(self)
            }
        )


def copy_s(size_bytes: npt.ArrayLike, bytes_per_s: npt.ArrayLike) -> Floats:
    """The time of a copy, to a tier or back from it: bytes over bandwidth. `sublet advise` uses it for each, too."""
    return np.asarray(size_bytes, dtype=np.float64) / np.asarray(bytes_per_s, dtype=np.float64)


def tiering(ladder: Ladder, every_s_KC: npt.ArrayLike) -> Tiering:
    """The result of these intervals. Cost: O(K C)."""
    every_KC = np.asarray(every_s_KC, dtype=np.float64)
    hits_KC, cost_KC, lag_KC, read_KC, _, every_KC = np.broadcast_arrays(*ladder.arrays(), every_KC)
    redone_C, resuming_C = np.zeros(hits_KC.shape[1:]), np.zeros(hits_KC.shape[1:])
    back_C, read_C = np.full_like(redone_C, math.inf), np.zeros_like(redone_C)  # of the nearest copy from here outward
    with np.errstate(divide="ignore", invalid="ignore"):
        slower_C = np.where(cost_KC > 0.0, cost_KC / every_KC, 0.0).sum(axis=0)
        for hits_C, every_C, lag_C, own_read_C in reversed(list(zip(hits_KC, every_KC, lag_KC, read_KC, strict=True))):
            used_C = np.isfinite(every_C)
            back_C = np.where(used_C, every_C / 2.0 + lag_C, back_C)
            read_C = np.where(used_C, own_read_C, read_C)
            redone_C += np.where(hits_C > RARE, hits_C * back_C, 0.0)
            resuming_C += hits_C * read_C
    return Tiering(every_s_KC=every_KC, slower_C=slower_C, redone_C=redone_C, resuming_C=resuming_C)


def best_tiering(ladder: Ladder, *, most_slowdown: float = math.inf, skips: bool = True) -> Tiering:
    """The intervals that lose the least, of those that slow training by at most so much.

    Without `skips` every tier is written that some loss needs, whether the next alone would do or not. Cost: O(C) for a
    given number of tiers: at most four.
    """
    hits_KC, cost_KC, _, _, least_KC = ladder.arrays()
    free_KC = (cost_KC <= 0.0) & (least_KC <= 0.0)
    best: Tiering | None = None
    for used_KC in _choices(hits_KC, skips=skips):
        every_KC = np.where(free_KC, 0.0, _intervals(ladder, used_KC & ~free_KC, free_KC, most_slowdown))
        found = tiering(ladder, every_KC)
        best = found if best is None else found.where(found.lost < best.lost, best)
    assert best is not None  # noqa: S101 - there is a choice at least
    return best


def _choices(hits_KC: Floats, *, skips: bool) -> Iterator[Bools]:
    """Which tiers are written: the most of them first, so that of equals those stay."""
    if not skips:
        yield hits_KC > RARE
        return
    for used in sorted(product((True, False), repeat=len(hits_KC)), key=sum, reverse=True):
        yield np.array(used).reshape(-1, *(1,) * (hits_KC.ndim - 1)) & np.ones_like(hits_KC, dtype=bool)


def _intervals(ladder: Ladder, used_KC: Bools, free_KC: Bools, most: float) -> Floats:
    """The intervals of the tiers in use; infinite for all others."""
    hits_KC, cost_KC, _, _, least_KC = ladder.arrays()
    hits_KC = _folded(hits_KC, used_KC, free_KC)
    cost_KC, least_KC = np.where(used_KC, cost_KC, 0.0), np.where(used_KC, least_KC, 0.0)
    wanted_KC = _rising(cost_KC, hits_KC)
    with np.errstate(divide="ignore", invalid="ignore"):
        slower_C = np.where(cost_KC > 0.0, cost_KC / wanted_KC, 0.0).sum(axis=0)
    # To slow training less, all intervals are stretched alike: so they lose the least (Lagrange).
    wanted_KC = np.maximum(wanted_KC * np.maximum(1.0, slower_C / most), least_KC)
    first_KC = used_KC & (np.cumsum(used_KC, axis=0) == 1)
    base_C = np.where(first_KC, wanted_KC, 0.0).sum(axis=0)
    times_KC, best_C = np.ones_like(hits_KC), np.full(hits_KC.shape[1:], math.inf)
    for _ in range(ROUNDS):
        start_C = base_C
        for up in product((False, True), repeat=len(hits_KC) - 1):
            tried_KC = _multiples(wanted_KC, used_KC & ~first_KC, start_C, up)
            tried_C = _base(hits_KC, cost_KC, least_KC, tried_KC, most)
            lost_C = _lost(hits_KC, cost_KC, tried_KC * tried_C)
            better_C = lost_C < best_C
            best_C = np.where(better_C, lost_C, best_C)
            base_C, times_KC = np.where(better_C, tried_C, base_C), np.where(better_C, tried_KC, times_KC)
    return np.where(used_KC, times_KC * base_C, math.inf)


def _folded(hits_KC: Floats, used_KC: Bools, free_KC: Bools) -> Floats:
    """Losses by the tier in use that survives them."""
    found_KC, carried_C = np.zeros_like(hits_KC), np.zeros(hits_KC.shape[1:])
    for at, (hits_C, used_C, free_C) in enumerate(zip(hits_KC, used_KC, free_KC, strict=True)):
        carried_C = carried_C + hits_C
        found_KC[at] = np.where(used_C, carried_C, 0.0)
        carried_C = np.where(used_C | free_C, 0.0, carried_C)
    return found_KC


def _rising(cost_KC: Floats, hits_KC: Floats) -> Floats:
    """The best intervals that need not be multiples, none shorter than the one before it.

    Neighbours that would fall are written together: as the regression of what rises, by its formula of max and min.
    """
    at_K = range(len(cost_KC))
    together = {
        (low, high): _young(cost_KC[low : high + 1].sum(axis=0), hits_KC[low : high + 1].sum(axis=0))
        for low in at_K
        for high in at_K[low:]
    }
    least = [[np.min([together[low, high] for high in at_K[at:]], axis=0) for low in at_K[: at + 1]] for at in at_K]
    return np.array([np.max(each, axis=0) for each in least])


def _young(cost_C: Floats, hits_C: Floats) -> Floats:
    """The interval of Young and Daly; infinite where nothing is lost."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(hits_C > RARE, checkpoint_interval_s(cost_C, hits_C), math.inf)


def _multiples(wanted_KC: Floats, chained_KC: Bools, base_C: Floats, up: tuple[bool, ...]) -> Floats:
    """Multiples of the nearest interval, each of the one before it: just below what is wanted, or above it."""
    times_KC = np.ones_like(wanted_KC)
    for at in range(1, len(wanted_KC)):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio_C = np.nan_to_num(wanted_KC[at] / (times_KC[at - 1] * base_C), nan=1.0, posinf=MOST_TIMES)
        whole_C = np.clip((np.ceil if up[at - 1] else np.floor)(ratio_C), 1.0, MOST_TIMES)
        times_KC[at] = times_KC[at - 1] * np.where(chained_KC[at], whole_C, 1.0)
    return times_KC


def _base(hits_KC: Floats, cost_KC: Floats, least_KC: Floats, times_KC: Floats, most: float) -> Floats:
    """The best nearest interval for given multiples: what is lost falls up to one point and rises from there."""
    cost_C, hits_C = (cost_KC / times_KC).sum(axis=0), (hits_KC * times_KC).sum(axis=0)
    least_C = np.maximum(cost_C / most, (least_KC / times_KC).max(axis=0))
    return np.asarray(np.maximum(_young(cost_C, hits_C), least_C))


def _lost(hits_KC: Floats, cost_KC: Floats, every_KC: Floats) -> Floats:
    """By copies and by work that is done again; where nothing is ever lost, nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slower_KC = np.where(cost_KC > 0.0, cost_KC / every_KC, 0.0)
        redone_KC = np.where(hits_KC > 0.0, hits_KC * every_KC / 2.0, 0.0)
    return np.asarray((slower_KC + redone_KC).sum(axis=0))
