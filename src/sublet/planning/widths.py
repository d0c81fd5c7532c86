"""Numbers of GPUs that a job may have: which are useful, how fast it goes there, and with which batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from sublet.domain.job import Job
from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Shape, packed

MOST_GPUS = 100_000  # no job is planned wider: more than any cluster has, whatever a job may ask for
EVERY_COUNT = 512  # nodes: beyond so many, only steps of a 256th are told apart, which no speed model can


def useful_widths(job: Job, gpus_per_node: int, most: float) -> list[int]:
    """Any count within a node, whole nodes beyond it: `[1, 2, 3, 4, 8, 12, ...]` on nodes of four.

    However wide a job may be, there are some two thousand at most.
    """
    top = int(min(job.max_gpus, most, MOST_GPUS))
    inside = range(job.min_gpus, min(top, gpus_per_node) + 1)
    first = max(2 * gpus_per_node, -(-job.min_gpus // gpus_per_node) * gpus_per_node)
    widths = [*inside, *(nodes * gpus_per_node for nodes in _node_counts(first // gpus_per_node, top // gpus_per_node))]
    if job.min_gpus <= top and job.min_gpus not in widths[:1]:
        widths.insert(0, job.min_gpus)  # the least it can run on is always useful
    return widths


def _node_counts(first: int, last: int) -> Iterator[int]:
    """Every one up to `EVERY_COUNT`, then ever fewer; the last is always among them."""
    nodes = first
    while nodes < last:
        yield nodes
        nodes += max(1, 2 * nodes // EVERY_COUNT)
    if first <= last:
        yield last


def rate_at(state: JobState, pool: Pool, gpus: int, now_s: float) -> float:
    """Work per second on so many GPUs, packed, at the job's progress now."""
    return state.job.speed.rate(pool.gpu, packed(gpus, pool.gpus_per_node), state.done_at(now_s))


def gain_steps(state: JobState, pool: Pool, most: float, now_s: float) -> Iterator[tuple[float, int]]:
    """The steps (gain per GPU, new number) by which this job grows, best first: the concave hull of its speedup.

    Speed is relative to that on the fewest GPUs, so that a gain means the same for every job. Walking the hull instead
    of single GPUs steps over dents in measured tables (two GPUs on two nodes may be slower than one).
    """
    widths = useful_widths(state.job, pool.gpus_per_node, most)
    if not widths:
        return
    rates = [rate_at(state, pool, gpus, now_s) for gpus in widths]
    base = rates[0] or max(rates)
    at = 0
    yield (float("inf"), widths[0])
    while at + 1 < len(widths):
        here, speed = widths[at], rates[at]
        gain, then = max(((rates[i] - speed) / (widths[i] - here), -i) for i in range(at + 1, len(widths)))
        if gain <= 0.0:
            return
        at = -then
        yield (gain / base, widths[at])


def worth_growing(state: JobState, pool: Pool, gpus: int, now_s: float) -> bool:
    """Whether a running job ends sooner if it stops for a restart to become wider."""
    job, done = state.job, state.done_at(now_s)
    stay_s = job.speed.seconds(pool.gpu, state.spread, done, job.work)
    grow_s = job.speed.seconds(pool.gpu, packed(gpus, pool.gpus_per_node), done, job.work)
    return grow_s + job.restart_s < stay_s


def jobs_by_pool(
    active: Iterator[JobState], waiting: Iterator[JobState], most: dict[str, float]
) -> dict[str, list[JobState]]:
    """Sort jobs into pools: those with GPUs stay where they are, the next in line go where there is most per job.

    The first in line are jobs that were promised GPUs of a pool that has none left, and have had none yet.
    """
    groups: dict[str, list[JobState]] = {name: [] for name in most}
    taken = dict.fromkeys(most, 0)  # GPUs that the smallest widths of its jobs need
    in_vain: list[JobState] = []
    for state in active:
        if state.shape is None:
            continue
        pool, need = state.shape.pool, state.job.min_gpus
        if state.phase is Phase.WAITING and taken[pool] + need > most[pool]:
            in_vain.append(state)
        else:
            groups[pool].append(state)
            taken[pool] += need
    for state in chain(in_vain, waiting):
        need = state.job.min_gpus
        open_pools = [name for name in most if taken[name] + need <= most[name] and state.job.may_run_in(name)]
        if not open_pools and state.shape is not None:
            groups[state.shape.pool].append(state)  # where it gets nothing
            continue
        if not open_pools and state.job.pools:
            continue  # those behind it may run where it may not
        if not open_pools:
            break
        name = max(open_pools, key=lambda pool: most[pool] / (len(groups[pool]) + 1))
        groups[name].append(state)
        taken[name] += need
    return groups


def batch_for(state: JobState, pool: Pool, gpus: int, current: Shape | None) -> int | None:
    """The batch that it should have on so many GPUs, if its speed says so; `current` is what it has or was given.

    A speed that knows says it as `best_batch(gpu, spread, had)`: the best batch, or the one that it `had` if that is
    nearly as good. None = as it has it now.
    """
    best = getattr(state.job.speed, "best_batch", None)  # asked of every job: to look for a protocol takes 25 us
    if best is None:
        return None
    had = None if current is None else current.batch
    found: int | None = best(pool.gpu, packed(gpus, pool.gpus_per_node), had)
    return found


@dataclass(frozen=True, slots=True)
class Runnable:
    """A number of GPUs on which a job makes progress now."""

    pool: str
    gpus: int
    rate: float  # work per second


def runnable(state: JobState, pool: Pool, most: float, done: float) -> list[Runnable]:
    """The useful numbers of GPUs on which its speed is above 0, the fewest first; its present one among them."""
    job = state.job
    if not job.may_run_in(pool.name):
        return []
    widths = useful_widths(job, pool.gpus_per_node, most)
    shape = state.shape
    if shape is not None and shape.pool == pool.name and job.min_gpus <= shape.gpus <= min(job.max_gpus, most):
        widths = sorted({*widths, shape.gpus})
    rated = ((gpus, job.speed.rate(pool.gpu, packed(gpus, pool.gpus_per_node), done)) for gpus in widths)
    return [Runnable(pool.name, gpus, rate) for gpus, rate in rated if rate > 0.0]


def runs_at_all(state: JobState, pool: Pool, most: float, done: float) -> bool:
    """Whether its speed is above 0 on any number of GPUs; it stops at the first."""
    widths = useful_widths(state.job, pool.gpus_per_node, most) if state.job.may_run_in(pool.name) else []
    return any(state.job.speed.rate(pool.gpu, packed(gpus, pool.gpus_per_node), done) > 0.0 for gpus in widths)


def speed_of_one(state: JobState, pool: Pool, done: float, choices: Iterable[Runnable]) -> float:
    """Work per second on one GPU; of a job that needs more, per GPU on the fewest on which it runs."""
    one = state.job.speed.rate(pool.gpu, (1,), done)
    return one if one > 0.0 else next((choice.rate / choice.gpus for choice in choices), 1.0)


def describe_stranded(state: JobState, pools: Sequence[str]) -> str:
    """The note for the owner of a job that makes no progress on any number of GPUs that it may have."""
    job = state.job
    return f"its speed is 0 at every width from {job.min_gpus} to {job.max_gpus} GPUs of {', '.join(pools)}; it waits"
