"""From the value of time to a plan: who gets which shape now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sublet.domain.plan import Plan
from sublet.domain.units import SECONDS_PER_H
from sublet.domain.weighed import Weighing
from sublet.planning.draft import Draft
from sublet.planning.standing import Standing
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import ValueOfTime
from sublet.planning.weighing import AllWeighed
from sublet.policies.price.beliefs import WorkBelief, believed_left_h
from sublet.policies.price.choices import TRIFLE_H, Asked, Choices
from sublet.policies.price.cluster_split import Claims, split
from sublet.policies.price.congestion import WAIT, share_pools
from sublet.policies.price.deadlines import turns
from sublet.policies.price.frugal import frugal
from sublet.policies.price.settled import settled
from sublet.solve.arrays import Bools, Floats, Ints

__all__ = ["priced_plan"]

BEYOND_USD = 10_000.0  # per hour: no budget speaks against speed, only limits do
SIZED = frozenset({WorkBelief.DECLARED, WorkBelief.LEARNED})  # what is believed is near what is
SELDOM = 10  # times as long until jobs without phases are asked again


class _Part(NamedTuple):
    """Jobs by their rows, in the order in which they are served; a column or WAIT of each; why one of them waits."""

    row_J: Ints
    column_J: Ints
    waits: str


@dataclass(frozen=True, slots=True)
class _Grants:
    """What all get, and surcharges."""

    parts: Sequence[_Part]
    surcharge: Mapping[str, float]  # USD per GPU-hour, by row
    scarce_JC: Floats | None = None  # what that comes to for each shape of each job
    scarce_rows: Mapping[int, int] = field(default_factory=dict)  # where in that
    content: bool = False  # all have the fastest that there is, and will as long as nothing happens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What those get that were asked, what their owners should know, and what was compared for them."""

    grants: _Grants = field(default_factory=lambda: _Grants([], {}))
    asked: Asked | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    weighed: Mapping[str, Weighing] = field(default_factory=dict)


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
    choices = Choices(terms, value, sized=knows is WorkBelief.DECLARED)
    standing = choices.standing(patience_s)
    answer = _Answer() if standing is None else _answer(choices, standing, patience_s, knows)
    everybody = standing if terms.limited else None  # then all that have a shape are among them
    without_cores = everybody is not None and not everybody.core_J.any()
    draft = Draft(terms.snapshot, terms.most, terms.rows, active=() if without_cores else None)
    if answer.asked is not None:
        for part in answer.grants.parts:
            _carry_out(answer.asked, part, draft, terms)
    return draft.plan(
        ask_again_s=None if answer.grants.content else _next_review_s(terms, everybody, review_s),
        value_of_time_usd_per_h=value.price.usd_per_h if value.worth is None else None,  # else each job has its own
        congestion_usd_per_gpu_h=answer.grants.surcharge,
        warnings=answer.told,
        weighed=answer.weighed,
    )


def _answer(choices: Choices, standing: Standing, patience_s: float, knows: WorkBelief) -> _Answer:
    terms, value = choices.terms, choices.value
    calm = settled(standing, value, terms)
    if calm is not None:
        part = _Part(np.arange(len(calm.column_N)), calm.column_N, "")
        grants = _Grants([part], {}, content=_is_everybody(standing, terms))
        weighed = AllWeighed(
            states=standing.states,
            made=lambda: choices.options(standing),
            rent_R=terms.rent_R,
            most_R=terms.alone_R,
        )
        return _Answer(grants=grants, asked=calm.newcomers, told=calm.told, weighed=weighed)
    asked, told = choices.ask(standing)
    if asked is None:
        return _Answer(told=told)
    grants = _grant(asked, terms, value, patience_s, knows)
    return _Answer(grants=grants, asked=asked, told=told, weighed=_weigh(asked, terms, grants))


def _grant(asked: Asked, terms: Terms, value: ValueOfTime, patience_s: float, knows: WorkBelief) -> _Grants:
    priceless = value.worth is None and value.price.priceless  # no money is to be saved by taking longer
    if not terms.limited:
        return _Grants([_Part(np.arange(len(asked.standing.states)), asked.table.cost_JC.argmin(axis=1), "")], {})
    if not any(terms.rent_R) or (priceless and len(terms.rows) == 1):
        return _split_cluster(asked, terms, value, patience_s, knows)
    return _share(asked, terms, patience_s, by_owner=value.worth is not None)


def _carry_out(asked: Asked, part: _Part, draft: Draft, terms: Terms) -> None:
    """Of those alone that get another shape than they have; or whose core on demand the draft has to look at."""
    row_J, column_J, standing = part.row_J, part.column_J, asked.standing
    new_J = (column_J != standing.own_J[row_J]) | standing.core_J[row_J]
    for row, column in zip(row_J[new_J].tolist(), column_J[new_J].tolist(), strict=True):
        state = standing.states[row]
        if column == WAIT:
            draft.take(state, part.waits)
        else:
            draft.put(state, asked.table.menus[row].shapes[column], _reason(asked, row, column, terms))


def _next_review_s(terms: Terms, everybody: Standing | None, review_s: float) -> float | None:
    """Jobs with phases may want another shape soon; the others only as the price of time creeps."""
    snapshot = terms.snapshot
    if not snapshot.active and not len(snapshot.waiting):
        return None
    phased = everybody is None or any(menu.ends for menu, _ in everybody.kinds)
    phased = phased and any(state.job.speed.ends for state in snapshot.active.values())
    every_s = review_s if phased else SELDOM * review_s
    return (math.floor(terms.now_s / every_s) + 1) * every_s


def _weigh(asked: Asked, terms: Terms, grants: _Grants) -> Mapping[str, Weighing]:
    return AllWeighed(
        states=asked.standing.states,
        made=lambda: asked.table,
        rent_R=terms.rent_R,
        most_R=terms.alone_R,
        scarce_JC=grants.scarce_JC,
        scarce_rows=grants.scarce_rows,
    )


def _reason(asked: Asked, row: int, column: int, terms: Terms) -> str:
    """What the shape takes and costs; nothing where the job has it already."""
    state = asked.standing.states[row]
    if asked.table.menus[row].shapes[column] == state.shape:
        return ""
    options = asked.table.of(row)
    money = float(options.rent_to_the_end(terms.rent_R)[column])
    in_a_hurry = options.value_of_time > BEYOND_USD
    best = "the quickest within the limits" if in_a_hurry else "time and rent together are least"
    if not any(terms.rent_R) and options.hours_C[column] > options.hours_C.min():
        best = "what it makes good use of, beside others, of GPUs that are paid for"
    if math.isinf(state.job.work):
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


def _share(asked: Asked, terms: Terms, patience_s: float, *, by_owner: bool) -> _Grants:
    """Everybody at once, within what can be held: the least work first, but before all who has waited for too long."""
    work_J = np.maximum(TRIFLE_H, asked.standing.gpu_hours_J)
    age_J = terms.now_s - asked.standing.submit_s_J
    found = share_pools(
        asked.table,
        work_J,
        np.where(age_J > patience_s, -age_J, work_J),
        asked.standing.whole_J,
        terms,
        by_owner=by_owner,
    )
    row_J = np.asarray(found.wishes.row_J, dtype=np.intp)
    unable_J = np.setdiff1d(np.arange(len(asked.standing.states)), row_J)
    nothing = _Part(unable_J, np.full(len(unable_J), WAIT), "nothing that it can run on can be had now")
    some = _Part(row_J, found.column_J, "there are not enough GPUs for all, and it has the most work left")
    surcharge = _by_row(terms, found.surcharge_R)
    if not surcharge:
        return _Grants([nothing, some], surcharge)
    places = {row: at for at, row in enumerate(row_J.tolist())}
    return _Grants([nothing, some], surcharge, found.wishes.scarce(found.surcharge_R), places)


def _split_cluster(asked: Asked, terms: Terms, value: ValueOfTime, patience_s: float, knows: WorkBelief) -> _Grants:
    """The same where nothing is saved, or is to be saved, by leaving a GPU idle."""
    frugal_JC = frugal(asked.standing, value)
    claims = _claims(asked, terms, frugal_JC, patience_s, knows)
    found = split(claims, terms.alone_R)
    waits = "others make more of the GPUs, or have less left to do"
    if (claims.turn_J < np.inf).any():
        waits += ", or a deadline before it"
    parts = [_Part(np.arange(len(asked.standing.states)), found.column_J, waits)]
    return _Grants(parts, _by_row(terms, found.price_R), content=_are_content(asked, frugal_JC, found.column_J, terms))


def _are_content(asked: Asked, frugal_JC: Bools, column_J: Ints, terms: Terms) -> bool:
    """Whether all have what is worth most to them at any time to come: the fastest shape, where nothing is in doubt.

    What they have costs no pause, and no other does more work; so whoever asks them again hears the same, until an
    event brings or takes something.
    """
    standing, table = asked.standing, asked.table
    if not _is_everybody(standing, terms) or (column_J == WAIT).any():
        return False
    if not table.last_J.all() or (standing.purse_J | standing.core_J).any() or terms.refusals is not None:
        return False
    if table.doubted_J.any():  # a speed that is measured meanwhile is no event
        return False
    most_J = np.where((table.cost_JC < np.inf) & frugal_JC, table.rate_JC, 0.0).max(axis=1)
    return bool((table.rate_JC[np.arange(len(table)), column_J] >= most_J).all())


def _is_everybody(standing: Standing, terms: Terms) -> bool:
    return len(standing) == len(terms.snapshot.active) + len(terms.snapshot.waiting)


def _by_row(terms: Terms, usd_R: Floats) -> dict[str, float]:
    return {row.name: float(usd) for row, usd in zip(terms.rows, usd_R, strict=True) if usd > 0}


def _claims(asked: Asked, terms: Terms, frugal_JC: Bools, patience_s: float, knows: WorkBelief) -> Claims:
    standing = asked.standing
    age_J = terms.now_s - standing.submit_s_J
    return Claims(
        table=asked.table,
        left_h_J=believed_left_h(asked, terms.snapshot.ended, knows),
        frugal_JC=frugal_JC,
        sized=knows in SIZED,
        weight_J=standing.weight_J,
        age_h_J=age_J / SECONDS_PER_H,
        kept_h_J=standing.kept_s_J / SECONDS_PER_H,
        due_s_J=np.maximum(0.0, age_J - patience_s),
        held_J=np.maximum(standing.own_J, WAIT),  # also where it is not on the menu
        runs_J=standing.held_J,
        pinned_J=standing.pinned_J,
        turn_J=turns(standing, asked.table, terms.now_s),
    )
