"""`python -m sublet.testing.races --seeds 1000 [--from 0]`: the exit code says whether a law was broken."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from sublet.testing.races.race import Course, race

WORD_EVERY = 100  # seeds


def main(words: list[str] | None = None) -> int:
    """How many seeds broke a law, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m sublet.testing.races", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many [default: %(default)s]")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N", help="the first one [default: 0]")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at once [default: %(default)s]")
    asked = parser.parse_args(words)
    courses = list[Course]()
    with ProcessPoolExecutor(asked.processes) as pool:
        for course in pool.map(race, range(asked.first, asked.first + asked.seeds), chunksize=10):
            courses.append(course)
            if course.broken:
                _say(f"seed {course.seed}: {course.broken}")
            if len(courses) % WORD_EVERY == 0:
                print(f"{len(courses)} seeds", file=sys.stderr)  # noqa: T201 - progress
    fates = sum((course.fates for course in courses), Counter[str]())
    broken = [course for course in courses if course.broken]
    laws = Counter(course.broken.partition(":")[0] for course in broken)
    _say(
        f"{len(courses)} races: {sum(course.requests for course in courses):,} turns, "
        f"{sum(course.commits for course in courses):,} commits, {sum(course.loads for course in courses):,} loads, "
        f"{sum(course.stale for course in courses):,} writers told that they are stale",
        "requests: " + (", ".join(f"{name} {count:,}" for name, count in fates.most_common()) or "none met a fault"),
        "laws broken: " + (", ".join(f"{name} {count}" for name, count in laws.items()) or "none"),
    )
    return int(bool(broken))


def _say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
