"""`python -m sublet_lab.races --seeds 1000 [--from 0]`: the exit code says whether a law was broken."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from sublet_lab.races.race import Course, race
from sublet_lab.seeds import live_seeds


def main(words: list[str] | None = None) -> int:
    """1 = some seed broke a law."""
    return live_seeds("sublet_lab.races", __doc__, race, _sums, words)


def _sums(courses: Sequence[Course]) -> list[str]:
    fates = sum((course.fates for course in courses), Counter[str]())
    return [
        (
            f"{len(courses)} races: {sum(course.requests for course in courses):,} turns, "
            f"{sum(course.commits for course in courses):,} commits, "
            f"{sum(course.loads for course in courses):,} loads, "
            f"{sum(course.stale for course in courses):,} writers told that they are stale"
        ),
        "requests: " + (", ".join(f"{name} {count:,}" for name, count in fates.most_common()) or "none met a fault"),
    ]


if __name__ == "__main__":
    sys.exit(main())
