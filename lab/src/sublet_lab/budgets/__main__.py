"""`python -m sublet_lab.budgets --seeds 1000 [--from 0]`: the exit code says whether a law was broken."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from sublet_lab.budgets.life import Course, live
from sublet_lab.seeds import live_seeds


def main(words: list[str] | None = None) -> int:
    """1 = some seed broke a law."""
    return live_seeds("sublet_lab.budgets", __doc__, live, _sums, words)


def _sums(courses: Sequence[Course]) -> list[str]:
    events = sum((course.events for course in courses), Counter[str]())
    return [
        (
            f"{len(courses)} lives, {events.total():,} events: {events['JobSubmitted']:,} jobs, "
            f"{sum(course.budgeted for course in courses):,} of them with a budget of their own, "
            f"{events['PurseSet']:,} budgets set, {sum(course.periods for course in courses):,} periods ended"
        ),
        f"budgets spent: {sum(course.turned_out for course in courses):,} times",
        (
            f"looks after the instant at which a budget was spent: {sum(course.late for course in courses):,}; "
            f"what budgets may be over by until all have left: USD {sum(course.over_usd for course in courses):.2f}"
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
