"""How fast one spot job is planned for, as it grows from 32 instances to 512, beside the sampling that it replaces.

CPU milliseconds of this process. "matrix" has the expected cost of every change between all grids after a loss of a
sixth of the instances at most, 16 at the most; "decision" is one of `liveput` through the kernel, on a random
walk, matrices included; "sampled" is one source and one target by 10,000 draws, vectorised.
`python -m benchmarks.liveput`
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from sublet.perf.grids import SpotJob, spot_job
from sublet.perf.parcae import parcae_costs
from sublet.policies.liveput.policy import Liveput
from sublet.solve.expectation import Loss, expected_moves
from sublet_lab.rides.ride import Way, ride

SIZES = (32, 128, 512)
DEPTHS = (2, 3, 4, 6, 8, 12, 16)
DRAWS = 10_000
DECISION_GOAL_MS, MATRIX_GOAL_MS = 5, 30


def main() -> None:
    """Print the table."""
    print("one spot job, bert's migration costs, all grids of seven depths (CPU ms)")
    print("  instances  grids   matrix  per pair, us   decision: median   largest   sampled, one pair")
    for size in SIZES:
        job = _job(size)
        loss = Loss(instances=size, lost=min(size // 6, 16))
        matrix_ms = _least_ms(lambda job=job, loss=loss: expected_moves(job.moves, [loss]), 3 if size > 200 else 9)
        spent_ms = _decisions_ms(_job(size), size)
        sampled_ms = _least_ms(lambda size=size, loss=loss: _sample(size, loss), 3)
        pairs = len(job.grids) ** 2
        print(
            f"  {size:>9} {len(job.grids):>6} {matrix_ms:8.1f} {1e3 * matrix_ms / pairs:13.2f} "
            f"{np.median(spent_ms):18.2f} {spent_ms.max():9.1f} {sampled_ms:19.1f}"
        )
    print(f"  goals at 32 instances: matrix under {MATRIX_GOAL_MS} ms, median decision at most {DECISION_GOAL_MS} ms\n")


def _job(size: int) -> SpotJob:
    rates = {
        (wide, deep): 40.0 * (wide * deep) ** 0.8 / (1 + 0.02 * deep)
        for deep in DEPTHS
        for wide in range(1, size // deep + 1)
    }
    return spot_job("bert", rates, parcae_costs("bert"))


def _decisions_ms(job: SpotJob, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of a run with a change at every other tick; fewer of them for the largest, where each is new."""
    rng = np.random.default_rng(size)
    steps = rng.integers(-min(size // 6, 16), min(size // 6, 16) + 1, 40 if size <= 128 else 6)
    walk = np.clip(size * 3 // 4 + np.cumsum(steps), size // 4, size)
    capacity = np.repeat(walk, 2).tolist()
    return 1e3 * np.array(ride(job, Way(Liveput()), capacity).decision_s)


def _sample(size: int, loss: Loss) -> float:
    """P(no stage loses all its replicas), by drawing."""
    deep = 4
    wide = size // deep
    lost = np.random.default_rng(0).multivariate_hypergeometric([wide] * deep, loss.lost, size=DRAWS)
    return float((lost < wide).all(axis=1).mean())


def _least_ms(work: Callable[[], object], runs: int) -> float:
    work()
    least_s = np.inf
    for _ in range(runs):
        started_s = time.process_time()
        work()
        least_s = min(least_s, time.process_time() - started_s)
    return 1e3 * float(least_s)


if __name__ == "__main__":
    main()
