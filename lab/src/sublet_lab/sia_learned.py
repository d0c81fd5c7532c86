"""A job's knowledge of its own speed without measurements beforehand: it learns where it runs, and guesses the rest.

This is how jobs of Sia (SOSP 2023) begin. One that never ran knows nothing, and takes a GPU of any kind for as good as
another. Then it fits Pollux's model of the step time to what it has seen on each kind. If it has seen nothing the model
is hopeful: an exchange costs nothing before two GPUs were tried, and a network is little slower than the inside of a
node. A kind that it never ran on is reckoned from one that it did, by what a single GPU of each can do.

The measured tables are the truth, of which each job sees only rows that it ran. It is for comparison with published
runs: every other policy, and Sia unless told otherwise, plans with the job's own speed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Spread, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.goodput import Goodput
from sublet.perf.measured import Source, goodput_model
from sublet.perf.phased import Phased
from sublet.perf.steptime import PolluxStep
from sublet.solve.arrays import Floats

Rows = frozenset[tuple[Spread, int]]  # where it ran, and with which local batch
NETWORK_PRIOR = 1.1  # an unseen network is this much slower than the inside of a node


class Learned:
    """The notebook of all jobs of one run: how fast each would expect to be, from what it has seen so far.

    `most_batch` is the largest global batch that is reckoned with, by job: for Sia's planner that is the one its user
    asked for, though the job itself may go further. `gpus_per_node` is by kind; an unseen kind is reckoned from the
    first of these that was seen. Calls must come in order of time: each looks where the job is now. `source` has the
    measured tables.
    """

    def __init__(
        self, most_batch: Mapping[str, int], gpus_per_node: Mapping[str, int], *, source: Source = "sia"
    ) -> None:
        self._most_batch, self._gpus_per_node, self._source = most_batch, gpus_per_node, source
        self._seen: dict[str, dict[str, Rows]] = {}  # job -> kind -> rows
        self._looked_s: dict[str, float] = {}

    def __call__(self, state: JobState, pool: Pool, gpus: int, now_s: float) -> float:
        """Work per second that the job expects of so many GPUs of this pool."""
        job, seen = state.job, self._seen_by(state, now_s)
        if not seen:
            return 1.0 if gpus == job.min_gpus else 0.0
        known = pool.gpu if pool.gpu in seen else next(kind for kind in self._gpus_per_node if kind in seen)
        speed = _expect_goodput(job.model, self._source, known, self._most_batch[job.id], seen[known])
        rate = speed.rate(known, packed(gpus, self._gpus_per_node[known]), state.done_at(now_s))
        return rate * _single(job.model, self._source, pool.gpu) / _single(job.model, self._source, known)

    def speed(self, state: JobState, now_s: float) -> Phased:
        """The same as a speed, for policies that ask for one.

        A job that never ran is taken for an hour of work on one GPU.
        """
        job, seen = state.job, self._seen_by(state, now_s)
        if not seen:
            return _unknown(job.model, self._source, job.min_gpus)
        kinds = tuple((kind, gpus, seen[kind]) for kind, gpus in self._gpus_per_node.items() if kind in seen)
        return _expect_speed(job.model, self._source, self._most_batch[job.id], kinds)

    def _seen_by(self, state: JobState, now_s: float) -> Mapping[str, Rows]:
        job_id = state.job.id
        if self._looked_s.get(job_id) != now_s:
            self._looked_s[job_id] = now_s
            self._look(state, now_s)
        return self._seen.get(job_id, {})

    def _look(self, state: JobState, now_s: float) -> None:
        """Note what it has trained with since it came here."""
        if state.phase is not Phase.RUNNING or now_s <= state.as_of_s:
            return
        model = goodput_model(state.job.model, source=self._source)
        ends = model.efficiency.ends
        phase = min(bisect_right(ends, state.done_at(now_s)), len(ends) - 1)
        local = _local_batch(state.job.model, self._source, state.gpu, state.spread, phase)
        if not local:
            return
        seen = self._seen.setdefault(state.job.id, {})
        rows = {(state.spread, local)}
        if state.gpu not in seen:  # it began with the smallest batch
            limits = model.limits[state.gpu]
            rows.add((state.spread, max(limits.min_local, math.ceil(limits.initial / state.gpus))))
        seen[state.gpu] = seen.get(state.gpu, frozenset()) | rows


def step_from_rows(gpus: Floats, nodes: Floats, local: Floats, step_s: Floats, compute_s: Floats) -> PolluxStep:
    """Pollux's model without overlap, from few rows and hopeful about the rest.

    Precondition: at least one row, finite times. A single local batch leaves half of the compute time to what does not
    grow with it; a single number of GPUs leaves all of the exchange to what does not grow with them.
    """
    if len(np.unique(local)) == 1:
        alpha_c_s = float(compute_s.mean()) / 2
        beta_c_s = alpha_c_s / float(local[0])
    else:
        alpha_c_s, beta_c_s = _line(local, compute_s, compute_s)
    inside, between = (nodes == 1) & (gpus > 1), nodes > 1
    exchange_s = step_s - compute_s
    alpha_r_s, beta_r_s = _line(gpus[inside] - 2, exchange_s[inside], step_s[inside])
    alpha_n_s, beta_n_s = _line(gpus[between] - 2, exchange_s[between], step_s[between])
    if not between.any():
        alpha_n_s, beta_n_s = NETWORK_PRIOR * alpha_r_s, NETWORK_PRIOR * beta_r_s
    return PolluxStep(
        alpha_c_s=alpha_c_s,
        beta_c_s=beta_c_s,
        alpha_n_s=alpha_n_s,
        beta_n_s=beta_n_s,
        alpha_r_s=alpha_r_s,
        beta_r_s=beta_r_s,
        gamma=1.0,
    )


def _line(x: Floats, y: Floats, scale: Floats) -> tuple[float, float]:
    """Intercept and slope, both 0 or more, with the least squared error relative to `scale`; flat if x never varies."""
    if not len(x):
        return 0.0, 0.0
    one, slope, goal = 1.0 / scale, x / scale, y / scale
    flat = max(0.0, float(one @ goal / (one @ one)))
    if np.ptp(x) == 0.0:
        return flat, 0.0
    alpha, beta = np.linalg.lstsq(np.column_stack([one, slope]), goal, rcond=None)[0].tolist()
    if beta <= 0.0:
        return flat, 0.0
    return (alpha, beta) if alpha >= 0.0 else (0.0, max(0.0, float(slope @ goal / (slope @ slope))))


# What jobs of one model have in common is worked out once.


@cache
def _expect_speed(model: str, source: Source, most_batch: int, kinds: tuple[tuple[str, int, Rows], ...]) -> Phased:
    """On any kind, by what was seen on it or on the first that was."""
    seen = {kind: _expect_goodput(model, source, kind, most_batch, rows) for kind, _, rows in kinds}
    first, gpus_per_node, _ = kinds[0]

    def rates(gpu: str, spread: Spread) -> Sequence[float]:
        if gpu in seen:
            return seen[gpu].rates(gpu, spread)
        scale = _single(model, source, gpu) / _single(model, source, first)
        return [scale * each for each in seen[first].rates(first, packed(sum(spread), gpus_per_node))]

    return Phased(ends=seen[first].ends, rates=rates)


@cache
def _unknown(model: str, source: Source, min_gpus: int) -> Phased:
    """Any kind is as good as another, and more than the least has not been thought of yet."""
    ends = goodput_model(model, source=source).speed().ends
    rate = ends[-1] / SECONDS_PER_H
    return Phased(ends=ends, rates=lambda _gpu, spread: [rate if sum(spread) == min_gpus else 0.0] * len(ends))


@cache
def _expect_goodput(model: str, source: Source, gpu: str, most_batch: int, rows: Rows) -> Phased:
    """The goodput of a job that has seen these rows."""
    truth = goodput_model(model, source=source)
    table = []
    for spread, local in sorted(rows):
        full_s, compute_s = truth.step[gpu].times(spread, np.array([float(local)]))
        table.append((sum(spread), len(spread), local, full_s[0], compute_s[0]))
    columns = np.array(table, dtype=np.float64).T
    limits = truth.limits[gpu]
    return Goodput(
        step={gpu: step_from_rows(*columns[:, np.isfinite(columns[3])])},
        limits={gpu: replace(limits, largest=max(most_batch, limits.initial))},
        efficiency=truth.efficiency,
        unit=truth.unit,
    ).speed()


@cache
def _local_batch(model: str, source: Source, gpu: str, spread: Spread, phase: int) -> int:
    """The batch of a GPU in this phase; 0 if it cannot run there."""
    choice = goodput_model(model, source=source).choice(gpu, spread, phase)
    return choice.local_batch if choice is not None else 0


@cache
def _single(model: str, source: Source, gpu: str) -> float:
    """Samples per second of one GPU with the largest local batch that was measured."""
    step = goodput_model(model, source=source).step[gpu]
    limits = goodput_model(model, source=source).limits[gpu]
    full_s, _ = step.times((1,), np.array([float(limits.max_local)]))
    return float(limits.max_local / full_s[0])
