"""The cost of losing some of a grid's instances: exact expectations for every source and target at once.

A job runs as `wide` pipelines of `deep` stages, one instance per stage; further instances are spare. Some instances are
lost, drawn uniformly without replacement. Only how many each stage lost matters, and these counts are multivariate
hypergeometric, so that every expectation below is a coefficient of a polynomial; nothing is sampled:

    P(every stage keeps at least d) = [x^k] (sum_{j <= wide-d} C(wide,j) x^j)^deep (1+x)^spare / C(instances,k)

All terms are positive, so floating point loses nothing; C(512, 256) is far from overflow.

>>> keeps([2], [2], loss=Loss(instances=4, lost=1)).tolist()  # someone is always hit, and one of two replicas stays
[[1.0, 0.0]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from sublet.errors import InvalidValue
from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.coefficients import binomials, bounded_powers, choose, last_coefficients, times

SEVERAL = 2  # one stage without replicas is restored no later than it would be sent

# C configurations, Q depths, G groups of stages that take equally long to move, J donors of the last stage,
# R rows of any kind, K coefficients of x^0 to x^lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """`lost` of the `instances` that it can hit. A zone's own trouble hits `pipelines` whole pipelines and spares.

    `pipelines` None: the whole job is within reach, as when the market as a whole takes back. Several of these with
    chances that add up to 1 are a mixture: bulk losses of several sizes, zones that fail one at a time.
    """

    instances: int
    lost: int
    chance: float = 1.0
    pipelines: int | None = None  # of each configuration; at most as many as it has

    def __post_init__(self) -> None:
        if not 0 <= self.lost <= self.instances:
            raise InvalidValue("lost", self.lost, f"between 0 and the {self.instances} instances in reach")
        if not 0.0 <= self.chance <= 1.0:
            raise InvalidValue("chance", self.chance, "between 0 and 1")
        if self.pipelines is not None and self.pipelines < 0:
            raise InvalidValue("pipelines", self.pipelines, "0 or more, or None")

    def hit(self, wide: Ints) -> Ints:
        """How many pipelines of each configuration are within reach."""
        return wide if self.pipelines is None else np.minimum(wide, self.pipelines)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ExpectedMoves:
    """The cost of a change in seconds, by the configuration it leads to; expectations over losses are taken from these.

    A configuration of 0 x 0 is suspended: its state lies in a checkpoint and it holds nothing.
    """

    wide_C: Ints
    deep_C: Ints
    regroup_C: Floats  # same depth, and no stage is short of replicas
    grow_C: Floats  # a new start with more instances than survive
    shrink_C: Floats  # a new start with as many or fewer
    spread_C: Floats  # copying stages to the other pipelines after a change of depth
    wake_s: float  # from suspended, on top of a new start that grows
    depth_C: Ints  # which row of the tables by depth; 0 where suspended
    group_s_QG: Floats  # seconds to move one stage, the longest group first; padded with 0
    group_n_QG: Ints  # how many stages are in a group
    donor_s_QQJ: (
        Floats  # seconds for what the last new stage lacks, by old and new depth: from its best donor, the next
    )
    donor_used_QQJ: Ints  # how many replicas of that donor other new stages take first; 0 from where nothing is shared
    donors_QQ: Ints  # how many old stages share something with the last new stage

    def __len__(self) -> int:
        return len(self.wide_C)

    def __repr__(self) -> str:
        return f"Moves(configurations={len(self)})"

    @property
    def use_C(self) -> Ints:  # noqa: N802 - its axis
        """Instances in the grid."""
        return self.wide_C * self.deep_C


def keeps(wide_C: npt.ArrayLike, deep_C: npt.ArrayLike, *, loss: Loss) -> Floats:
    """P(every stage keeps at least d replicas), d = 1, 2 ... along the second axis; 0 where d is above `wide`.

    Precondition: each grid is within the instances in reach. Cost: O(lost^2 log deep) for each of sum(wide) rows.

    >>> keeps([2, 4], [3, 1], loss=Loss(instances=6, lost=2)).round(3).tolist()
    [[0.8, 0.0, 0.0, 0.0], [1.0, 1.0, 0.6, 0.067]]
    """
    wide_C, deep_C = np.asarray(wide_C, dtype=np.intp), np.asarray(deep_C, dtype=np.intp)
    _fits(wide_C, deep_C, loss)
    most = int(wide_C.max(initial=0))
    chance_CD = np.zeros((len(wide_C), most))
    row_C, least_R = np.nonzero(np.arange(1, most + 1) <= wide_C[:, None])
    chance_CD[row_C, least_R] = _all_keep(loss, loss.hit(wide_C[row_C]), wide_C[row_C] - least_R - 1, deep_C[row_C])
    return chance_CD


def expected_moves(moves: ExpectedMoves, losses: Sequence[Loss], *, from_C: Bools | None = None) -> Floats:
    """Expected seconds from every source (rows) to every target (columns), over a mixture of losses.

    Infinite where the source does not fit into the instances in reach, or is not among `from_C`. Without losses,
    staying is free. Whether a target fits what is left afterwards is not asked here.

    Precondition: at least one loss, chances that add up to 1. Cost: O(C^2 + rows x lost^2 x log deep) per loss, where
    rows are about C x (mean worker count + depths): a few milliseconds for 60 configurations.

    >>> one = np.zeros((1, 1, 1))
    >>> moves = ExpectedMoves(
    ...     wide_C=np.array([0, 1, 2]), deep_C=np.array([0, 1, 1]), depth_C=np.zeros(3, dtype=int), wake_s=0.5,
    ...     regroup_C=np.array([0.0, 1.0, 1.0]), grow_C=np.array([0.0, 9.0, 9.0]), shrink_C=np.array([0.0, 5.0, 5.0]),
    ...     spread_C=np.zeros(3), group_s_QG=np.array([[2.0]]), group_n_QG=np.array([[1]]),
    ...     donor_s_QQJ=one, donor_used_QQJ=one.astype(int), donors_QQ=np.array([[0]]),
    ... )
    >>> expected_moves(moves, [Loss(instances=2, lost=1)])[1:, 1:].tolist()  # half the time the spare was hit
    [[6.0, 11.0], [1.0, 11.0]]
    """
    if not losses or not math.isclose(sum(loss.chance for loss in losses), 1.0):
        raise InvalidValue("losses", losses, "at least one, with chances that add up to 1")
    every_C = np.ones(len(moves), dtype=bool) if from_C is None else from_C
    return np.asarray(sum(loss.chance * _moves_after(moves, loss, every_C) for loss in losses))


# ---------------------------------------------------------------------- one loss


def _moves_after(moves: ExpectedMoves, loss: Loss, from_C: Bools) -> Floats:
    fits_C = _within_reach(moves.wide_C, moves.deep_C, loss) & from_C
    source_C = np.flatnonzero(fits_C & (moves.wide_C > 0))
    restart_CC = np.where(moves.use_C > moves.use_C[:, None] - loss.lost, moves.grow_C, moves.shrink_C)
    seconds_CC = np.full((len(moves), len(moves)), np.inf)
    seconds_CC[source_C] = restart_CC[source_C] + moves.spread_C + _from_donors(moves, loss, source_C)[:, moves.depth_C]
    _same_depth(moves, loss, source_C, restart_CC, seconds_CC)
    idle_C = moves.wide_C == 0
    seconds_CC[idle_C] = moves.wake_s + moves.spread_C + moves.grow_C
    seconds_CC[:, idle_C] = 0.0
    if not loss.lost:
        seconds_CC[source_C, source_C] = 0.0
    seconds_CC[~fits_C] = np.inf
    return seconds_CC


def _same_depth(moves: ExpectedMoves, loss: Loss, source_C: Ints, restart_CC: Floats, seconds_CC: Floats) -> None:
    """Moves at the same depth: replicas are paired anew, or instances change stage."""
    wide_C, depth_C = moves.wide_C, moves.depth_C
    at, to = np.nonzero((depth_C[source_C][:, None] == depth_C) & (wide_C > 0))
    at = source_C[at]
    within = wide_C[to] <= wide_C[at]
    key_R, row_R = np.unique(
        np.stack([depth_C[at], wide_C[at], np.where(within, wide_C[to], wide_C[at] + 1)]), axis=1, return_inverse=True
    )
    longest_R, kept_R = _longest_short(moves, loss, key_R)
    if loss.lost:
        longest_R = longest_R + _serial_excess(moves, loss, key_R)
    row_R = row_R.reshape(-1)
    kept = kept_R[row_R]
    seconds_CC[at, to] = kept * moves.regroup_C[to] + (1.0 - kept) * restart_CC[at, to] + longest_R[row_R]


def _longest_short(moves: ExpectedMoves, loss: Loss, key_R: Ints) -> tuple[Floats, Floats]:
    """E[time of the longest stage that is short], and P(no stage is short), by (depth, wide, replicas wanted)."""
    depth_R, wide_R, least_R = key_R
    chance_R, longest_R = np.ones(len(depth_R)), np.zeros(len(depth_R))
    stages_R = np.zeros(len(depth_R), dtype=np.intp)
    within_R = least_R <= wide_R
    for seconds_Q, many_Q in zip(moves.group_s_QG.T, moves.group_n_QG.T, strict=True):
        stages_R = stages_R + many_Q[depth_R]
        all_R = np.zeros(len(depth_R))
        all_R[within_R] = _all_keep(loss, loss.hit(wide_R[within_R]), (wide_R - least_R)[within_R], stages_R[within_R])
        longest_R += seconds_Q[depth_R] * (chance_R - all_R)
        chance_R = all_R
    return longest_R, chance_R


def _serial_excess(moves: ExpectedMoves, loss: Loss, key_R: Ints) -> Floats:
    """E[(sum over stages without any replica - longest short stage)+]: these come from a checkpoint, one by one.

    Two stages have to be gone, so only sources of at most lost / 2 pipelines, all within reach, have any.
    """
    excess_R = np.zeros(key_R.shape[1])
    rows = np.flatnonzero((SEVERAL * key_R[1] <= loss.lost) & (loss.hit(key_R[1]) == key_R[1]))
    if not len(rows):
        return excess_R
    depth_R, wide_R, least_R = key_R[:, rows]
    chance_RGN = _chance_upto(loss, moves.group_n_QG[depth_R], wide_R, least_R)
    for row, depth, wide, least, chance_GN in zip(
        rows.tolist(), depth_R.tolist(), wide_R.tolist(), least_R.tolist(), chance_RGN, strict=True
    ):
        many = tuple(each for each in moves.group_n_QG[depth].tolist() if each)
        seconds_G = moves.group_s_QG[depth, : len(many)]
        gone = _count_gone(many, loss.lost // wide)
        inside_GE = gone.inside_GE[:1] if least > wide else gone.inside_GE  # then every stage is short
        upto_GE = np.where(inside_GE, chance_GN[: len(inside_GE), gone.total_E], 0.0)
        exactly_GE = upto_GE.copy()
        exactly_GE[:-1] -= upto_GE[1:]
        over_GE = np.maximum(gone.count_EG @ seconds_G - seconds_G[: len(inside_GE), None], 0.0)
        excess_R[row] = ((over_GE * exactly_GE) @ gone.ways_E).sum()
    return excess_R


def _chance_upto(loss: Loss, many_RG: Ints, wide_R: Ints, least_R: Ints) -> Floats:
    """P(n given stages are gone, and of the others those longer than group g are not short), by row, group and n."""
    most = loss.lost // int(wide_R.min())
    longer_RG = np.cumsum(many_RG, axis=1) - many_RG
    stages_R = many_RG.sum(axis=1)
    row, group, gone = np.nonzero(
        (np.arange(most + 1) * wide_R[:, None, None] <= loss.lost)
        & (np.arange(most + 1) <= (stages_R[:, None] - longer_RG)[:, :, None])
        & (many_RG > 0)[:, :, None]
    )
    wide, longer = wide_R[row], longer_RG[row, group]
    degrees = np.arange(loss.lost + 1)
    both = times(
        bounded_powers(wide, wide - 1, stages_R[row] - longer - gone, loss.lost),
        bounded_powers(wide, wide - least_R[row], longer, loss.lost),
    )
    spare = (loss.instances - wide * stages_R[row])[:, None]
    chance_RGN = np.zeros((*many_RG.shape, most + 1))
    ways = (both * choose(spare, (loss.lost - wide * gone)[:, None] - degrees)).sum(axis=1)
    chance_RGN[row, group, gone] = ways / float(math.comb(loss.instances, loss.lost))
    return chance_RGN


def _from_donors(moves: ExpectedMoves, loss: Loss, source_C: Ints) -> Floats:
    """E[seconds for what the last new stage lacks], by source and new depth: its best donor may have been lost."""
    old_R = np.repeat(moves.depth_C[source_C], len(moves.donors_QQ))
    new_R = np.tile(np.arange(len(moves.donors_QQ)), len(source_C))
    wide_R = np.repeat(moves.wide_C[source_C], len(moves.donors_QQ))
    hit_R = loss.hit(wide_R)
    coefficients_RK = np.zeros((len(old_R), loss.lost + 1))
    coefficients_RK[:, 0] = 1.0
    used_R = np.zeros(len(old_R), dtype=np.intp)
    gone_R, seconds_R = np.ones(len(old_R)), np.zeros(len(old_R))
    total = float(math.comb(loss.instances, loss.lost))
    for donor in range(int(moves.donors_QQ.max(initial=0))):
        if not gone_R.any():
            break
        live_R = np.flatnonzero((gone_R > 0) & (donor < moves.donors_QQ[old_R, new_R]))
        need_R = wide_R[live_R] - moves.donor_used_QQJ[old_R[live_R], new_R[live_R], donor]
        tail_RK = binomials(hit_R[live_R], loss.lost) * (np.arange(loss.lost + 1) >= need_R[:, None])
        coefficients_RK[live_R] = times(coefficients_RK[live_R], tail_RK)
        used_R[live_R] += hit_R[live_R]
        now_R = np.zeros(len(live_R))
        some = np.flatnonzero(coefficients_RK[live_R].any(axis=1))
        now_R[some] = last_coefficients(coefficients_RK[live_R[some]], loss.instances - used_R[live_R[some]]) / total
        seconds_R[live_R] += (gone_R[live_R] - now_R) * moves.donor_s_QQJ[old_R[live_R], new_R[live_R], donor]
        gone_R[live_R] = now_R
    last_R = moves.donors_QQ[old_R, new_R]
    seconds_R += gone_R * moves.donor_s_QQJ[old_R, new_R, last_R]
    return seconds_R.reshape(len(source_C), len(moves.donors_QQ))


# ---------------------------------------------------------------------- chances


def _all_keep(loss: Loss, hit_R: Ints, spare_R: Ints, stages_R: Ints) -> Floats:
    """P(each of `stages` stages loses at most `spare` of its `hit` replicas within reach)."""
    sure_R = spare_R >= np.minimum(hit_R, loss.lost)
    chance_R = np.ones(len(hit_R))
    rows = np.flatnonzero(~sure_R)
    if len(rows):
        hit, stages = hit_R[rows], stages_R[rows]
        ways = last_coefficients(bounded_powers(hit, spare_R[rows], stages, loss.lost), loss.instances - hit * stages)
        chance_R[rows] = ways / float(math.comb(loss.instances, loss.lost))
    return chance_R


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Gone:
    """Every way to have two or more stages gone: E of them, as counts by group."""

    count_EG: Ints
    total_E: Ints
    ways_E: Floats  # in how many ways stages make it up
    inside_GE: Bools  # whether no stage longer than group g is among them


@cache
def _count_gone(many_G: tuple[int, ...], most: int) -> _Gone:
    counts = [row for row in product(*(range(min(n, most) + 1) for n in many_G)) if SEVERAL <= sum(row) <= most]
    count_EG = np.array(counts, dtype=np.intp).reshape(len(counts), len(many_G))
    longer_GE = np.cumsum(count_EG, axis=1).T - count_EG.T
    return _Gone(
        count_EG=count_EG,
        total_E=count_EG.sum(axis=1),
        ways_E=choose(np.array(many_G, dtype=np.intp), count_EG).prod(axis=1),
        inside_GE=longer_GE == 0,
    )


# ---------------------------------------------------------------------- what is in reach


def _within_reach(wide_C: Ints, deep_C: Ints, loss: Loss) -> Bools:
    return np.asarray(loss.hit(wide_C) * deep_C <= loss.instances)


def _fits(wide_C: Ints, deep_C: Ints, loss: Loss) -> None:
    if not _within_reach(wide_C, deep_C, loss).all():
        worst = int((loss.hit(wide_C) * deep_C).max())
        raise InvalidValue(
            "instances", loss.instances, f"at least {worst}, which is what the largest grid has in reach"
        )
