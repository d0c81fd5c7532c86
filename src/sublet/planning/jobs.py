"""Where jobs stand now, side by side: what a decision reads of each state, as arrays over jobs.

States are values: an event that touches a job replaces its state. So the numbers of those that were there at the last
decision are taken over, in the order in which they stand now: of a thousand jobs of which one has changed, one is read.
How far a job has come follows from that and the time; only jobs with phases, or without an end, are asked one by one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from sublet.domain.job import Speed
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import packed
from sublet.perf.speedup import ConstantRate
from sublet.planning.menu import Menu, menus_of
from sublet.planning.terms import Sites
from sublet.solve.arrays import Bools, Floats, Ints

SETTLED = frozenset({Phase.RUNNING, Phase.STARTING, Phase.RESIZING})  # on its shape, or on its way there
NOTHING = -1  # column of a job that is on no shape, nor on its way to one
OFF_MENU = -2  # of one that has a shape that is not on its menu
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, modulo 1, fill the unit interval evenly

# J jobs, N of them new, U menus of these, F numbers of a state: so many that are counted or measured, then flags, then
# columns of its menu
NUMBERS, FLAGS = 12, 8
_ROW = struct.Struct("23d")
_NEW = -1  # where a state stood that was not there


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jobs:
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

    def take(self, rows: Sequence[int]) -> Jobs:
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
        return Jobs(**facts)


def side_of(state: JobState) -> float:
    """Between 0 and 1: its own for good, and those of many jobs are spread evenly."""
    return state.seq * GOLDEN % 1.0


def read_jobs(states: Sequence[JobState], sites: Sites, now_s: float) -> Jobs:
    """Of jobs on these sites, each with what it has on its menu. Cost: O(J), and a menu for each state that is new."""
    if _latest[0].sites is not sites:
        _latest[0] = _known(sites)
    seen = _latest[0]
    seen.last = _read_on(seen.last, states, sites)
    return _jobs_now(states, seen.last, now_s)


def jobs_with_menus(states: Sequence[JobState], menus: Sequence[Menu], now_s: float) -> Jobs:
    """Of jobs with these menus."""
    return _jobs_now(states, _read(states, list(menus)), now_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Readings:
    """Of many states, a column each."""

    states: Sequence[JobState]
    menus: list[Menu]
    kinds: Mapping[Menu, int]  # each of these once, numbered in order
    kind_J: Ints  # which of them
    number_FJ: Floats


_NOTHING_READ = _Readings(
    states=[], menus=[], kinds={}, kind_J=np.zeros(0, dtype=np.intp), number_FJ=np.zeros((_ROW.size // 8, 0))
)


class _SeenSites:
    """The last reading of the states on these sites."""

    __slots__ = ("last", "sites")

    def __init__(self, sites: Sites) -> None:
        self.sites, self.last = sites, _NOTHING_READ


_known = lru_cache(maxsize=64)(_SeenSites)
_latest = [_SeenSites(())]  # of the sites that were asked for last: mostly the very object of the decision before


def _read(states: Sequence[JobState], menus: list[Menu]) -> _Readings:
    """Of jobs with these menus."""
    number: dict[Menu, int] = {}
    rows = b"".join([_row(state, menu) for state, menu in zip(states, menus, strict=True)])
    return _Readings(
        states=states,
        menus=menus,
        kind_J=np.array([number.setdefault(menu, len(number)) for menu in menus], dtype=np.intp),
        kinds=number,
        number_FJ=_fixed(np.frombuffer(rows).reshape(len(states), -1).T.copy()),
    )


def _read_on(last: _Readings, states: Sequence[JobState], sites: Sites) -> _Readings:
    """Of jobs on these sites, each with what it has on its menu; of those that were there last as they were read then.

    Cost: O(J), and a menu for each that is new.
    """
    at_J = _places(last.states, states)
    (new_N,) = (at_J == _NEW).nonzero()
    known = last
    if len(new_N):
        new = [states[at] for at in new_N.tolist()]
        known = _joined(last, _read(new, menus_of([(state.job, state.shape) for state in new], sites)))
        at_J[new_N] = np.arange(len(last.menus), len(known.menus))
    kinds, kind_J = known.kinds, known.kind_J[at_J]
    used_U = np.bincount(kind_J, minlength=len(kinds)) > 0
    if not used_U.all():
        used = [menu for menu, is_used in zip(kinds, used_U.tolist(), strict=True) if is_used]
        kinds, kind_J = dict(zip(used, range(len(used)), strict=True)), used_U.cumsum()[kind_J] - 1
    return _Readings(
        states=states,
        menus=list(map(known.menus.__getitem__, at_J.tolist())),
        kinds=kinds,
        kind_J=kind_J,
        number_FJ=_fixed(known.number_FJ[:, at_J]),
    )


def _places(last: Sequence[JobState], states: Sequence[JobState]) -> Ints:
    """(J,): where each state stood among the last, `_NEW` if it did not. Cost: O(J), little where most are the same."""
    before = _as_before(last, states)
    after = _as_before(last[before:][::-1], states[before:][::-1])
    to_last, to_now = len(last) - after, len(states) - after
    place = dict(zip(last[before:to_last], range(before, to_last), strict=True))
    changed = [place.get(state, _NEW) for state in states[before:to_now]]
    return np.concatenate((np.arange(before), np.array(changed, dtype=np.intp), np.arange(to_last, len(last))))


def _as_before(last: Sequence[JobState], states: Sequence[JobState]) -> int:
    """How many at the front are the same, by halving: lists are compared much faster than one by one."""
    same, most = 0, min(len(last), len(states))
    while same < most:
        middle = (same + most + 1) // 2
        if last[same:middle] == states[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


def _joined(last: _Readings, new: _Readings) -> _Readings:
    """Those behind these."""
    number = dict(last.kinds)
    kind_U = np.array([number.setdefault(menu, len(number)) for menu in new.kinds], dtype=np.intp)
    return _Readings(
        states=[*last.states, *new.states],
        menus=[*last.menus, *new.menus],
        kinds=number,
        kind_J=np.concatenate((last.kind_J, kind_U[new.kind_J])),
        number_FJ=np.concatenate((last.number_FJ, new.number_FJ), axis=1),
    )


def _fixed(number_FJ: Floats) -> Floats:
    """Make read-only: parts of it are handed out, and the next reading takes it over."""
    number_FJ.setflags(write=False)
    return number_FJ


def _row(state: JobState, menu: Menu) -> bytes:
    job, shape, runs = state.job, state.shape, state.phase is Phase.RUNNING
    speed = job.speed_on(state.runs_in)
    plain = isinstance(speed, ConstantRate) and type(speed).work is ConstantRate.work
    plain = plain and not menu.ends and math.isfinite(job.work)
    pace = _pace(state, speed, menu) if plain and runs else 0.0
    own = NOTHING if shape is None else menu.column.get(shape, OFF_MENU)
    here = (state.runs_in if runs else None) or shape  # not what it was promised and may never get
    whole = NOTHING if shape is None or here is None or state.phase is Phase.BROKEN else menu.column.get(here, NOTHING)
    return _ROW.pack(
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
        plain and (pace > 0.0 or not runs),  # how far it has come follows from these
        own if own >= 0 and state.phase in SETTLED else NOTHING,
        own,
        whole,
    )


def _pace(state: JobState, speed: Speed, menu: Menu) -> float:
    """Work per second. The menu has it already, but where a job is on nodes that are not full."""
    shape = state.runs_in
    at = None if shape is None else menu.column.get(shape)
    if shape is not None and at is not None:
        gpu, per_node = menu.nodes_C[at]
        if state.gpu == gpu and state.spread == packed(shape.gpus, per_node):
            return menu.pace_C[at]
    return speed.rate(state.gpu, state.spread, state.done)


def _jobs_now(states: Sequence[JobState], known: _Readings, now_s: float) -> Jobs:
    number_FJ, menus = known.number_FJ, known.menus
    from_J, as_of_s_J, pace_J, work_J, gpu_rate_J, weight_J, side_J, submit_s_J, deadline_s_J, *had = number_FJ[
        :NUMBERS
    ]
    flag_FJ = number_FJ[NUMBERS : NUMBERS + FLAGS] != 0.0
    waits_J, has_J, hurries_J, core_J, pauses_J, doubted_J, purse_J, plain_J = flag_FJ
    held_J, own_J, whole_J = number_FJ[NUMBERS + FLAGS :].astype(np.intp)
    gpus_J, gpu_s_J, held_since_s_J = had
    kept_s_J = np.where(gpus_J > 0.0, now_s - held_since_s_J, 0.0)
    ran_s_J = now_s - as_of_s_J
    done_J = np.where((pace_J > 0.0) & (ran_s_J > 0.0), np.minimum(from_J + pace_J * ran_s_J, work_J), from_J)
    goes_J = work_J - done_J
    left_J = np.maximum(0.0, goes_J)
    with np.errstate(divide="ignore", invalid="ignore"):
        hours_J = np.where(gpu_rate_J > 0.0, goes_J / gpu_rate_J, np.inf)
    phases: dict[int, int] = {}
    for at in (~plain_J).nonzero()[0].tolist():
        state, menu = states[at], menus[at]
        done = state.done_at(now_s)
        goal, phase = menu.goal(done, state.job.work), menu.phase(done)
        ends, gpu_rate = goal if phase == len(menu.rate_EC) - 1 else min(menu.ends[phase], goal), menu.gpu_rate_E[phase]
        done_J[at], left_J[at], phases[at] = done, max(0.0, ends - done), phase
        hours_J[at] = (goal - done) / gpu_rate if gpu_rate else math.inf
    kinds, kind_J = tuple([(menu, 0) for menu in known.kinds]), known.kind_J
    if any(phases.values()):
        number: dict[tuple[Menu, int], int] = {}
        at_J = [number.setdefault((menu, phases.get(at, 0)), len(number)) for at, menu in enumerate(menus)]
        kinds, kind_J = tuple(number), np.array(at_J, dtype=np.intp)
    return Jobs(
        states=states,
        menus=menus,
        kinds=kinds,
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
