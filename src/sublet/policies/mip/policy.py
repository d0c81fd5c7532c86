"""The elastic allocator that maximises the progress of all jobs at once (Hu et al., arXiv 2109.03389)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sublet.domain.plan import JobState, Plan, Pool, Snapshot, arrival
from sublet.domain.quantity import at_least, positive, whole
from sublet.domain.shape import Shape, packed
from sublet.errors import Infeasible, InvalidValue
from sublet.planning.draft import Draft, next_tick_s
from sublet.planning.widths import Runnable, describe_stranded, runnable, speed_of_one
from sublet.solve.arrays import Floats, Ints
from sublet.solve.mip.moves import NOT_RUNNING, Coupled, best_moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Mip:
    """Most progress of all jobs together within a horizon, whichever came first; jobs grow, shrink and pause for it."""

    objective: Objective = "remaining"
    horizon_s: float = 1800.0  # how far `remaining` and `total` look ahead
    stickiness: float = 0.02  # keeping its width adds this share to a job's gain
    change_cost: float = 0.0  # in units of the objective, for every running job that changes
    most_changes: int | None = None  # running jobs that one decision may change
    may_pause: bool = True
    every_s: float = 600.0  # look again after this long even if nothing happens

    def __post_init__(self) -> None:
        self._aim(), self._rules()  # each refuses what cannot be

    def decide(self, snapshot: Snapshot) -> Plan:
        """The best choice for every job, at every event and every so often."""
        return mip_plan(snapshot, self._aim(), self._rules())

    def _aim(self) -> Aim:
        return Aim(objective=self.objective, horizon_s=self.horizon_s, stickiness=self.stickiness)

    def _rules(self) -> Rules:
        return Rules(
            change_cost=self.change_cost,
            most_changes=self.most_changes,
            may_pause=self.may_pause,
            every_s=self.every_s,
        )


# J jobs, C choices: to wait, then the widths of each pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules that tie jobs together beside the GPUs, and when to look again."""

    change_cost: float  # in units of the objective, for every running job that changes
    most_changes: int | None  # running jobs that one decision may change
    may_pause: bool
    every_s: float  # look again after this long even if nothing happens

    def __post_init__(self) -> None:
        at_least("change_cost", self.change_cost, 0.0)
        positive("every_s", self.every_s)
        if self.most_changes is not None:
            whole("most_changes", self.most_changes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """All jobs by all choices."""

    states: Sequence[JobState]
    columns: Sequence[tuple[str, int]]  # (pool, GPUs); the first is to wait
    gain_JC: Floats
    current_J: Ints


def mip_plan(snapshot: Snapshot, aim: Aim, rules: Rules) -> Plan:
    """The best choice for every job, running or waiting, as changes. O(jobs x numbers of GPUs), and the solver."""
    draft = Draft(snapshot)
    states = [*sorted(snapshot.active.values(), key=lambda state: state.seq), *snapshot.waiting.by(arrival)]
    if not states:
        return draft.plan()
    table, warnings = _table(draft, states, aim)
    chosen, why = _chosen(draft, table, rules)
    runs_J = [bool((gain_C[1:] > -np.inf).any()) for gain_C in table.gain_JC]
    moves = [(state, *table.columns[column], runs) for state, column, runs in zip(states, chosen, runs_J, strict=True)]
    for state, pool, gpus, runs in sorted(moves, key=lambda move: move[2] > move[0].gpus):  # those that give come first
        if gpus:
            draft.give(state, pool, gpus, f"{why}, it gains most here")
        else:
            draft.take(
                state, f"{why}, others gain more from its GPUs" if runs else "no GPUs that it runs on can be had"
            )
    return draft.plan(ask_again_s=next_tick_s(snapshot.now_s, rules.every_s), warnings=warnings)


def _table(draft: Draft, states: Sequence[JobState], aim: Aim) -> tuple[_Table, dict[str, str]]:
    """Gains of all jobs on all numbers of GPUs, and warnings for those that cannot run on any."""
    snapshot = draft.snapshot
    rows: list[list[tuple[Runnable, float]]] = []
    warnings: dict[str, str] = {}
    for rank, state in enumerate(states):
        done = state.done_at(snapshot.now_s)
        row: list[tuple[Runnable, float]] = []
        for name, pool in snapshot.pools.items():
            found = runnable(state, pool, draft.most[name], done)
            row += zip(found, gains(state, pool, found, done, aim), strict=True)
        if not row and max(draft.most.values()) >= state.job.min_gpus:
            warnings[state.job.id] = describe_stranded(state, list(snapshot.pools))
        fastest = max((choice.rate for choice, _ in row), default=1.0)
        early = FASTER * (1.0 - 0.5 * rank / len(states))
        rows.append([(choice, gain + early * choice.rate / fastest) for choice, gain in row])
    wait = (next(iter(snapshot.pools)), 0)
    columns = [wait, *sorted({(choice.pool, choice.gpus) for row in rows for choice, _ in row})]
    at = {column: number for number, column in enumerate(columns)}
    gain_JC = np.full((len(states), len(columns)), -np.inf)
    for job, row in enumerate(rows):
        for choice, gain in row:
            gain_JC[job, at[choice.pool, choice.gpus]] = gain
    gain_JC[:, 0] = _worth_of_waiting(gain_JC[:, 1:], states, aim)
    current_J = np.array([_current(state, at) for state in states], dtype=np.intp)
    return _Table(states=states, columns=columns, gain_JC=gain_JC, current_J=current_J), warnings


def _worth_of_waiting(gain_JC: Floats, states: Sequence[JobState], aim: Aim) -> Floats:
    """Nothing; where times are losses, more is lost than by all jobs at their slowest."""
    weight_J = np.array([state.job.weight for state in states])
    if aim.objective != "time-left":
        return np.zeros(len(states))
    slowest_J = gain_JC.min(axis=1, where=gain_JC > -np.inf, initial=0.0)
    return weight_J * (2.0 * float(slowest_J.sum()) / float(weight_J.min()) - 1.0)


def _current(state: JobState, at: dict[tuple[str, int], int]) -> int:
    shape = state.shape
    return NOT_RUNNING if shape is None else at.get((shape.pool, shape.gpus), NOT_RUNNING)


def _chosen(draft: Draft, table: _Table, rules: Rules) -> tuple[list[int], str]:
    """A column for each job, and why."""
    pools = list(draft.snapshot.pools)
    needed = sum(state.job.max_gpus for state in table.states)
    capacity = [max(0, int(min(draft.most[name], needed))) for name in pools]
    sizes = [gpus for _, gpus in table.columns]
    where = [pools.index(name) for name, _ in table.columns]

    def asked(most_changes: int | None, *, may_pause: bool) -> Coupled:
        return Coupled.from_tables(
            table.gain_JC,
            capacity,
            sizes=sizes,
            pools=where,
            current=table.current_J,
            change_cost=rules.change_cost,
            most_changes=most_changes,
            may_pause=may_pause,
        )

    try:
        found = best_moves(asked(rules.most_changes, may_pause=rules.may_pause))
        return found.column_J.tolist(), "of all ways to share the GPUs"
    except Infeasible:
        found = best_moves(asked(None, may_pause=True))
        return found.column_J.tolist(), "supply fell, so the limits on changes and pauses do not hold"


Objective = Literal["remaining", "throughput", "total", "time-left"]
FASTER = 1e-6  # of a gain, for the fastest width: where many gain alike, the faster one, and the one that came first


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The objective: its kind, how far it looks ahead, and what keeping the present GPUs adds to a gain."""

    objective: Objective
    horizon_s: float
    stickiness: float

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise InvalidValue("objective", self.objective, "one of " + ", ".join(get_args(Objective)))
        positive("horizon_s", self.horizon_s)
        at_least("stickiness", self.stickiness, 0.0)


def gains(state: JobState, pool: Pool, choices: Sequence[Runnable], done: float, aim: Aim) -> list[float]:
    """The gain of each number of GPUs of one pool; -inf where the job would never end."""
    job, left = state.job, state.job.work - done
    one = speed_of_one(state, pool, done, choices) if aim.objective == "throughput" else 1.0
    worth = []
    for choice in choices:
        stays = _stays(state.shape, choice)
        pause_s = 0.0 if stays else job.restart_s
        if aim.objective == "throughput":
            gain = choice.rate / one
        elif aim.objective == "time-left":
            gain = -(_seconds(state, pool, choice, done) + pause_s)
        elif left <= 0.0:
            gain = 1.0 if aim.objective == "remaining" else 0.0
        elif aim.objective == "total":
            gain = min(left, _progress(state, pool, choice, done, aim.horizon_s)) / job.work
        else:
            gain = min(1.0, _progress(state, pool, choice, done, aim.horizon_s - pause_s) / left)
        worth.append(job.weight * (gain + aim.stickiness * abs(gain) if stays and gain > -math.inf else gain))
    return worth


def _progress(state: JobState, pool: Pool, choice: Runnable, done: float, seconds: float) -> float:
    """Work done within so much time; of a speed with one phase that is plain, and asked for often."""
    speed = state.job.speed
    if not speed.ends:
        return choice.rate * max(0.0, seconds)
    return speed.work(pool.gpu, packed(choice.gpus, pool.gpus_per_node), done, max(0.0, seconds)) - done


def _seconds(state: JobState, pool: Pool, choice: Runnable, done: float) -> float:
    job = state.job
    if not job.speed.ends:
        return max(0.0, job.work - done) / choice.rate
    return job.speed.seconds(pool.gpu, packed(choice.gpus, pool.gpus_per_node), done, job.work)


def _stays(shape: Shape | None, choice: Runnable) -> bool:
    return shape is not None and (shape.pool, shape.gpus) == (choice.pool, choice.gpus)
