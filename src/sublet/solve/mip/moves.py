"""Choices of jobs over pools, when few may change and none may be paused: the best ones, with proof.

    maximise  sum of gain_j(c_j) - cost of changes   over one choice c_j per job
    with      units used of each pool <= its capacity,   running jobs that change <= most_changes

Without the limits that tie jobs together this is `best_split`, which is tried first where there is one pool: if its
answer keeps them, it is the best. Otherwise prices of all limits give a bound, and a loss for each choice:

    bound(prices) = prices x limits + sum over jobs of the greatest gain_j(c) - prices x use_j(c)

Choices that lose less than the best answer so far go to HiGHS: a few hundred variables instead of tens of thousands.
Where near is enough, the choices that prices suggest are rounded first and made better in pairs. Prices found by a
short walk downhill come before those of linear programs. Mostly that is enough.

>>> asked = Coupled.from_tables([[0.0, 3.0, 4.0], [0.0, 2.0, 5.0]], [3], current=[2, 1], most_changes=0)
>>> found = best_moves(asked)
>>> found.width_J.tolist(), found.total, found.gap
([2, 1], 6.0, 0.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Floats, Ints
from sublet.solve.knapsack.split import best_split
from sublet.solve.mip.highs import Chosen, choose, excess, new_solver
from sublet.solve.mip.problem import NOT_RUNNING, Coupled

__all__ = [
    "NOT_RUNNING",
    "SHARP",
    "Bound",
    "Coupled",
    "Moves",
    "allows",
    "best_moves",
    "bound_at",
    "descend",
    "improved",
    "lowest_bound",
    "near",
    "total",
]

# J jobs, C choices, R limits; V choices of all jobs that are tried, P x Q pairs of these
Way = Literal["split", "prices", "mip"]
FIRST_CHOICES = 300  # for HiGHS at the first try, beside the best of each job: some ten milliseconds
MORE = 8  # times as many, when these contain no answer
SAME = 1e-9  # relative: HiGHS proves no more than this
MANY = 50  # jobs: of fewer, each that is rounded weighs much, so that they are paired; and HiGHS is quick
NEARER = 0.25  # of a tolerance: prices that say more than they must are rounded better
ROUGH = 0.05  # of a tolerance: no more of it goes into prices that are not sharp
TRIES = 100  # any prices give a bound that holds; more tries only sharpen it
SHARP = 1e-7  # relative
STEPS = 30
HOPED = 0.1  # of the bound, at first
FRUITLESS = 2  # steps before less is hoped for
PAIRED = 100  # choices beside those that they have: those that lose least
TINY = 1e-9  # relative: what is more than a rounding error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """One choice per job, and how good it can at most be."""

    column_J: Ints
    width_J: Ints
    pool_J: Ints
    changes: int  # running jobs that leave their current choice
    total: float  # gains less the cost of changes
    bound: float  # no other choices have a greater total
    price_R: Floats  # of a unit of each pool, then of a change if changes are limited
    method: Way  # "split" if what ties jobs together was not in the way, "prices" if these proved enough, else "mip"

    @property
    def gap(self) -> float:
        """How far the total may be from the best; 0 when it is the best."""
        return self.bound - self.total


def best_moves(
    asked: Coupled,
    *,
    start: npt.ArrayLike | None = None,
    tolerance: float = 0.0,
    time_limit_s: float = np.inf,
    rough: bool = False,
) -> Moves:
    """The best choices, or as good as can be proven within a tolerance (relative to the bound) and a time.

    With `rough` prices are no sharper than the tolerance asks for, and what they say is rounded before HiGHS is asked;
    of many jobs without a start it is so anyway.

    Precondition: `start`, if given, is a column per job; the search begins there if these are allowed. The time is what
    HiGHS may take. `Infeasible` if nothing is allowed, or nothing is found in time. Cost: O(J C R) some tens of times,
    and HiGHS on what is left, at worst all of it.
    """
    if not 0 <= tolerance < 1 or not time_limit_s >= 0:
        raise InvalidValue("tolerance, time_limit_s", (tolerance, time_limit_s), "0 to 1, and 0 or more")
    if asked.pools == 1 or len(asked.gain_JC) == 0:
        whole = best_split(asked.gain_JC, int(asked.limit_R[0]), sizes=asked.size_JC, tolerance=tolerance)
        if allows(asked, whole.column_J):
            price_R = np.zeros(len(asked.limit_R))
            price_R[0] = whole.price
            return _answer(asked, whole.column_J, price_R=price_R, bound=whole.bound, method="split")
    many = start is None and len(asked.gain_JC) >= MANY  # a job with a start may ask for prices, too
    near_enough = tolerance > 0 and (rough or many)
    return _solve_coupled(
        asked, _start(asked, start), tolerance=tolerance, time_limit_s=time_limit_s, near_enough=near_enough
    )


def _solve_coupled(
    asked: Coupled, best_J: Ints | None, *, tolerance: float, time_limit_s: float, near_enough: bool = False
) -> Moves:
    """The same with all limits, from the best choices known so far."""
    _each_has_a_choice(asked)
    if near_enough:
        reached = -np.inf if best_J is None else total(asked, best_J)
        proof = descend(asked.gain_JC, asked.use_RJC, asked.limit_R, reached=reached, near=NEARER * tolerance)
        best_J = _rounded(asked, proof, best_J)
        if best_J is not None and proof.bound - (reached := total(asked, best_J)) <= tolerance * abs(proof.bound):
            return _answer(asked, best_J, price_R=proof.price_R, bound=max(proof.bound, reached), method="prices")
    sharp = ROUGH * tolerance if near_enough else SHARP
    proof = lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R, sharp=sharp)
    if near_enough:
        best_J = _rounded(asked, proof, best_J)
    loss_JC, bound = proof.losses(), proof.bound
    enough = max(tolerance, SAME) * abs(bound)
    count, ran_s = FIRST_CHOICES, 0.0
    while best_J is None or bound - total(asked, best_J) > enough:
        most_loss, everything = _most_loss(asked, loss_JC, proof, best_J, count)
        gain_JC = np.where(loss_JC <= most_loss, asked.gain_JC, -np.inf)
        if best_J is not None:
            job_J = np.arange(len(asked.gain_JC))
            gain_JC[job_J, best_J] = asked.gain_JC[job_J, best_J]
        found = choose(
            gain_JC,
            asked.use_RJC,
            asked.limit_R,
            start=best_J,
            enough=enough,
            time_limit_s=time_limit_s - ran_s,
        )
        ran_s += found.ran_s
        best_J = _better(asked, found, best_J)
        # What was left out loses more than most_loss against the bound.
        bound = min(bound, found.bound if everything else max(found.bound, proof.bound - most_loss))
        if everything or ran_s >= time_limit_s:
            break
        count *= MORE
    if best_J is None:
        raise _nothing(asked, time_limit_s, in_time=ran_s < time_limit_s)
    if near_enough:
        some, _ = _most_loss(asked, loss_JC, proof, None, FIRST_CHOICES)
        best_J = _with_what_is_left(asked, loss_JC, some, best_J)
        assert best_J is not None  # noqa: S101 - what it began with fits
    reached = total(asked, best_J)
    if bound - reached <= SAME * abs(bound):
        bound = reached
    return _answer(asked, best_J, price_R=proof.price_R, bound=bound, method="mip")


def _rounded(asked: Coupled, proof: Bound, best_J: Ints | None) -> Ints | None:
    """The choice by prices, made to fit; or the best known so far, if that is no worse; both with the rest filled."""
    loss_JC = proof.losses()
    most_loss, _ = _most_loss(asked, loss_JC, proof, None, FIRST_CHOICES)
    rounded_J = _with_what_is_left(asked, loss_JC, most_loss, loss_JC.argmin(axis=1))
    kept_J = None if best_J is None else _with_what_is_left(asked, loss_JC, most_loss, best_J)
    if rounded_J is None or best_J is None or kept_J is None:
        return rounded_J if kept_J is None else kept_J
    rounded = total(asked, rounded_J)
    return kept_J if total(asked, best_J) >= rounded or total(asked, kept_J) > rounded else rounded_J


def _with_what_is_left(asked: Coupled, loss_JC: Floats, most_loss: float, start_J: Ints) -> Ints | None:
    """Made to fit, and such that no job could gain by the rest, and of few no two.

    The loss by that may be less than any tolerance, where one job is worth more than all others together.
    """
    facts = asked.gain_JC, loss_JC, asked.use_RJC, asked.limit_R, most_loss
    column_J = near(start_J, *facts)
    return column_J if column_J is None or len(asked.gain_JC) >= MANY else improved(column_J, *facts)


def _most_loss(asked: Coupled, loss_JC: Floats, proof: Bound, best_J: Ints | None, count: int) -> tuple[float, bool]:
    """The loss up to which choices are tried next, and whether all that could be better are then among them."""
    loss = loss_JC[np.isfinite(loss_JC)]
    at = len(loss_JC) + count
    some = float(np.partition(loss, at)[at]) if at < len(loss) else np.inf
    if best_J is None:
        return some, some == np.inf
    all_better = proof.bound - total(asked, best_J)
    return min(some, all_better), all_better <= some


def _better(asked: Coupled, found: Chosen, best_J: Ints | None) -> Ints | None:
    if found.column_J is None or not allows(asked, found.column_J):
        return best_J
    if best_J is not None and total(asked, best_J) >= total(asked, found.column_J):
        return best_J
    return found.column_J


def _start(asked: Coupled, given: npt.ArrayLike | None) -> Ints | None:
    if given is None:
        return None
    start_J = np.array(given, dtype=np.intp)
    jobs, choices = asked.gain_JC.shape
    if start_J.shape != (jobs,) or (start_J < 0).any() or (start_J >= choices).any():
        raise InvalidValue("start", given, f"a column, 0 to {choices - 1}, for each of {jobs} jobs")
    return start_J if allows(asked, start_J) else None


def _each_has_a_choice(asked: Coupled) -> None:
    stuck = np.flatnonzero(~(asked.gain_JC > -np.inf).any(axis=1))
    if len(stuck):
        raise Infeasible(
            f"job {stuck[0]} has no choice",
            binding="finite gains in its row",
            needed=1,
            available=0,
            hint="allow it a size, 0 if it may wait",
        )


def _nothing(asked: Coupled, time_limit_s: float, *, in_time: bool) -> Infeasible:
    """Which limit is in the way, and by how much."""
    if not in_time:
        return Infeasible(
            "no choices were found in time",
            binding="time_limit_s",
            needed=np.inf,
            available=time_limit_s,
            hint="raise it, or give a start",
        )
    excess_R = excess(asked.gain_JC, asked.use_RJC, asked.limit_R)
    worst = int(excess_R.argmax())
    return Infeasible(
        "no choices keep all limits together",
        binding=f"the capacity of pool {worst}" if worst < asked.pools else "most_changes",
        needed=float(asked.limit_R[worst] + excess_R[worst]),
        available=float(asked.limit_R[worst]),
        hint="let some jobs wait, or allow more changes",
    )


def allows(asked: Coupled, column_J: Ints) -> bool:
    """Whether these choices are allowed, each and together."""
    job_J = np.arange(len(asked.gain_JC))
    used_R = asked.use_RJC[:, job_J, column_J].sum(axis=1)
    return bool((used_R <= asked.limit_R).all() and (asked.gain_JC[job_J, column_J] > -np.inf).all())


def total(asked: Coupled, column_J: Ints) -> float:
    """Gains less the cost of changes."""
    return float(asked.gain_JC[np.arange(len(asked.gain_JC)), column_J].sum())


def _answer(asked: Coupled, column_J: Ints, *, price_R: Floats, bound: float, method: Way) -> Moves:
    job_J, found = np.arange(len(asked.gain_JC)), total(asked, column_J)
    return Moves(
        column_J=column_J,
        width_J=asked.size_JC[job_J, column_J],
        pool_J=asked.pool_JC[job_J, column_J],
        changes=int(asked.changed_JC[job_J, column_J].sum()),
        total=found,
        bound=max(bound, found),
        price_R=price_R,
        method=method,
    )


# ---------------------------------------------------------------------- prices, and what they prove


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound:
    """Prices, and what they prove."""

    bound: float
    price_R: Floats
    worth_JC: Floats  # gain less what is paid for what is used

    def losses(self) -> Floats:
        """(J, C): how much less each choice is worth than the best of its job."""
        loss_JC: Floats = self.worth_JC.max(axis=1, keepdims=True) - self.worth_JC
        return loss_JC


def lowest_bound(gain_JC: Floats, use_RJC: Floats, limit_R: Floats, *, sharp: float = SHARP) -> Bound:
    """The prices with the lowest bound, to a relative `sharp` or so.

    Precondition: every job has a choice with a finite gain; uses are 0 or more. Cost: O(J C R) per try, and tens of
    tries with a linear program of R + 1 variables each.
    """
    limits = len(limit_R)
    finite = gain_JC[gain_JC > -np.inf]
    dearest = float(finite.max() - finite.min()) + 1.0  # no unit is worth more than a whole job
    planes = new_solver()
    planes.addVar(-np.inf, np.inf)
    planes.changeColCost(0, 1.0)
    for _ in range(limits):
        planes.addVar(0.0, dearest)
    index = np.arange(limits + 1, dtype=np.int32)
    price_R = np.zeros(limits)
    tried, slope_R = bound_at(gain_JC, use_RJC, limit_R, price_R)
    best = tried
    for _ in range(TRIES):
        # height >= bound at these prices + slope x (prices - these prices)
        planes.addRow(
            tried.bound - float(slope_R @ price_R),
            np.inf,
            len(index),
            index,
            np.concatenate(([1.0], -slope_R)),
        )
        planes.run()
        lowest_R1 = np.array(planes.getSolution().col_value)
        if best.bound - lowest_R1[0] <= sharp * max(abs(best.bound), sharp):
            break
        price_R = np.clip(lowest_R1[1:], 0.0, dearest)
        tried, slope_R = bound_at(gain_JC, use_RJC, limit_R, price_R)
        if tried.bound <= best.bound:
            best = tried
    return best


def bound_at(gain_JC: Floats, use_RJC: Floats, limit_R: Floats, price_R: Floats) -> tuple[Bound, Floats]:
    """The bound at these prices, and how it changes with each."""
    worth_JC = gain_JC - (price_R @ use_RJC.reshape(len(price_R), -1)).reshape(gain_JC.shape)
    column_J: Ints = worth_JC.argmax(axis=1)
    job_J = np.arange(len(gain_JC))
    bound = float(price_R @ limit_R + worth_JC[job_J, column_J].sum())
    slope_R: Floats = limit_R - use_RJC[:, job_J, column_J].sum(axis=1)
    return Bound(bound=bound, price_R=price_R, worth_JC=worth_JC), slope_R


def descend(gain_JC: Floats, use_RJC: Floats, limit_R: Floats, *, reached: float, near: float) -> Bound:
    """The best of some tens of prices; none after the bound is within `near` (relative) of what is `reached`.

    Each step goes against the slope, as far as would reach the target (Polyak's step): a value that is reachable, or a
    share below the best bound so far, which is halved whenever two steps in a row bring nothing.

    >>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]] * 2)
    >>> 3.0 <= descend(gain_JC, use_RJC, np.array([1.0, 2.0]), reached=3.0, near=0.01).bound <= 3.03
    True

    Precondition: as of `lowest_bound`; some choices that keep the limits gain `reached`, or it is -inf.
    Cost: O(J C R) per step.
    """
    jobs, choices = gain_JC.shape
    use_RX, gain_X, first_J = use_RJC.reshape(len(limit_R), -1), gain_JC.reshape(-1), np.arange(jobs) * choices
    use_XR = use_RX.T.copy()  # the same with what one choice uses side by side
    price_R = best_R = np.zeros(len(limit_R))
    best, hoped, fruitless = np.inf, HOPED, 0
    for step in range(STEPS + 1):
        worth_X = gain_X - price_R @ use_RX
        at_J = worth_X.reshape(jobs, choices).argmax(axis=1) + first_J
        tried = float(price_R @ limit_R + worth_X.take(at_J).sum())
        slope_R = limit_R - use_XR.take(at_J, axis=0).sum(axis=0)
        fruitless = 0 if step == 0 or tried < best - hoped / 2 * abs(best) else fruitless + 1
        if tried < best:
            best, best_R = tried, price_R
        if fruitless == FRUITLESS:
            hoped, fruitless = hoped / 2, 0
        # A price cannot fall below 0: where it is there and more is left than is used, nothing is to be changed.
        downhill_R = np.where((price_R <= 0) & (slope_R > 0), 0.0, slope_R)
        steep = float(downhill_R @ downhill_R)
        if steep == 0 or best - reached <= near * abs(best):
            break
        target = max(reached, best - hoped * abs(best))
        price_R = np.maximum(price_R - (tried - target) / steep * downhill_R, 0.0)
    return bound_at(gain_JC, use_RJC, limit_R, best_R)[0]


# ---------------------------------------------------------------------- choices that fit


def near(
    start_J: Ints, gain_JC: Floats, loss_JC: Floats, use_RJC: Floats, limit_R: Floats, most_loss: float
) -> Ints | None:
    """A choice per job, from a start, among those that lose no more than this; None if none is found that fits.

    At the prices of the bound the best choices use a little more than there is. Those that lose least for what they
    give back are taken back; then jobs that can gain by the rest do.

    >>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
    >>> near(np.array([1, 1]), gain_JC, np.array([[3.0, 0.0], [2.0, 0.0]]), use_RJC, np.array([1.0]), 3.0).tolist()
    [1, 0]

    Cost: O(V R) a few times for each job that moves.
    """
    column_J = start_J.copy()
    job_V, column_V = np.nonzero(loss_JC <= most_loss)
    gain_V, use_RV = gain_JC[job_V, column_V], use_RJC[:, job_V, column_V]
    job_J = np.arange(len(gain_JC))
    own_RJ = use_RJC[:, job_J, column_J]
    left_R1 = (limit_R - own_RJ.sum(axis=1))[:, None]
    more_V, back_RV = gain_V - gain_JC[job_J, column_J][job_V], own_RJ[:, job_V] - use_RV  # by each choice
    first_J = np.searchsorted(job_V, np.arange(len(gain_JC) + 1)).tolist()
    over = -np.minimum(left_R1, 0.0).sum()
    for _ in range(2 * len(gain_JC)):
        over_V = -np.minimum(left_R1 + back_RV, 0.0).sum(axis=0)
        try_V = (over_V < over if over > 0 else (over_V == 0) & (more_V > 0)).nonzero()[0]
        if not len(try_V):
            break
        score_V = more_V[try_V]
        if over > 0:
            score_V /= np.maximum(over - over_V[try_V], 1.0)
        best = int(try_V[score_V.argmax()])
        job, over, left_R1 = job_V[best], over_V[best], left_R1 + back_RV[:, best, None]
        column_J[job], own = column_V[best], slice(first_J[job], first_J[job + 1])  # only its own change by that
        more_V[own], back_RV[:, own] = gain_V[own] - gain_V[best], use_RV[:, best, None] - use_RV[:, own]
    return None if (left_R1 < 0).any() else column_J


def improved(
    column_J: Ints, gain_JC: Floats, loss_JC: Floats, use_RJC: Floats, limit_R: Floats, most_loss: float
) -> Ints:
    """No worse than these, and such that no two of the choices that lose least at the prices would be better.

    Precondition: they keep all limits. Cost: O(V V R) for each pair that is changed.
    """
    job_J = np.arange(len(column_J))
    column_J, loss_JC = column_J.copy(), loss_JC.copy()
    loss_JC[job_J, column_J] = 0.0  # with what a job has already, another moves alone
    job_V, column_V = np.nonzero(loss_JC <= most_loss)
    most = PAIRED + len(job_J)
    if len(job_V) > most:
        least = np.argpartition(loss_JC[job_V, column_V], most)[:most]
        job_V, column_V = job_V[least], column_V[least]
    gain_V, use_RV = gain_JC[job_V, column_V], use_RJC[:, job_V, column_V]
    for _ in range(2 * len(job_J)):
        own_RJ = use_RJC[:, job_J, column_J]
        left_R = limit_R - own_RJ.sum(axis=1)
        more_V, needs_RV = gain_V - gain_JC[job_J, column_J][job_V], use_RV - own_RJ[:, job_V]
        # One of a pair gains, and the other loses less than the most that any can gain.
        one_P, other_Q = (more_V > 0).nonzero()[0], (more_V > -more_V.max()).nonzero()[0]
        fits_PQ = job_V[one_P, None] != job_V[other_Q]
        for needs_V, left in zip(needs_RV, left_R.tolist(), strict=True):
            fits_PQ &= needs_V[one_P, None] <= left - needs_V[other_Q]
        more_PQ = np.where(fits_PQ, more_V[one_P, None] + more_V[other_Q], 0.0)
        if not more_PQ.max(initial=0.0) > TINY * abs(float(gain_JC[job_J, column_J].sum())):
            break
        one, other = divmod(int(more_PQ.argmax()), len(other_Q))
        pair = [one_P[one], other_Q[other]]
        column_J[job_V[pair]] = column_V[pair]
    return column_J
