"""Grids of real processes, disturbed and judged to the bit: `python -m sublet_lab.grid --help`."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterable

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process that has used autograd for GPUs cannot be forked
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of connections that end, which is what is tried here

from sublet.runtime.agent.nursery import import_all
from sublet_lab.grid.rows import Row, changes, checkpoints, grids, kill_points, random_kills, run, scripts


def main(words: list[str] | None = None) -> int:
    """How many did not hold."""
    parser = argparse.ArgumentParser(prog="python -m sublet_lab.grid", description=__doc__)
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kill -9 at random, so often")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of these [default: %(default)s]")
    parser.add_argument("--rows", action="store_true", help="every grid, a sequence of them, and every kill point")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their name")
    asked = parser.parse_args(words)
    rows: list[Row] = (
        [*grids(), *changes(), *checkpoints(), *scripts(), *kill_points()] if asked.rows or not asked.kills else []
    )
    rows += random_kills(asked.kills, asked.seed) if asked.kills else []
    chosen = [row for row in rows if asked.only in row.name]
    if not chosen:
        parser.error(f"--only {asked.only!r} is in the name of no row; the first of {len(rows)}: {rows[0].name!r}")
    return _run(chosen)


def _run(rows: Iterable[Row]) -> int:
    import torch

    import_all(["torch._dynamo"])  # the first optimizer of a process does that, and takes seconds
    torch.set_num_threads(1)
    began_s, broken, deaths, pauses = time.monotonic(), 0, 0, list[float]()
    count = 0
    print(f"{'training':48} {'deaths':>6} {'rolled':>6} {'redone':>6} {'pauses, s':>24} {'moved, kB':>9}  outcome")
    for row in rows:
        found = run(row)
        count += 1
        deaths += found.deaths
        pauses += found.pauses_s
        broken += bool(found.broken)
        waits = " ".join(f"{each:.2f}" for each in found.pauses_s)
        outcome = "; ".join(found.broken) or ("within 1e-12" if row.script else "bitwise")
        text = f"{row.name:48} {found.deaths:6} {found.rolled:6} {found.redone:6} {waits:>24}"
        text += f" {found.moved_bytes / 1e3:9.1f}  {outcome}"
        print(text, flush=True)
    took_s = time.monotonic() - began_s
    print(f"{count} trainings, {deaths} deaths in {took_s:.0f} s: {broken} not as one process")
    if pauses:
        middle, most = statistics.median(pauses), max(pauses)
        print(f"from a death until all have joined: {middle:.2f} s in the median, {most:.2f} s at most")
    return broken


if __name__ == "__main__":
    sys.exit(main())
