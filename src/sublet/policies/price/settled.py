"""A cluster on which no job wants anything else: the plan that `cluster_split` would make, without a table.

Most plans for a production cluster are of this kind: a job has ended, or a narrow one has come, all others train in the
fastest shape that there is for them, and there is room. A job that trains in it would pause to do no more work
elsewhere; a job with but one shape takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.planning.jobs import NOTHING, Jobs
from sublet.planning.menu import Menu
from sublet.planning.options import options_at
from sublet.policies.price.choices import Asked, Late, Told
from sublet.policies.price.cluster_split import efficient_shapes, hurries
from sublet.policies.price.decision import Decision
from sublet.solve.arrays import Bools, Floats, Ints

UNCLEAR = (NOTHING, False, 1.0, 0.0)

# H in a hurry or not, J jobs, N of them newcomers, U kinds of jobs: a menu and a phase, C shapes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """The newcomers, None if there are none, with the only shape of each; and what owners should know."""

    newcomers: Asked | None
    column_N: Ints
    told: Told


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fastest:
    """Of each kind the shape that does most work in an hour; of several, the first.

    For jobs that may have only what is worth its GPUs, and for those in a hurry, which may have all.
    """

    column_HU: Ints  # NOTHING where that is not clear
    alone_HU: Bools  # it has no other
    rate_HU: Floats
    gpus_HU: Floats


def settled(decision: Decision, jobs: Jobs) -> Settled | None:
    """None where a job might want something else, or where there is more than one row. Cost: O(J)."""
    terms, value_J = decision.terms, decision.value_J
    if len(terms.rows) != 1 or decision.rented or not terms.limited or terms.refusals is not None:
        return None
    if jobs.purse_J.any() or jobs.core_J.any():
        return None
    fastest, kind_J = _fastest(jobs.kinds), jobs.kind_J
    at_J = (hurries(jobs, decision.value).astype(np.intp), kind_J)
    column_J = fastest.column_HU[at_J]
    stays_J = jobs.held_J == column_J
    comes_J = fastest.alone_HU[at_J] & (jobs.own_J == NOTHING)  # a job with another shape may keep that
    sure_J = (stays_J | comes_J) & (column_J != NOTHING)
    if not sure_J.all() or fastest.gpus_HU[at_J].sum() > terms.alone_R[0]:
        return None
    hours_J = jobs.left_J / fastest.rate_HU[at_J]
    newcomers, new_N = None, (~stays_J).nonzero()[0]
    if len(new_N):
        among = jobs.take(new_N.tolist())
        newcomers = Asked(jobs=among, table=options_at(among, value_J[new_N], terms.rent_R))
        hours_J[new_N] = newcomers.table.hours_JC[np.arange(len(new_N)), column_J[new_N]]
    return Settled(
        newcomers=newcomers, column_N=column_J[new_N], told=_too_late(jobs, hours_J, column_J, value_J, terms.now_s)
    )


def _too_late(jobs: Jobs, hours_J: Floats, column_J: Ints, value_J: Floats, now_s: float) -> Told:
    """Deadlines that the fastest shape does not keep, as `choices.too_late` has it."""
    left_h_J = (jobs.deadline_s_J - now_s) / SECONDS_PER_H
    (late_L,) = (hours_J > left_h_J).nonzero()
    if not len(late_L):
        return Told({})
    rows, columns = late_L.tolist(), column_J[late_L].tolist()
    fastest = [jobs.menus[row].shapes[column] for row, column in zip(rows, columns, strict=True)]
    hours, cost, value, left = (of[late_L].tolist() for of in (hours_J, value_J * hours_J, value_J, left_h_J))
    notes = map(Late, fastest, hours, cost, value, left)
    return Told({jobs.states[row].job.id: note for row, note in zip(rows, notes, strict=True)})


@lru_cache(maxsize=4)  # from one decision to the next they are mostly the same
def _fastest(kinds: tuple[tuple[Menu, int], ...]) -> _Fastest:
    column_HU, alone_HU, rate_HU, gpus_HU = np.array(
        [[_fastest_of(menu, phase, hurried=hurried) for menu, phase in kinds] for hurried in (False, True)]
    ).transpose(2, 0, 1)
    return _Fastest(
        column_HU=column_HU.astype(np.intp), alone_HU=alone_HU.astype(np.bool_), rate_HU=rate_HU, gpus_HU=gpus_HU
    )


@lru_cache(maxsize=4096)
def _fastest_of(menu: Menu, phase: int, *, hurried: bool) -> tuple[int, bool, float, float]:
    """Its column, whether it is the only one, its rate and GPUs; unclear where phases are ahead or speeds in doubt."""
    if phase < len(menu.rate_EC) - 1 or menu.doubt_C is not None or not menu.rate_EC[phase].any():
        return UNCLEAR
    rate_C = menu.rate_EC[phase] if hurried else np.where(efficient_shapes(menu, phase), menu.rate_EC[phase], 0.0)
    column = int(rate_C.argmax())
    return column, np.count_nonzero(rate_C) == 1, float(rate_C[column]), float(menu.gpus_C[column])
