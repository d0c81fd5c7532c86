"""`make mutants`: the faults of the list, or so many drawn by a seed; who lives is told, with a Wilson interval.

python -m tests.mutants --named
python -m tests.mutants --count 300 --seed 1 --json out/mutants.json
python -m tests.mutants --count 300 --seed 1 --only policies/mip   those of the draw in these files
python -m tests.mutants --count 99999 --only solve/price --tests tests/unit/solve --reach out/solve.json   all of a file
python -m tests.mutants --count 300 --seed 1 --lived out/mutants.json   those of the draw that lived there

Which tests come by which line is found in a first run and kept in out/mutants-reach.json: some minutes. Tests that are
new are added; after large changes of the code, remove it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutants.draw import Mutant, drawn
from tests.mutants.equivalent import why_equivalent
from tests.mutants.named import NAMED
from tests.mutants.reach import Reach
from tests.mutants.run import Outcome, outcome_of
from tests.mutants.session import LATE, NOBODY, ask

GOAL = 0.1  # of those that are drawn may live, at most
ALIVE = (Outcome.ALIVE, NOBODY)
EQUAL = "equal"  # to what it was, for every input
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
    parser.add_argument("--lived", type=Path, help="only what lived in this file, which --json wrote")
    parser.add_argument("--reach", type=Path, default=Path("out/mutants-reach.json"))
    parser.add_argument("--tests", nargs="*", help="only these; with a --reach of their own")
    parser.add_argument("--patience", type=float, default=60.0, help="CPU seconds of tests for one mutant")
    asked = parser.parse_args(arguments)
    if asked.named:
        lived = [each.name for each in NAMED if _tell(each.name, each.file, each.source(), each.tests) is Outcome.ALIVE]
        print(f"{len(lived)} of {len(NAMED)} named mutants live")
        return 1 if lived else 0
    mutants = [each for each in drawn(asked.count, asked.seed)[asked.skip :] if each.file.startswith(asked.only)]
    if asked.lived:
        before = json.loads(asked.lived.read_text(encoding="utf-8"))
        names = {row["mutant"] for row in before if row["outcome"] in ALIVE}
        mutants = [each for each in mutants if str(each) in names]
    rows = _rows(mutants, asked.reach, asked.patience, asked.json, asked.tests)
    return _sum_up(row["outcome"] for row in rows) if rows else 0


def _rows(
    mutants: Sequence[Mutant], reach: Path, patience_s: float, kept: Path | None, tests: Sequence[str]
) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []

    def told(mutant: Mutant, outcome: str, by: str) -> None:
        print(f"{outcome:>8}  {mutant}  {by}", flush=True)
        rows.append({"mutant": str(mutant), "outcome": outcome, "by": by})
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    late: list[Mutant] = []
    reasons = [why_equivalent(each) for each in mutants]
    for mutant, why in zip(mutants, reasons, strict=True):
        if why:
            told(mutant, EQUAL, why)
    mutants = [mutant for mutant, why in zip(mutants, reasons, strict=True) if not why]

    def heard(number: int, outcome: str, by: str) -> None:
        if outcome == LATE:
            late.append(mutants[number])
        else:
            told(mutants[number], outcome, by)

    ask(mutants, reach, patience_s, heard, tests)
    known = Reach.read(reach)
    for mutant in late:  # one process each, which imports everything anew
        # With all their cases: a changed default may change what these are called.
        names = list(
            dict.fromkeys(name.partition("[")[0] for name in known.tests_of(mutant.file, mutant.line, patience_s))
        )
        outcome, by, _ = outcome_of(mutant.file, mutant.source(), names) if names else (NOBODY, "", 0.0)
        told(mutant, str(outcome), by.splitlines()[0] if by else "")
    return rows


def _tell(name: str, file: str, source: str, tests: Iterable[str] = ()) -> Outcome:
    outcome, by, seconds = outcome_of(file, source, tuple(tests))
    print(f"{outcome:>8} {seconds:6.1f} s  {name}  {by.splitlines()[0] if by else ''}", flush=True)
    return outcome


def _sum_up(outcomes: Iterable[str]) -> int:
    drawn_ones = list(outcomes)
    every = [each for each in drawn_ones if each != EQUAL]
    lived = sum(each in ALIVE for each in every)
    low, high = wilson(lived, len(every))
    goal = "" if lived / len(every) < GOAL else f": above {GOAL:.0%}, missed"
    aside = f"; {len(drawn_ones) - len(every)} of {len(drawn_ones)} change nothing" if drawn_ones != every else ""
    print(f"{lived} of {len(every)} live: {lived / len(every):.1%} ({low:.1%} to {high:.1%}){goal}{aside}")
    return 1 if goal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
