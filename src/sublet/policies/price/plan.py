"""From the value of time to a plan: who gets which shape now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.plan import Plan
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.draft import Draft
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import ValueOfTime
from sublet.planning.weighing import WeighedOptions
from sublet.policies.price.beliefs import WorkBelief, believed_left_h
from sublet.policies.price.choices import TRIFLE_H, Asked, Choices
from sublet.policies.price.cluster_split import Claims, split
from sublet.policies.price.congestion import WAIT, share_pools
from sublet.solve.arrays import Floats

__all__ = ["priced_plan"]

BEYOND_USD = 10_000.0  # per hour: no budget speaks against speed, only limits do
SIZED = frozenset({WorkBelief.DECLARED, WorkBelief.LEARNED})  # what is believed is near what is
SELDOM = 10  # times as long until jobs without phases are asked again


@dataclass(frozen=True, slots=True)
class _Grants:
    """A column or WAIT for each job, in the order in which they are served; why one waits; and surcharges."""

    column_of: Sequence[tuple[Asked, int, str]]
    surcharge: Mapping[str, float]  # USD per GPU-hour, by row
    scarce: Mapping[str, Floats]  # by job: what that comes to for each of its shapes


def priced_plan(
    terms: Terms,
    value: ValueOfTime,
    *,
    review_s: float,
    patience_s: float = math.inf,
    knows: WorkBelief = WorkBelief.DECLARED,
) -> Plan:
    """Each job on the shape that costs least at this value of time; jobs that run are asked every `review_s`.

    Where a pool is limited everybody is asked, for what one gives up another may use. Jobs that came more than
    `patience_s` ago come first then, in order of arrival.
    """
    asked, warnings = Choices(terms, value, sized=knows is WorkBelief.DECLARED).ask(patience_s)
    priceless = value.worth is None and value.price.priceless  # no money is to be saved by taking longer
    if not asked or not terms.limited:
        grants = _Grants([(each, each.options.best, "") for each in asked], {}, {})
    elif not any(terms.rent_R) or (priceless and len(terms.rows) == 1):
        grants = _split_cluster(asked, terms, patience_s, knows)
    else:
        grants = _share(asked, terms, patience_s, by_owner=value.worth is not None)
    reasons = [_reason(each, column, terms) if column != WAIT else why for each, column, why in grants.column_of]
    weighed = {each.state.job.id: _weigh(each, terms, grants.scarce) for each in asked}
    ask_again_s = _next_review_s(terms, review_s)
    draft = Draft(terms.snapshot, terms.most, terms.rows)
    for (each, column, _), reason in zip(grants.column_of, reasons, strict=True):
        if column == WAIT:
            draft.take(each.state, reason)
        else:
            draft.put(each.state, each.table.menus[each.row].shapes[column], reason)
    return draft.plan(
        ask_again_s=ask_again_s,
        value_of_time_usd_per_h=value.price.usd_per_h if value.worth is None else None,  # else each job has its own
        congestion_usd_per_gpu_h=grants.surcharge,
        warnings=warnings,
        weighed=weighed,
    )


def _next_review_s(terms: Terms, review_s: float) -> float | None:
    """Jobs with phases may want another shape soon; the others only as the price of time creeps."""
    snapshot = terms.snapshot
    if not snapshot.active and not len(snapshot.waiting):
        return None
    phased = any(state.job.speed.ends for state in snapshot.active.values())
    every_s = review_s if phased else SELDOM * review_s
    return (math.floor(terms.now_s / every_s) + 1) * every_s


def _weigh(each: Asked, terms: Terms, scarce: Mapping[str, Floats]) -> WeighedOptions:
    return WeighedOptions(
        table=each.table,
        row=each.row,
        rent_R=terms.rent_R,
        most_R=terms.alone_R,
        scarce_C=scarce.get(each.state.job.id),
    )


def _reason(each: Asked, column: int, terms: Terms) -> str:
    """What the shape takes and costs; nothing where the job has it already."""
    if each.table.menus[each.row].shapes[column] == each.state.shape:
        return ""
    options = each.options
    money = float(options.rent_to_the_end(terms.rent_R)[column])
    in_a_hurry = options.value_of_time > BEYOND_USD
    best = "the quickest within the limits" if in_a_hurry else "time and rent together are least"
    if math.isinf(each.state.job.work):
        best += ", of the day ahead: it has no end"
    takes = f"{float(options.hours_C[column]):.2f} h for about USD {max(0.0, money):.2f}"
    doubt_C = options.menu.doubt_C
    if options.gain_C is not None and doubt_C is not None and options.gain_C[column] > 0.0:
        gain = float(options.gain_C[column])
        saves = f"a gain worth USD {gain:.2f}" if not in_a_hurry else f"a gain of {gain / options.value_of_time:.2f} h"
        off = f"may be off by {100.0 * float(doubt_C[column]):.0f} %"
        return (
            f"tried to learn: {takes} as believed, which {off}; {saves} is expected, with the way back if it is slower"
        )
    return f"{takes}: {best}"


# ---------------------------------------------------------------------- who gets what of pools that are limited


def _share(asked: Sequence[Asked], terms: Terms, patience_s: float, *, by_owner: bool) -> _Grants:
    """Everybody at once, within what can be held: the least work first, but before all who has waited for too long."""
    work_J = np.array([max(TRIFLE_H, each.left_h) for each in asked])
    age_J = terms.now_s - np.array([each.state.job.submit_s for each in asked])
    found = share_pools(
        asked[0].table,
        work_J,
        np.where(age_J > patience_s, -age_J, work_J),
        np.array([each.held for each in asked]),
        terms,
        by_owner=by_owner,
    )
    rows = found.wishes.row_J.tolist()
    able = set(rows)
    grants = [
        (each, WAIT, "nothing that it can run on can be had now") for at, each in enumerate(asked) if at not in able
    ]
    waits = "there are not enough GPUs for all, and it has the most work left"
    grants += [(asked[at], column, waits) for at, column in zip(rows, found.column_J.tolist(), strict=True)]
    surcharge, scarce = _by_row(terms, found.surcharge_R), {}
    scarce_JC = found.wishes.scarce(found.surcharge_R)
    for row, at in enumerate(rows if surcharge else ()):
        scarce[asked[at].state.job.id] = scarce_JC[row, : len(asked[at].table.menus[at].shapes)]  # the rest is padding
    return _Grants(grants, surcharge, scarce)


def _split_cluster(asked: Sequence[Asked], terms: Terms, patience_s: float, knows: WorkBelief) -> _Grants:
    """The same where nothing is saved, or is to be saved, by leaving a GPU idle."""
    found = split(_claims(asked, terms, patience_s, knows), terms.alone_R)
    waits = "others make more of the GPUs, or have less left to do"
    grants = [(each, column, waits) for each, column in zip(asked, found.column_J.tolist(), strict=True)]
    return _Grants(grants, _by_row(terms, found.price_R), {})


def _by_row(terms: Terms, usd_R: Floats) -> dict[str, float]:
    return {row.name: float(usd) for row, usd in zip(terms.rows, usd_R, strict=True) if usd > 0}


def _claims(asked: Sequence[Asked], terms: Terms, patience_s: float, knows: WorkBelief) -> Claims:
    now_s, states, menus = terms.now_s, [each.state for each in asked], asked[0].table.menus
    age_J = now_s - np.array([state.job.submit_s for state in states])
    return Claims(
        table=asked[0].table,
        left_h_J=believed_left_h(asked, terms.snapshot.ended, now_s, knows),
        sized=knows in SIZED,
        weight_J=np.array([state.job.weight for state in states]),
        age_h_J=age_J / SECONDS_PER_H,
        due_s_J=np.maximum(0.0, age_J - patience_s),
        held_J=np.array(
            [
                WAIT if state.shape is None else menu.column.get(state.shape, WAIT)
                for state, menu in zip(states, menus, strict=True)
            ],
            dtype=np.intp,
        ),
        pinned_J=np.array(
            [state.shape is not None and (state.held_since_s >= now_s or state.as_of_s > now_s) for state in states]
        ),
    )
