"""Elastic scaling with batch sizes that grow with the GPUs (Saxena et al., arXiv 2006.13878)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.plan import JobState, Phase, Plan, Pool, Snapshot, arrival
from sublet.domain.quantity import at_least, positive
from sublet.domain.shape import packed
from sublet.planning.draft import Draft, next_tick_s
from sublet.planning.widths import Runnable, describe_stranded, runnable, runs_at_all, speed_of_one
from sublet.policies.elastic_batch.scaling import BatchScaling
from sublet.solve.knapsack.split import best_split


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticBatch:
    """Everyone that fits runs; GPUs and batches go where jobs scale best: the greatest sum of scaling factors."""

    every_s: float = 600.0  # decide at multiples of this, and at once only if nothing runs or supply fell
    stickiness: float = (
        0.0  # keeping its width adds this share to a job's scaling factor; restarts are not weighed else
    )
    drop: bool = False  # a job that does not fit when it comes is dropped, instead of waiting

    def __post_init__(self) -> None:
        positive("every_s", self.every_s)
        at_least("stickiness", self.stickiness, 0.0)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Admit first come first served, then split all GPUs among the admitted: they grow, shrink and re-batch."""
        return batch_plan(snapshot, Mode(every_s=self.every_s, drop=self.drop, stickiness=self.stickiness))


# J jobs, C widths
MOVING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESIZING, Phase.STOPPING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How often to decide, what becomes of jobs that do not fit when they come, and what staying as it is adds."""

    every_s: float
    drop: bool
    stickiness: float


@dataclass(frozen=True, slots=True)
class _Admitted:
    state: JobState
    widths: Sequence[Runnable]


def due(draft: Draft, every_s: float) -> bool:
    """Whether to decide now: at multiples of the period, and at once if nothing runs or what was promised is gone."""
    snapshot = draft.snapshot
    phases = {state.phase for state in snapshot.active.values()}
    if min(draft.room.values()) < 0 or Phase.BROKEN in phases or not phases & MOVING:
        return True
    if snapshot.woken:  # the time that it asked for has come, if a moment late: a live controller has no exact times
        return True
    return next_tick_s(snapshot.now_s, every_s) - snapshot.now_s >= every_s * (1.0 - 1e-9)


def batch_plan(snapshot: Snapshot, mode: Mode) -> Plan:
    """Admit, split, and give a batch to each job. O(jobs x numbers of GPUs), and the split."""
    draft = Draft(snapshot)
    if not snapshot.active and not len(snapshot.waiting):
        return draft.plan()
    again_s = next_tick_s(snapshot.now_s, mode.every_s)
    if not due(draft, mode.every_s):
        return draft.plan(ask_again_s=again_s)
    warnings: dict[str, str] = {}
    for name, admitted in _admitted(draft, mode, warnings).items():
        pool = snapshot.pools[name]
        for each, choice in zip(admitted, _split(admitted, draft, pool, mode.stickiness), strict=True):
            draft.give(each.state, name, choice.gpus, batch=_batch(each.state, pool, choice.gpus))
    return draft.plan(ask_again_s=again_s, warnings=warnings)


def _admitted(draft: Draft, mode: Mode, warnings: dict[str, str]) -> Mapping[str, list[_Admitted]]:
    """Jobs that run, by pool: those with GPUs stay, in order of arrival; newcomers go where there is most."""
    snapshot, now_s = draft.snapshot, draft.snapshot.now_s
    groups: dict[str, list[_Admitted]] = {name: [] for name in snapshot.pools}
    free = dict(draft.most)
    for state in sorted(snapshot.active.values(), key=lambda state: state.seq):
        names = [] if state.shape is None else [state.shape.pool]
        if state.phase is Phase.WAITING:  # what was promised to it has never come, and may be had elsewhere
            names += sorted(groups.keys() - names)
        if not _join(state, names, groups, free, draft, state.done_at(now_s)):
            draft.take(state, "supply fell and it came last")
    for state in _newcomers(snapshot, mode, warnings):
        if max(free.values()) < 1:
            if not mode.drop:
                break
            warnings[state.job.id] = "dropped: it did not fit when it came"
            continue
        names = sorted(groups, key=lambda name: -draft.most[name] / (len(groups[name]) + 1))
        if _join(state, names, groups, free, draft, state.done):
            continue
        if not any(runs_at_all(state, pool, draft.most[name], state.done) for name, pool in snapshot.pools.items()):
            if max(draft.most.values()) >= state.job.min_gpus:
                warnings[state.job.id] = _unfit(state, snapshot)
        elif mode.drop:
            warnings[state.job.id] = "dropped: it did not fit when it came"
    return groups


def _join(
    state: JobState,
    names: Sequence[str],
    groups: Mapping[str, list[_Admitted]],
    free: dict[str, float],
    draft: Draft,
    done: float,
) -> bool:
    """Admit the job to the first of these pools that has room for the fewest GPUs on which it runs."""
    for name in names:
        if free[name] >= state.job.min_gpus:
            widths = runnable(state, draft.snapshot.pools[name], draft.most[name], done)
            if widths and widths[0].gpus <= free[name]:
                groups[name].append(_Admitted(state, widths))
                free[name] -= widths[0].gpus
                return True
    return False


def _newcomers(snapshot: Snapshot, mode: Mode, warnings: dict[str, str]) -> Iterator[JobState]:
    """Jobs that ask to be admitted: in drop mode those that came since the last decision, or have run before."""
    since_s = next_tick_s(snapshot.now_s, mode.every_s) - mode.every_s
    if since_s >= snapshot.now_s * (1.0 - 1e-9):
        since_s -= mode.every_s  # it is time for the regular decision
    for state in snapshot.waiting.by(arrival):
        if mode.drop and state.job.submit_s <= since_s and not state.gpu_s:
            warnings.setdefault(state.job.id, "dropped: it did not fit when it came")
        else:
            yield state


def _split(admitted: Sequence[_Admitted], draft: Draft, pool: Pool, stickiness: float) -> list[Runnable]:
    """GPUs for each, so that the sum of scaling factors is greatest."""
    if not admitted:
        return []
    columns = sorted({choice.gpus for each in admitted for choice in each.widths})
    at = {gpus: number for number, gpus in enumerate(columns)}
    gain_JC = np.full((len(admitted), len(columns)), -np.inf)
    for job, each in enumerate(admitted):
        done = each.state.done_at(draft.snapshot.now_s)
        one = _one(each, pool, done)
        shape = each.state.shape
        for choice in each.widths:
            stays = shape is not None and shape.gpus == choice.gpus
            gain_JC[job, at[choice.gpus]] = choice.rate / one * (1.0 + stickiness * stays)
    needed = sum(each.widths[-1].gpus for each in admitted)
    widths = best_split(gain_JC, int(min(draft.most[pool.name], needed)), sizes=columns).width_J.tolist()
    return [next(c for c in each.widths if c.gpus == gpus) for each, gpus in zip(admitted, widths, strict=True)]


def _one(each: _Admitted, pool: Pool, done: float) -> float:
    """The speed that counts as 1: of one full GPU; of a job that knows no batches, of one GPU."""
    speed = each.state.job.speed
    if isinstance(speed, BatchScaling):
        factor = speed.factor(pool.gpu, packed(each.widths[0].gpus, pool.gpus_per_node))
        return each.widths[0].rate / factor
    return speed_of_one(each.state, pool, done, each.widths)


def _batch(state: JobState, pool: Pool, gpus: int) -> int | None:
    speed = state.job.speed
    return speed.batch(pool.gpu, packed(gpus, pool.gpus_per_node)) if isinstance(speed, BatchScaling) else None


def _unfit(state: JobState, snapshot: Snapshot) -> str:
    speed = state.job.speed
    if isinstance(speed, BatchScaling):
        low, high = speed.batches[0], speed.batches[-1]
        return f"no batch from {low} to {high} fits on {state.job.min_gpus} to {state.job.max_gpus} GPUs; it waits"
    return describe_stranded(state, list(snapshot.pools))
