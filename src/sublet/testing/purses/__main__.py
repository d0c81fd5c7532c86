"""`python -m sublet.testing.purses --seeds 1000 [--from 0]`: the exit code says whether a law was broken."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from sublet.testing.purses.life import Course, live

WORD_EVERY = 100  # seeds


def main(words: list[str] | None = None) -> int:
    """1 = some seed broke a law."""
    parser = argparse.ArgumentParser(prog="python -m sublet.testing.purses", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many [default: %(default)s]")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N", help="the first one [default: 0]")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at once [default: %(default)s]")
    asked = parser.parse_args(words)
    courses = list[Course]()
    with ProcessPoolExecutor(asked.processes) as pool:
        for course in pool.map(live, range(asked.first, asked.first + asked.seeds), chunksize=10):
            courses.append(course)
            if course.broken:
                _say(f"seed {course.seed}: {course.broken}")
            if len(courses) % WORD_EVERY == 0:
                print(f"{len(courses)} seeds", file=sys.stderr)  # noqa: T201 - progress
    events = sum((course.events for course in courses), Counter[str]())
    broken = [course for course in courses if course.broken]
    _say(
        f"{len(courses)} lives, {events.total():,} events: {events['JobSubmitted']:,} jobs, "
        f"{events['PurseSet']:,} times a purse was set, {sum(course.periods for course in courses):,} periods ended",
        f"purses spent: {sum(course.turned_out for course in courses):,} times",
        "laws broken: " + (", ".join(f"seed {course.seed}" for course in broken) or "none"),
    )
    return int(bool(broken))


def _say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
