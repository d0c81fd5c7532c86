"""Where jobs stand now, side by side: what a decision reads of each state, as arrays over jobs.

What stays until an event touches the job is read from its state once and kept with it: of a thousand jobs of which one
has changed, one is read. How far a job has come follows from that and the time; only jobs with phases, or without an
end, are asked one by one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sublet.domain.plan import JobState, Phase
from sublet.perf.speedup import ConstantRate
from sublet.planning.menu import Menu, menu_of
from sublet.planning.terms import Sites
from sublet.solve.arrays import Bools, Floats, Ints

__all__ = ["NOTHING", "OFF_MENU", "SETTLED", "Standing", "side_of", "standing_of", "standing_on"]

SETTLED = frozenset({Phase.RUNNING, Phase.STARTING, Phase.RESIZING})  # on its shape, or on its way there
NOTHING = -1  # column of a job that is on no shape, nor on its way to one
OFF_MENU = -2  # of one that has a shape that is not on its menu
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, modulo 1, fill the unit interval evenly

# J jobs, F numbers of a state: so many that are counted or measured, then flags, then columns of its menu
NUMBERS, FLAGS = 12, 7
_ROW = struct.Struct("22d")


class _Kept(NamedTuple):
    """Of one state: its menu, that with the phase it is in if there is but one, and its numbers."""

    menu: Menu
    kind: tuple[Menu, int]
    row: bytes
    plain: bool  # how far it has come follows from these


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """Of many jobs, now."""

    states: Sequence[JobState]
    menus: Sequence[Menu]
    kinds: tuple[tuple[Menu, int], ...]  # all there are: the menu of a job, and the phase that it is in
    kind_J: Ints  # which of these
    done_J: Floats  # work
    left_J: Floats  # work until the end of the phase
    gpu_hours_J: Floats  # to the end at the most efficient, over the weight
    weight_J: Floats
    side_J: Floats  # as `side_of`
    submit_s_J: Floats
    deadline_s_J: Floats  # inf = it has none
    attained_gpu_s_J: Floats  # as `JobState.attained_gpu_s`
    kept_s_J: Floats  # since it got what it holds; 0 = it holds nothing
    pinned_J: Bools  # it has only just got what it has
    waits_J: Bools  # it holds nothing
    hurries_J: Bools
    core_J: Bools  # its owner wants GPUs on demand
    pauses_J: Bools  # it tells them by kinds of change
    doubted_J: Bools  # its speeds are believed, and nothing was promised by them
    purse_J: Bools  # it has one of its own
    held_J: Ints  # columns of what they are on, or on their way to; NOTHING
    own_J: Ints  # of what they have or were promised; NOTHING, or OFF_MENU
    whole_J: Ints  # of what they run in, whatever they were promised; NOTHING where that is broken

    def __len__(self) -> int:
        return len(self.states)

    def take(self, rows: Sequence[int]) -> Standing:
        """Of these jobs alone."""
        if len(rows) == len(self):
            return self
        at = np.array(rows, dtype=np.intp)
        facts: dict[str, Any] = {
            "states": [self.states[row] for row in rows],
            "menus": [self.menus[row] for row in rows],
            "kinds": self.kinds,
        }
        facts |= {each.name: getattr(self, each.name)[at] for each in fields(self) if each.name not in facts}
        return Standing(**facts)


def side_of(state: JobState) -> float:
    """Between 0 and 1: its own for good, and those of many jobs are spread evenly."""
    return state.seq * GOLDEN % 1.0


def standing_on(states: Sequence[JobState], sites: Sites, now_s: float) -> Standing:
    """Of jobs on these sites, each with what it has on its menu. Cost: O(J), and a menu for each that has changed."""
    seen = _seen(sites)
    last = seen.kept
    seen.kept = {state: last.get(state) or _kept(state, menu_of(state.job, sites, state.shape)) for state in states}
    return _standing(states, list(seen.kept.values()), now_s)


def standing_of(states: Sequence[JobState], menus: Sequence[Menu], now_s: float) -> Standing:
    """Of jobs with these menus."""
    return _standing(states, [_kept(state, menu) for state, menu in zip(states, menus, strict=True)], now_s)


class _SeenSites:
    """What was read of the states that stood on these sites last."""

    __slots__ = ("kept",)

    def __init__(self, _: Sites) -> None:
        self.kept: dict[JobState, _Kept] = {}


_seen = lru_cache(maxsize=64)(_SeenSites)


def _kept(state: JobState, menu: Menu) -> _Kept:
    job, shape, runs = state.job, state.shape, state.phase is Phase.RUNNING
    speed = job.speed_on(state.runs_in)
    plain = isinstance(speed, ConstantRate) and type(speed).work is ConstantRate.work
    plain = plain and not menu.ends and math.isfinite(job.work)
    pace = speed.rate(state.gpu, state.spread, state.done) if plain and runs else 0.0
    own = NOTHING if shape is None else menu.column.get(shape, OFF_MENU)
    here = (state.runs_in if runs else None) or shape  # not what it was promised and may never get
    whole = NOTHING if shape is None or here is None or state.phase is Phase.BROKEN else menu.column.get(here, NOTHING)
    row = _ROW.pack(
        state.done,
        state.as_of_s,
        pace,
        job.work,
        menu.gpu_rate_E[0],
        job.weight,
        side_of(state),
        job.submit_s,
        math.inf if job.deadline_s is None else job.deadline_s,
        state.gpus,
        state.gpu_s,
        state.held_since_s,
        shape is None or state.phase is Phase.WAITING,
        shape is not None,
        job.hurry,
        job.min_on_demand > 0,
        bool(menu.shapes) and job.pauses is not None,
        menu.doubt_C is not None and job.deadline_s is None,
        job.purse_left_usd is not None,
        own if own >= 0 and state.phase in SETTLED else NOTHING,
        own,
        whole,
    )
    return _Kept(menu, (menu, 0), row, plain and (pace > 0.0 or not runs))


def _standing(states: Sequence[JobState], kept: Sequence[_Kept], now_s: float) -> Standing:
    menus, kinds = [each.menu for each in kept], [each.kind for each in kept]
    row_FJ = np.frombuffer(b"".join([each.row for each in kept])).reshape(len(kept), -1).T.copy()
    from_J, as_of_s_J, pace_J, work_J, gpu_rate_J, weight_J, side_J, submit_s_J, deadline_s_J, *had = row_FJ[:NUMBERS]
    waits_J, has_J, hurries_J, core_J, pauses_J, doubted_J, purse_J = row_FJ[NUMBERS : NUMBERS + FLAGS] != 0.0
    held_J, own_J, whole_J = row_FJ[NUMBERS + FLAGS :].astype(np.intp)
    gpus_J, gpu_s_J, held_since_s_J = had
    kept_s_J = np.where(gpus_J > 0.0, now_s - held_since_s_J, 0.0)
    ran_s_J = now_s - as_of_s_J
    done_J = np.where((pace_J > 0.0) & (ran_s_J > 0.0), np.minimum(from_J + pace_J * ran_s_J, work_J), from_J)
    goes_J = work_J - done_J
    left_J = np.maximum(0.0, goes_J)
    with np.errstate(divide="ignore", invalid="ignore"):
        hours_J = np.where(gpu_rate_J > 0.0, goes_J / gpu_rate_J, np.inf)
    for at in [at for at, each in enumerate(kept) if not each.plain]:
        state, menu = states[at], menus[at]
        done = state.done_at(now_s)
        goal, phase = menu.goal(done, state.job.work), menu.phase(done)
        ends, gpu_rate = goal if phase == len(menu.rate_EC) - 1 else min(menu.ends[phase], goal), menu.gpu_rate_E[phase]
        done_J[at], left_J[at], kinds[at] = done, max(0.0, ends - done), (menu, phase)
        hours_J[at] = (goal - done) / gpu_rate if gpu_rate else math.inf
    place: dict[tuple[Menu, int], int] = {}
    kind_J = np.array([place.setdefault(kind, len(place)) for kind in kinds], dtype=np.intp)
    return Standing(
        states=states,
        menus=menus,
        kinds=tuple(place),
        kind_J=kind_J,
        done_J=done_J,
        left_J=left_J,
        gpu_hours_J=hours_J / weight_J,
        weight_J=weight_J,
        side_J=side_J,
        submit_s_J=submit_s_J,
        deadline_s_J=deadline_s_J,
        attained_gpu_s_J=gpu_s_J + gpus_J * kept_s_J,
        kept_s_J=kept_s_J,
        pinned_J=has_J & ((held_since_s_J >= now_s) | (ran_s_J < 0.0)),
        waits_J=waits_J,
        hurries_J=hurries_J,
        core_J=core_J,
        pauses_J=pauses_J,
        doubted_J=doubted_J,
        purse_J=purse_J,
        held_J=held_J,
        own_J=own_J,
        whole_J=whole_J,
    )
