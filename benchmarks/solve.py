"""How fast the solvers are, on sizes that grow by ten, beside the linear program that a user would write instead.

CPU milliseconds of this process, the least of a few runs. "prepare" builds hulls from tables and sorts their steps,
once per set of curves; "frontier" takes new arrival rates and gives every budget; "budget" answers one budget; "plan"
writes out the configuration of every class. `python -m benchmarks.solve`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from sublet.solve.arrays import Floats
from sublet.solve.curves import Curves, alike
from sublet.solve.phases import Phases, best_plans
from sublet.solve.plan_book import plan_book
from sublet.solve.price import frontier

T = TypeVar("T")
CONFIGS = 64
LARGEST_LP = 1_000  # classes; ten times as many take minutes
LARGEST_BOOK = 100  # classes of 100 phases
NODE_WIDTHS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 64.0])


def main() -> None:
    """Print all tables; `quick` leaves out the largest sizes."""
    quick = "quick" in sys.argv[1:]
    sizes = (10, 160, 1_000, 10_000) if quick else (10, 160, 1_000, 10_000, 100_000)
    for name, tables in (("smooth, every configuration is a vertex", _smooth), ("noisy, as measured", _noisy)):
        prices(name, tables, sizes)
    grouped(sizes[-1])
    phases((1, 10, 100) if quick else (1, 10, 100, 1_000))


def prices(name: str, tables: Callable[[int], tuple[Floats, Floats]], sizes: tuple[int, ...]) -> None:
    """One budget and all budgets, from tables and on prepared curves; goals: see the last line."""
    print(f"price of time, {CONFIGS} configurations, {name} (CPU ms)")
    print("  classes  prepare  frontier  budget    plan  | from tables     LP")
    for classes in sizes:
        time_IC, cost_IC = tables(classes)
        rate_I = np.random.default_rng(1).random(classes)
        runs = 3 if classes > 10_000 else 9
        curves, prepare_ms = _ms(lambda t=time_IC, c=cost_IC: Curves.from_tables(t, c), runs)
        line, frontier_ms = _ms(lambda curves=curves, rate_I=rate_I: frontier(curves, rate_I), runs)
        budget = line.least + 0.1 * (line.most - line.least)
        found, at_ms = _ms(lambda line=line, budget=budget: line.at(budget), 50)
        _, plan_ms = _ms(lambda found=found: (found.poorer, found.richer), runs)
        total_ms = prepare_ms + frontier_ms + at_ms + plan_ms
        lp = "       -"
        if classes <= LARGEST_LP:
            jobs, lp_ms = _ms(lambda t=time_IC, c=cost_IC, r=rate_I, b=budget: _lp(t, c, r, b), 1)
            assert abs(jobs - found.jobs) <= 1e-6 * jobs
            lp = f"{lp_ms:8,.0f}"
        print(
            f"  {classes:>7,} {prepare_ms:8.2f}  {frontier_ms:8.3f} {at_ms:7.4f} {plan_ms:7.3f}  | "
            f"{total_ms:11.2f} {lp}"
        )
    print("  goals: frontier + budget 1 ms for 1,000 and 100 ms for 100,000; 160 from tables 50 ms\n")


def grouped(classes: int) -> None:
    """Many classes, few distinct curves."""
    few_time, few_cost = _smooth(200)
    kind_I = np.random.default_rng(2).integers(0, 200, classes)
    time_IC, cost_IC, rate_I = few_time[kind_I], few_cost[kind_I], np.random.default_rng(3).random(classes)
    (first_G, group_I), alike_ms = _ms(lambda: alike(time_IC, cost_IC), 3)
    curves, prepare_ms = _ms(lambda: Curves.from_tables(time_IC[first_G], cost_IC[first_G]), 9)
    line, frontier_ms = _ms(lambda: frontier(curves, np.bincount(group_I, weights=rate_I)), 9)
    whole = frontier(Curves.from_tables(time_IC, cost_IC), rate_I)
    budget = (whole.least + whole.most) / 2
    assert abs(line.at(budget).jobs - whole.at(budget).jobs) <= 1e-9 * line.at(budget).jobs
    print(f"{classes:,} classes with 200 distinct curves (CPU ms)")
    print(f"  find them {alike_ms:.1f}   prepare {prepare_ms:.2f}   new rates, all budgets {frontier_ms:.3f}\n")


def phases(sizes: tuple[int, ...]) -> None:
    """Plans through 100 phases with 8 configurations and restarts."""
    print("phases: 100 of them, 8 configurations, restart and start 50 s (CPU ms)")
    print("  classes  one value of time  book of all plans  (plans)")
    for classes in sizes:
        rng = np.random.default_rng(classes)
        parallel = np.sort(rng.uniform(0.2, 0.99, (classes, 100)), axis=1)[:, :, None]
        noise = np.exp(rng.normal(0.0, 0.05, (classes, 100, len(NODE_WIDTHS))))
        time_IEC = ((1 - parallel) + parallel / NODE_WIDTHS) * 100.0 * noise
        jobs = Phases.from_tables(time_IEC, np.tile(NODE_WIDTHS, (classes, 1)), restart=50.0, start=50.0)
        _, one_ms = _ms(lambda jobs=jobs: best_plans(jobs, 40.0), 5)
        line = f"  {classes:>7,} {one_ms:18.2f}"
        if classes <= LARGEST_BOOK:
            book, book_ms = _ms(lambda jobs=jobs: plan_book(jobs), 1)
            line += f" {book_ms:18.1f} {len(book.curves.price_S) + classes:>8,}"
        print(line)
    print()


def _smooth(classes: int) -> tuple[Floats, Floats]:
    """Amdahl's law on 1 to 64 GPUs at one price."""
    width = np.arange(1.0, CONFIGS + 1)
    parallel = np.random.default_rng(0).uniform(0.5, 0.99, (classes, 1))
    time_IC = (1 - parallel) + parallel / width
    return time_IC, width * time_IC


def _noisy(classes: int) -> tuple[Floats, Floats]:
    """The same with ten percent of noise on every entry, so that costs are out of order."""
    time_IC, cost_IC = _smooth(classes)
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.1, time_IC.shape))
    return time_IC * noise, cost_IC * noise


def _lp(time_IC: Floats, cost_IC: Floats, rate_I: Floats, budget: float) -> float:
    """HiGHS on the same problem: a share per class and configuration."""
    classes, configs = time_IC.shape
    shares = sparse.csr_array(
        (np.ones(time_IC.size), (np.repeat(np.arange(classes), configs), np.arange(time_IC.size)))
    )
    found = linprog(
        (rate_I[:, None] * time_IC).ravel(),
        A_ub=sparse.csr_array((rate_I[:, None] * cost_IC).reshape(1, -1)),
        b_ub=[budget],
        A_eq=shares,
        b_eq=np.ones(classes),
        method="highs",
    )
    assert found.status == 0
    return float(found.fun)


def _ms(work: Callable[[], T], runs: int) -> tuple[T, float]:
    least_s, result = np.inf, work()
    for _ in range(runs):
        started_s = time.process_time()
        result = work()
        least_s = min(least_s, time.process_time() - started_s)
    return result, float(least_s) * 1e3


if __name__ == "__main__":
    main()
