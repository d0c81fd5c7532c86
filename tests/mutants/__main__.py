"""`make mutants`: the faults of the list, or so many drawn by a seed; who lives is told, with a Wilson interval.

python -m tests.mutants --named
python -m tests.mutants --count 300 --seed 1 --json out/mutants.json
python -m tests.mutants --count 300 --seed 1 --only policies/sia   those of the draw in these files
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.draw import drawn
from tests.mutants.named import NAMED
from tests.mutants.run import Outcome, outcome_of

GOAL = 0.1  # of those that are drawn may live, at most
WIDTH = 1.959964  # standard deviations of a 95 % interval


def wilson(lived: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share.

    >>> tuple(round(end, 3) for end in wilson(30, 300))
    (0.071, 0.139)
    """
    share, square = lived / of, WIDTH**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = WIDTH * math.sqrt(share * (1 - share) / of + square / (4 * of * of)) / (1 + square / of)
    return middle - half, middle + half


def main(arguments: list[str]) -> int:
    """The exit code: 1 where one of the list lives, or too many of a draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="so many of the draw")
    parser.add_argument("--only", default="", help="files that begin so, of the draw")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    if asked.named:
        lived = [each.name for each in NAMED if _tell(each.name, each.file, each.source(), each.tests) is Outcome.ALIVE]
        print(f"{len(lived)} of {len(NAMED)} named mutants live")
        return 1 if lived else 0
    mutants = [each for each in drawn(asked.count, asked.seed)[asked.skip :] if each.file.startswith(asked.only)]
    rows = []
    for mutant in mutants:
        outcome = _tell(str(mutant), mutant.file, mutant.source())
        rows.append({"mutant": str(mutant), "outcome": str(outcome)})
        if asked.json:
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return _sum_up(row["outcome"] for row in rows)


def _tell(name: str, file: str, source: str, tests: Iterable[str] = ()) -> Outcome:
    outcome, by, seconds = outcome_of(file, source, tuple(tests))
    print(f"{outcome:>8} {seconds:6.1f} s  {name}  {by.splitlines()[0] if by else ''}", flush=True)
    return outcome


def _sum_up(outcomes: Iterable[str]) -> int:
    every = list(outcomes)
    lived = sum(each == Outcome.ALIVE for each in every)
    low, high = wilson(lived, len(every))
    goal = "" if lived / len(every) < GOAL else f": above {GOAL:.0%}, missed"
    print(f"{lived} of {len(every)} live: {lived / len(every):.1%} ({low:.1%} to {high:.1%}){goal}")
    return 1 if goal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
