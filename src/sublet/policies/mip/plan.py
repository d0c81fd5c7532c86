"""One decision of the elastic allocator: every job in one table, the best choices of all of them, and the changes.

Each job takes one column: it waits, or has so many workers in a pool. `best_split` finds the best choices where only
the GPUs tie jobs together, `best_moves` where changes are limited or no job may be paused. When supply falls so far
that those rules cannot all be kept, they are given up for that decision, and the reasons say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.plan import JobState, Plan, Snapshot
from sublet.domain.quantity import at_least, positive, whole
from sublet.errors import Infeasible
from sublet.planning.draft import Draft
from sublet.planning.ranking import arrival
from sublet.planning.runnable import Runnable, describe_stranded, runnable
from sublet.planning.ticks import next_tick_s
from sublet.policies.mip.tables import FASTER, Aim, gains
from sublet.solve.arrays import Floats, Ints
from sublet.solve.mip.moves import NOT_RUNNING, Coupled, best_moves

__all__ = ["Rules", "mip_plan"]

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
    """The best choice for every job, running or waiting, as changes to what is. O(jobs x counts), and the solver."""
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
    """Gains of all jobs at all worker counts, and warnings for those that cannot run at any."""
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
