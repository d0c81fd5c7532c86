"""How long one allocation takes, beside HiGHS on the same 0/1 program in the same run.

CPU milliseconds of this process, the least of a few runs; HiGHS runs once. Every answer is checked: ours is never less
than that of HiGHS, nor than that of the dynamic program where that is run. `python -m benchmarks.allocate`

The tables are those of published elastic schedulers: speed grows with a power of the width; the same with a step down
beyond one node of four; powers of two only; the part of the remaining work done in half an hour; and four families of
jobs whose batch grows with the width, so that speeds come in plateaus and many jobs are exactly alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from sublet.solve.arrays import Floats, Ints
from sublet.solve.knapsack.price import clearing
from sublet.solve.knapsack.split import Problem, best_split
from sublet.solve.mip.highs import Chosen, choose
from sublet.solve.mip.moves import NOT_RUNNING, Coupled, best_moves, total

T = TypeVar("T")
# J jobs, C choices (widths 0 to the greatest)
KINDS = ("power", "step", "twos", "remaining", "families")
HIGHS_LIMIT_S = 60.0
LARGEST_HIGHS = 2_000  # jobs; more take minutes
# Seconds per sample, fixed seconds per step, million weights, least and greatest batch, samples that fit a device.
FAMILIES = (
    (2.6e-3, 4e-3, 25.6, 32, 512, 64),
    (0.5e-3, 6e-3, 11.7, 64, 2048, 256),
    (3.2e-3, 5e-3, 138.0, 16, 256, 32),
    (0.2e-3, 3e-3, 61.0, 32, 2048, 256),
)


def main() -> None:
    """Print all tables; `quick` leaves out the largest sizes, and HiGHS beyond 400 jobs."""
    quick = "quick" in sys.argv[1:]
    largest_highs = 400 if quick else LARGEST_HIGHS
    one("400 jobs, 1,000 GPUs, up to 16 each", 400, 1_000, 16, goal_ms=10, largest_highs=largest_highs)
    one("400 jobs, 1,000 GPUs, up to 64 each", 400, 1_000, 64, goal_ms=10, largest_highs=largest_highs)
    one("2,000 jobs, 3,000 GPUs, up to 16 each", 2_000, 3_000, 16, goal_ms=50, largest_highs=largest_highs)
    growth((100, 1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000))
    changes((100, 500) if quick else (100, 500, 2_000))


def one(name: str, jobs: int, capacity: int, widest: int, *, goal_ms: float, largest_highs: int) -> None:
    """Each kind of table at one size: from the table to the widths."""
    print(f"{name}, exact (CPU ms)")
    print("  table        method      ours   goal | price alone, gap | dynamic program     HiGHS   its gap")
    for kind in KINDS:
        gain_JC = table(kind, jobs, widest)
        found, ours_ms = _ms(lambda g=gain_JC: best_split(g, capacity), 9)
        rough = best_split(gain_JC, capacity, method="price")
        rows, rows_ms = _ms(lambda g=gain_JC: best_split(g, capacity, method="rows"), 0)
        assert found.gap == 0.0
        assert abs(rows.total - found.total) <= 1e-9 * found.total
        line = f"  {kind:<12} {found.method:<7} {ours_ms:8.2f} {goal_ms:6.0f} | {rough.gap / rough.total:16.4%} "
        line += f" | {rows_ms:15,.0f}"
        if jobs <= largest_highs:
            line += _highs_beside(gain_JC, capacity, found.total)
        print(line, flush=True)
    print()


def growth(sizes: tuple[int, ...]) -> None:
    """Ten times as many jobs, 1.5 GPUs each, up to 16 and up to 64."""
    print("growth, 1.5 GPUs per job (CPU ms; us per job)")
    print("  up to  jobs        " + "".join(f"{kind:>20}" for kind in KINDS))
    for widest in (16, 64):
        for jobs in sizes:
            line = f"  {widest:>5} {jobs:>8,}     "
            for kind in KINDS:
                gain_JC = table(kind, jobs, widest)
                found, ours_ms = _ms(lambda g=gain_JC, k=jobs * 3 // 2: best_split(g, k), 3 if jobs >= 10_000 else 9)
                bound = clearing(Problem.from_tables(gain_JC, jobs * 3 // 2)).bound
                assert found.gap == 0.0
                assert found.total <= bound * (1 + 1e-12)
                line += f"{ours_ms:11.2f} ({ours_ms / jobs * 1e3:6.2f})"
            print(line, flush=True)
    print("  goal: 10,000 jobs no dearer per job than 1,000, but for memory\n")


def changes(sizes: tuple[int, ...]) -> None:
    """Seven in ten jobs run, none may be paused, one in twenty may change, and a change costs something."""
    print("at most one job in twenty changes, none is paused, 1.5 GPUs per job (CPU ms)")
    print("  jobs    table        ours     gap  changes |    HiGHS   its gap")
    for jobs in sizes:
        for kind in KINDS:
            asked = _running(kind, jobs)
            found, ours_ms = _ms(lambda asked=asked: best_moves(asked), 1)
            whole, highs_ms = _ms(lambda asked=asked: _highs(asked.gain_JC, asked.use_RJC, asked.limit_R), 0)
            theirs = -np.inf if whole.column_J is None else total(asked, whole.column_J)
            assert found.total >= theirs - 1e-6 * abs(theirs)
            gap = "   none" if theirs == -np.inf else f"{max(whole.bound - theirs, 0.0) / abs(theirs):8.4%}"
            print(
                f"  {jobs:>5,}   {kind:<8} {ours_ms:8.1f} {found.gap / found.total:7.3%} {found.changes:>8} "
                f"| {highs_ms:8,.0f}  {gap}",
                flush=True,
            )
    print()


def table(kind: str, jobs: int, widest: int, seed: int = 0) -> Floats:
    """Gains by job and width, from 0 to the widest."""
    rng = np.random.default_rng(seed)
    width = np.arange(widest + 1.0)
    speed_JC: Floats = width ** rng.uniform(0.5, 0.95, (jobs, 1))
    match kind:
        case "power":
            return speed_JC
        case "step":
            return np.where(width > 4, 0.8 * speed_JC, speed_JC)
        case "twos":
            return np.where(np.isin(width, [0, *2.0 ** np.arange(12)]), speed_JC, -np.inf)
        case "remaining":
            most_J = rng.choice([1, 2, 4, 8, 16], jobs, p=[0.25, 0.25, 0.2, 0.2, 0.1])
            work_J = rng.lognormal(0.0, 1.2, jobs) * most_J**0.7
            done_JC = np.minimum(0.5 * np.where(width > 4, 0.8 * speed_JC, speed_JC) / work_J[:, None], 1.0)
            return np.where(width <= most_J[:, None], done_JC, -np.inf)
        case _:
            return _families(widest)[rng.integers(0, len(FAMILIES), jobs)]


def _families(widest: int) -> Floats:
    """How many times as fast as on one GPU, at the best batch for each width."""
    gain_FC = np.zeros((len(FAMILIES), widest + 1))
    for family, (sample_s, fixed_s, weights_m, least, most, fits) in enumerate(FAMILIES):
        alone = fits / (fixed_s + sample_s * fits)
        batch = least * 2.0 ** np.arange(int(np.log2(most / least)) + 1)
        for width in range(1, widest + 1):
            share = np.ceil(batch / width)
            reduce_s = 4e6 * weights_m * 2 * (width - 1) / width / 10e9 + 2 * (width - 1) * 50e-6
            speed = np.where(share <= fits, batch / (fixed_s + sample_s * share + reduce_s), -np.inf)
            gain_FC[family, width] = speed.max() / alone
    return gain_FC


def _running(kind: str, jobs: int) -> Coupled:
    """Jobs that run at what was best for other jobs' speeds, so that much would change if it could."""
    gain_JC, capacity = table(kind, jobs, 16), jobs * 3 // 2
    earlier = best_split(table(kind, jobs, 16, seed=1), capacity).column_J
    allowed = gain_JC[np.arange(jobs), earlier] > -np.inf
    runs = (np.random.default_rng(2).random(jobs) < 0.7) & (earlier > 0) & allowed
    current_J: Ints = np.where(runs, earlier, NOT_RUNNING)
    return Coupled.from_tables(
        gain_JC, [capacity], current=current_J, change_cost=0.02, most_changes=jobs // 20, may_pause=False
    )


def _highs_beside(gain_JC: Floats, capacity: int, ours: float) -> str:
    use_RJC = np.broadcast_to(np.arange(float(gain_JC.shape[1])), gain_JC.shape)[None]
    whole, highs_ms = _ms(lambda: _highs(gain_JC, use_RJC, np.array([float(capacity)])), 0)
    if whole.column_J is None:
        return f" {highs_ms:9,.0f}      none"
    theirs = float(gain_JC[np.arange(len(gain_JC)), whole.column_J].sum())
    assert ours >= theirs - 1e-6 * abs(theirs)
    return f" {highs_ms:9,.0f}  {max(whole.bound - theirs, 0.0) / abs(theirs):8.4%}"


def _highs(gain_JC: Floats, use_RJC: Floats, limit_R: Floats) -> Chosen:
    return choose(gain_JC, use_RJC, limit_R, time_limit_s=HIGHS_LIMIT_S)


def _ms(work: Callable[[], T], runs: int) -> tuple[T, float]:
    """The least of some runs after a first one; of none, the first."""
    started_s = time.process_time()
    result = work()
    least_s = time.process_time() - started_s if runs == 0 else np.inf
    for _ in range(runs):
        started_s = time.process_time()
        result = work()
        least_s = min(least_s, time.process_time() - started_s)
    return result, float(least_s) * 1e3


if __name__ == "__main__":
    main()
