"""Who gets which GPUs of a cluster that is paid for anyway: the split that is worth most.

A GPU-hour is worth most to a job that uses it well and has little left to do, because it is free again soon. The value
of a shape is

    how many GPUs' worth of work it does  x  the part of the time that is not lost to the pause  /  work left ** power

and the split with the largest sum is found exactly, among those in which nobody waits for want of the least that it
needs, as far as that goes round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublet.planning.options import Options
from sublet.policies.price.congestion import WAIT
from sublet.solve.arrays import Floats, Ints
from sublet.solve.knapsack.split import best_split
from sublet.solve.mip.moves import Coupled, best_moves

__all__ = ["Claim", "Split", "split"]

SHORT_FIRST = 0.4  # power of the work left: 0 would be blind to it, 1 all but starves long jobs
HORIZON_H = 0.25  # a shape is thought to last this long, or to the end of the job if that is sooner
DUE = 1e6  # times the value of any other: who has waited too long comes first, the oldest before all
TRIFLE_H = 1e-9  # what is all but done lasts this long
STICKY = 1.1  # what a job has is worth this much more to it than the same elsewhere
TOLERANCE = 0.002  # of the value of the best split over several pools
PERFECT = 0.999  # of the speed of as many single GPUs
IN_ORDER = 1e-6  # relative: enough to tell jobs that are alike apart

# J jobs, C shapes (padded: value -inf), P pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One job's say: its options now, the GPU-hours left at its most efficient over its weight, what it has."""

    options: Options
    done: float
    work: float  # all of the job's
    left_h: float
    sure: bool  # whether that is known, or guessed
    held: int  # column of its shape; WAIT if it has none, or one that is not on the menu
    due_s: float  # how much longer ago it came than anybody should have to wait; 0 = it did not
    pinned: bool  # it has only just got its GPUs: it may be resized, not stopped


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """A column or WAIT per job, and what one more GPU of each pool would add."""

    column_J: Ints
    price_P: Floats


def split(claims: Sequence[Claim], most_P: Floats) -> Split:
    """The most valuable split, to a five-hundredth for several pools. Cost: `best_split`, or `best_moves` for those."""
    value_JC, gpus_JC, site_JC = _tables(claims, most_P)
    # Waiting is a column before the others; who must run loses more by it than all others could gain.
    everything = float(np.where(np.isfinite(value_JC), value_JC, 0.0).max(axis=1, initial=0.0).sum())
    wait_J1 = np.where(_must_run(claims, float(most_P.sum())), -1.0 - everything, 0.0)[:, None]
    nothing_J1 = np.zeros((len(claims), 1), dtype=np.intp)
    gain_JC = np.concatenate((wait_J1, value_JC), axis=1)
    sizes_JC = np.concatenate((nothing_J1, gpus_JC), axis=1)
    if len(most_P) == 1:
        whole = best_split(gain_JC, int(most_P[0]), sizes=sizes_JC)
        return Split(column_J=np.asarray(whole.column_J) + WAIT, price_P=np.array([whole.price]))
    pools_JC = np.concatenate((nothing_J1, site_JC), axis=1)
    asked = Coupled.from_tables(gain_JC, [int(most) for most in most_P], sizes=sizes_JC, pools=pools_JC)
    found = best_moves(asked, start=[claim.held - WAIT for claim in claims], tolerance=TOLERANCE)
    return Split(column_J=np.asarray(found.column_J) + WAIT, price_P=found.price_R[: len(most_P)])


def _must_run(claims: Sequence[Claim], room: float) -> list[bool]:
    """Nobody waits so that others can be wider: the least that each needs is given first, the least work first.

    Without this a crowd of short jobs would be so wide, and so wasteful, that the long ones never catch up. Where width
    wastes nothing it is not needed: one after the other, jobs that scale perfectly end sooner than side by side.
    """
    must = [claim.pinned for claim in claims]
    if all(map(_scales_perfectly, claims)):
        return must
    for at in sorted(range(len(claims)), key=lambda at: (-claims[at].due_s, claims[at].left_h)):
        need = float(claims[at].options.menu.gpus_C.min())
        if need <= room:
            room -= need
            must[at] = True
    return must


def _scales_perfectly(claim: Claim) -> bool:
    menu, phase = claim.options.menu, claim.options.menu.phase(claim.done)
    worth_C = menu.rate_EC[phase] / menu.gpu_rate_E[phase]
    return bool((worth_C >= PERFECT * menu.gpus_C).all())


def _tables(claims: Sequence[Claim], most_P: Floats) -> tuple[Floats, Ints, Ints]:
    shape = (len(claims), max(len(claim.options.cost_C) for claim in claims))
    value_JC = np.full(shape, -np.inf)
    gpus_JC, site_JC = np.zeros(shape, dtype=np.intp), np.zeros(shape, dtype=np.intp)
    typical_h = float(np.median([claim.left_h for claim in claims]))
    for row, claim in enumerate(claims):
        menu, options = claim.options.menu, claim.options
        phase = menu.phase(claim.done)
        worth_C = menu.rate_EC[phase] / menu.gpu_rate_E[phase]  # in GPUs at their best
        with np.errstate(divide="ignore", invalid="ignore"):
            trains_C = menu.work_left(phase, claim.done, claim.work) / menu.rate_EC[phase]
            lasts_C = np.clip(options.hours_C, TRIFLE_H, HORIZON_H) if claim.sure else HORIZON_H
            useful_C = np.clip(1.0 - (options.now_C - trains_C) / lasts_C, IN_ORDER, 1.0)  # an idle GPU is worth less
        value_C = worth_C * useful_C * (typical_h / claim.left_h) ** SHORT_FIRST * (1.0 - IN_ORDER * row)
        if claim.due_s > 0:
            value_C *= DUE + claim.due_s
        value_C[~(options.cost_C < np.inf) | np.isnan(value_C) | (menu.gpus_C > most_P[menu.site_C])] = -np.inf
        if claim.held != WAIT:
            value_C[claim.held] *= STICKY
            if menu.doubt_C is not None:  # what is held is known better than what is not
                other_C = menu.belief_C != menu.belief_C[claim.held]
                value_C[other_C] /= 1.0 + np.hypot(menu.doubt_C, menu.doubt_C[claim.held])[other_C]
        count = len(value_C)
        value_JC[row, :count], gpus_JC[row, :count], site_JC[row, :count] = value_C, menu.gpus_C, menu.site_C
    return value_JC, gpus_JC, site_JC
