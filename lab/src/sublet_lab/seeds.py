"""A command that lives many seeds and says which of them broke a law; the exit code is 1 if any did."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Protocol, TypeVar

WORD_EVERY = 100  # seeds
AT_ONCE = 10  # that a process is given


class Course(Protocol):
    """The result of one seed."""

    seed: int
    broken: str  # the law and what was found; "" if it lived to its end


OneCourse = TypeVar("OneCourse", bound=Course)


def live_seeds(
    package: str,
    text: str | None,
    live: Callable[[int], OneCourse],
    sums: Callable[[Sequence[OneCourse]], Iterable[str]],
    words: list[str] | None = None,
) -> int:
    """`python -m PACKAGE --seeds N --from N --processes N`; `sums` are the lines at its end."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=text)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many [default: %(default)s]")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N", help="the first one [default: 0]")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at once [default: %(default)s]")
    asked = parser.parse_args(words)
    courses = list[OneCourse]()
    with ProcessPoolExecutor(asked.processes) as pool:
        for course in pool.map(live, range(asked.first, asked.first + asked.seeds), chunksize=AT_ONCE):
            courses.append(course)
            if course.broken:
                _say(f"seed {course.seed}: {course.broken}")
            if len(courses) % WORD_EVERY == 0:
                print(f"{len(courses)} seeds", file=sys.stderr)
    broken = [course.seed for course in courses if course.broken]
    _say(*sums(courses), "laws broken: " + (", ".join(f"seed {seed}" for seed in broken) or "none"))
    return int(bool(broken))


def _say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)
