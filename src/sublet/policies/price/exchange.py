"""Who gets what of pools that are short: jobs that have a place keep it, unless a newcomer gains more than they lose.

Any split of short pools among many jobs is one of many that are nearly as good, and the best one changes with every
minute that passes and every speed that is learned. So a new split is weighed against the steady one, in which those
that have a place stay as far as there is room, and the others take what is left. Of those that have one, each may take
what is better for it; none is moved so that another of them can be. For a newcomer they make room if that leaves fewer
waiting, or if it pays.

What it pays ends early. Who gives way would have made room anyway by the time it ends, so that what the newcomers gain
counts only until then:

    sum over newcomers of (what it gains x the part of its time until somebody who loses would have ended)  >  losses
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublet.planning.options import Options
from sublet.planning.terms import Terms
from sublet.policies.price.congestion import WAIT, Wishes, best_within, cheapest, fill, fit, trim, wishes
from sublet.solve.arrays import Floats, Ints

__all__ = ["Shares", "pays", "pinned", "share_pools", "steady"]

# J jobs (those that could run), P pools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """What each job that could run gets, and what a GPU of a short pool costs beside its rent."""

    wishes: Wishes
    column_J: Ints  # WAIT if it gets nothing
    surcharge_P: Floats

    def scarce(self, at: int) -> Floats:
        """What the surcharge comes to, in USD, for each shape of a job (the rest is padding)."""
        scarce_C: Floats = self.surcharge_P[self.wishes.site_JC[at]] * self.wishes.use_JC[at]
        return scarce_C


def share_pools(
    options: Sequence[Options], work_J: Floats, rank_J: Floats, held_J: Ints, terms: Terms, *, by_owner: bool
) -> Shares:
    """Everybody at once, within what can be held. All but `terms` are of the jobs that were asked.

    `by_owner`: where no budget rules, each job has its own value of time, so that costs add up and places are kept.
    """
    every = wishes(options, work_J, terms.alone_P)
    pools = len(terms.sites)
    if not len(every.row_J):
        return Shares(wishes=every, column_J=every.row_J, surcharge_P=np.zeros(pools))
    able, rank_J, held_J = [options[at] for at in every.row_J.tolist()], rank_J[every.row_J], held_J[every.row_J]
    free_J = every.columns(np.zeros(pools))
    split_by = cheapest if by_owner and pools > 1 else fit
    found = split_by(every, rank_J, terms.obtainable(every.gpus(free_J, pools)))
    column_J = found.column_J
    if by_owner or any(each.menu.doubt_C is not None for each in able):
        wanted_P = np.maximum(every.gpus(np.where(held_J == WAIT, free_J, held_J), pools), every.gpus(free_J, pools))
        most_P = terms.obtainable(wanted_P)
        old_J = steady(every, held_J, rank_J, most_P)
        if (old_J == WAIT).sum() > (column_J == WAIT).sum():
            old_J = pinned(every, held_J, rank_J, most_P)
        if not pays(able, held_J, column_J, old_J):
            column_J = old_J
    return Shares(wishes=every, column_J=column_J, surcharge_P=found.surcharge_P)


def steady(all_wishes: Wishes, held_J: Ints, rank_J: Floats, most_P: Floats) -> Ints:
    """Those that run stay (`held_J`, WAIT for the others), the last in rank give way where there is too little room.

    Then everybody takes what is better for it, as far as there is room: first those that have nothing, in order of
    rank, then those to whom it is worth most. Cost: O(J C).
    """
    rows = np.arange(len(held_J))
    able_J = (held_J != WAIT) & np.isfinite(all_wishes.cost_JC[rows, held_J])
    column_J: Ints = np.where(able_J, held_J, WAIT)
    first_J = np.where(able_J, rank_J, np.inf)  # who runs comes before who does not
    column_J = trim(all_wishes, column_J, first_J, most_P)
    return fill(all_wishes, column_J, _by_gain(all_wishes, column_J, rank_J, most_P), most_P)


def pinned(all_wishes: Wishes, held_J: Ints, rank_J: Floats, most_P: Floats) -> Ints:
    """Those that run stay in their pools and shrink there; as few as possible wait. Cost: an integer program."""
    rows = np.arange(len(held_J))
    home_J = all_wishes.site_JC[rows, held_J]
    own_JC = np.where(all_wishes.site_JC == home_J[:, None], all_wishes.cost_JC, np.inf)
    stays_J = (held_J != WAIT) & np.isfinite(own_JC).any(axis=1)
    cost_JC = np.where(stays_J[:, None], own_JC, all_wishes.cost_JC)
    return cheapest(replace(all_wishes, cost_JC=cost_JC), rank_J, most_P).column_J


def _by_gain(all_wishes: Wishes, column_J: Ints, rank_J: Floats, most_P: Floats) -> Floats:
    """Ranks: who waits comes first, then who gains most by what there is room for now."""
    room_P = most_P - all_wishes.gpus(column_J, len(most_P))
    gain_J = np.full(len(column_J), np.inf)
    for job in np.flatnonzero(column_J != WAIT).tolist():
        now, own_P = column_J[job], room_P.copy()
        own_P[all_wishes.site_JC[job, now]] += all_wishes.gpus_JC[job, now]
        gain_J[job] = all_wishes.cost_JC[job, now] - all_wishes.cost_JC[job, best_within(all_wishes, job, own_P)]
    place_J = np.empty(len(column_J))
    place_J[np.lexsort((rank_J, -gain_J))] = np.arange(len(column_J))
    return place_J


def pays(options: Sequence[Options], held_J: Ints, new_J: Ints, old_J: Ints) -> bool:
    """Whether a new split is better than the old: nobody loses, or newcomers gain more than others do. Cost: O(J)."""
    if (new_J == WAIT).sum() != (old_J == WAIT).sum():
        return bool((new_J == WAIT).sum() < (old_J == WAIT).sum())
    gained, lost, until_h = [], 0.0, np.inf
    for each, held, new, old in zip(options, held_J.tolist(), new_J.tolist(), old_J.tolist(), strict=True):
        if new == old:
            continue
        if WAIT in (new, old):
            return False  # one would wait in another's stead
        gain, hours = float(each.cost_C[old] - each.cost_C[new]), float(each.hours_C[old])
        if gain < 0.0:
            lost -= gain
            until_h = min(until_h, hours)
        elif held == WAIT:
            gained.append((gain, hours))
    return not lost or sum(gain * min(1.0, until_h / hours) for gain, hours in gained if hours) > lost
