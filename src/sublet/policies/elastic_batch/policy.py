"""Elastic scaling with batch sizes that grow with the GPUs (Saxena et al., arXiv 2006.13878).

One decision of the batch-elastic autoscaler: admit first come first served, then split all GPUs among the admitted.
Everyone admitted has at least the fewest GPUs on which it runs, so a set of jobs fits exactly if these add up to no
more than there are: asking this of each newcomer is the feasibility test of the dynamic program, without its table. Who
does not fit waits, or is dropped; smaller jobs behind it may pass. The split maximises the sum of scaling factors.

How a job scales when its batch may grow with its GPUs: the job scalability analysis of Saxena et al. (2020).

    T(b, k) = b / (compute(ceil(b / k)) + exchange(k))     samples per second at global batch b on k GPUs
    best(k) = the batch of the range, at most `max_local` samples a GPU, at which T is greatest
    S(k)    = T(best(k), k) / T(max_local, 1)              the scaling factor: 1 is what one full GPU does

Only batches that the owner declared safe for accuracy are used, and nothing is accumulated: a batch that does not fit
takes more GPUs. A batch fixed at submission is a range of one.

>>> from sublet.perf.steptime import RingStep
>>> step = RingStep(alpha_s=3e-3, beta_s=2e-4, gradient_bytes=244e6, intra_bytes_per_s=1e10, inter_bytes_per_s=1e10)
>>> speed = BatchScaling(step={"T4": step}, batches=doubling(32, 2048), max_local={"T4": 256})
>>> [(k, speed.batch("T4", (k,)), round(speed.factor("T4", (k,)), 2)) for k in (1, 2, 3, 4)]
[(1, 256, 1.0), (2, 512, 1.38), (3, 512, 1.55), (4, 1024, 2.39)]
>>> speed.fixed(2048).least_gpus("T4", 10)
8
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from sublet.domain.plan import JobState, Phase, Plan, Pool, Snapshot
from sublet.domain.quantity import at_least, positive, whole
from sublet.domain.shape import Spread, packed
from sublet.errors import Infeasible, InvalidValue
from sublet.perf.speedup import ConstantRate
from sublet.perf.steptime import StepTime
from sublet.planning.draft import Draft
from sublet.planning.ranking import arrival
from sublet.planning.runnable import Runnable, describe_stranded, runnable, runs_at_all, speed_of_one
from sublet.planning.ticks import next_tick_s
from sublet.solve.knapsack.split import best_split

__all__ = ["BatchScaling", "ElasticBatch", "doubling", "due"]

# J jobs, C widths
MOVING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESIZING, Phase.STOPPING})


def doubling(smallest: int, largest: int) -> tuple[int, ...]:
    """The smallest batch, twice that and so on, up to the largest."""
    whole("smallest", smallest, 1)
    whole("largest", largest, 1)
    if smallest > largest:
        raise InvalidValue("smallest", smallest, f"at most the largest batch {largest}")
    return tuple(smallest * 2**power for power in range((largest // smallest).bit_length()))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchScaling(ConstantRate):
    """A speed in samples per second, at the best batch for the number of GPUs."""

    step: Mapping[str, StepTime] = field(hash=False)  # by GPU kind
    batches: tuple[int, ...]  # global, increasing
    max_local: Mapping[str, int] = field(hash=False)  # samples that the memory of one GPU holds, by kind
    _found: dict[tuple[str, Spread], tuple[float, int | None]] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.batches or any(after <= before for before, after in pairwise(self.batches)):
            raise InvalidValue("batches", self.batches, "at least one, and increasing")
        for batch in self.batches:
            whole("batches", batch, 1)
        if not self.step:
            raise InvalidValue("step", dict(self.step), "a step-time model for at least one GPU kind")
        for kind in self.step:
            whole(f"max_local[{kind}]", self.max_local.get(kind, 0), 1)

    def __repr__(self) -> str:
        return f"BatchScaling(kinds={sorted(self.step)}, batches={self.batches[0]} to {self.batches[-1]})"

    def fixed(self, batch: int) -> BatchScaling:
        """The same job with its batch fixed at submission."""
        if batch not in self.batches:
            raise InvalidValue("batch", batch, f"one of {', '.join(map(str, self.batches))}")
        return replace(self, batches=(batch,))

    def rate(self, gpu: str, spread: Spread, done: float) -> float:  # noqa: ARG002 - one phase: `done` is of no account
        """Samples per second at the best batch; 0 where no batch of the range fits."""
        return self._best(gpu, spread)[0]

    def batch(self, gpu: str, spread: Spread) -> int | None:
        """The best batch, the smallest among equals; None where none fits."""
        return self._best(gpu, spread)[1]

    def rate_at(self, batch: int, gpu: str, spread: Spread) -> float:
        """Samples per second at one batch, of the range or not; 0 if it does not fit or was never measured."""
        gpus = sum(spread)
        if gpu not in self.step or not 0 < gpus <= batch:
            return 0.0
        local = math.ceil(batch / gpus)
        if local > self.max_local[gpu]:
            return 0.0
        seconds = float(self.step[gpu].times(spread, np.array([float(local)]))[0][0])
        if not seconds > 0.0:  # NaN as well
            raise InvalidValue(f"step time on {gpu} at {local} samples a GPU", seconds, "above 0; infinite: cannot run")
        return batch / seconds

    def factor(self, gpu: str, spread: Spread) -> float:
        """The scaling factor: how many full GPUs' worth of samples it trains on."""
        rate = self.rate(gpu, spread, 0.0)
        if not rate:
            return 0.0
        one = self.rate_at(self.max_local[gpu], gpu, (1,))
        return rate / one if one else float(sum(spread))

    def least_gpus(self, gpu: str, most: int, gpus_per_node: int = 0) -> int:
        """The fewest GPUs, packed, on which some batch of the range fits; `Infeasible` if that is above `most`."""
        for gpus in range(1, most + 1):
            if self.rate(gpu, packed(gpus, gpus_per_node or gpus), 0.0) > 0.0:
                return gpus
        raise Infeasible(
            f"no batch from {self.batches[0]} to {self.batches[-1]} fits on {most} x {gpu}",
            binding="samples that they hold together",
            needed=self.batches[0],
            available=most * self.max_local.get(gpu, 0),
            hint="allow smaller batches or more GPUs",
        )

    def _best(self, gpu: str, spread: Spread) -> tuple[float, int | None]:
        found = self._found.get((gpu, spread))
        if found is None:
            rates = [(self.rate_at(batch, gpu, spread), batch) for batch in self.batches]
            rate, batch = max(rates, key=lambda each: each[0])  # the first, so the smallest, among equals
            found = self._found[gpu, spread] = (rate, batch if rate > 0.0 else None)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mode:
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


def _batch_plan(snapshot: Snapshot, mode: _Mode) -> Plan:
    """Admit, split, and say which batch goes with each width. O(jobs x widths), and the split."""
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


def _admitted(draft: Draft, mode: _Mode, warnings: dict[str, str]) -> Mapping[str, list[_Admitted]]:
    """Who runs, by pool: those with GPUs where they are, in order of arrival, then newcomers where there is most."""
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


def _newcomers(snapshot: Snapshot, mode: _Mode, warnings: dict[str, str]) -> Iterator[JobState]:
    """Who asks to be admitted: in drop mode those that came since the last decision, or have run before."""
    since_s = next_tick_s(snapshot.now_s, mode.every_s) - mode.every_s
    if since_s >= snapshot.now_s * (1.0 - 1e-9):
        since_s -= mode.every_s  # it is time for the regular decision
    for state in snapshot.waiting.by(arrival):
        if mode.drop and state.job.submit_s <= since_s and not state.gpu_s:
            warnings.setdefault(state.job.id, "dropped: it did not fit when it came")
        else:
            yield state


def _split(admitted: Sequence[_Admitted], draft: Draft, pool: Pool, stickiness: float) -> list[Runnable]:
    """A width for each, so that the sum of scaling factors is greatest."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticBatch:
    """Everyone that fits runs; GPUs and batches go where jobs scale best: the greatest sum of scaling factors."""

    every_s: float = 600.0  # decide at multiples of this, and at once only if nothing runs or supply fell
    stickiness: float = (
        0.0  # keeping its width adds this share to a job's scaling factor; restarts are not weighed else
    )
    drop: bool = False  # who does not fit when it comes is dropped, instead of waiting

    def __post_init__(self) -> None:
        positive("every_s", self.every_s)
        at_least("stickiness", self.stickiness, 0.0)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Admit first come first served, then split all GPUs among the admitted, who may grow, shrink and re-batch."""
        return _batch_plan(snapshot, _Mode(every_s=self.every_s, drop=self.drop, stickiness=self.stickiness))
