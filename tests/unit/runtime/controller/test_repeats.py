"""What is said again and again is told some times, counted, and the count is told."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from sublet.domain.units import MINUTE_S
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.watch.history import MOST_ROWS, Chronicle, HistoryRow, Repeats
from sublet.testing.values import an_offer


def row(text="t", job_id="j-1", kind="Alarm"):
    return HistoryRow(kind=kind, text=text, job_id=job_id)


def test_twenty_a_minute_are_told_and_the_others_are_counted():
    repeats = Repeats()
    admitted = [repeats.admits(row(str(at)), 0.0) for at in range(MOST_ROWS + 5)]
    assert admitted == [True] * MOST_ROWS + [False] * 5
    assert repeats.over(MINUTE_S - 0.1) == []
    assert not repeats.is_due(MINUTE_S - 0.1)
    assert repeats.is_due(MINUTE_S)
    (told,) = repeats.over(MINUTE_S)
    assert (told.job_id, told.kind) == ("j-1", "Alarm")
    assert told.text == f"5 more rows like this within a minute: {MOST_ROWS}"
    assert repeats.over(MINUTE_S) == []
    assert repeats.admits(row(), MINUTE_S)


def test_subjects_and_kinds_are_counted_apart():
    repeats = Repeats()
    assert not all(repeats.admits(row(), 0.0) for _ in range(MOST_ROWS + 1))
    assert repeats.admits(row(job_id="j-2"), 0.0)
    assert repeats.admits(row(kind="Damaged"), 0.0)


def test_what_was_all_told_needs_no_count():
    repeats = Repeats()
    assert repeats.admits(row(), 0.0)
    assert not repeats.is_due(MINUTE_S)
    assert repeats.over(MINUTE_S) == []


class Stopped:
    """A wall of which a test moves the hands."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s

    def unix(self):
        return self.now_s


def test_the_count_is_written_though_nothing_else_happens_and_wishes_of_users_are_never_counted():
    wall, written = Stopped(), []
    store = SimpleNamespace(transaction=nullcontext, add_history=written.extend)
    chronicle = Chronicle(store, lambda _: True, lambda _: "", wall=wall)
    for _ in range(MOST_ROWS + 2):
        chronicle.note(row())
    chronicle.write(Kernel([an_offer()]), 0.0)
    assert len(written) == MOST_ROWS
    chronicle.by = "somebody"
    chronicle.note(row())
    chronicle.by = ""
    chronicle.write(Kernel([an_offer()]), 0.0)
    assert len(written) == MOST_ROWS + 1
    assert not chronicle.waits
    wall.now_s = MINUTE_S
    assert chronicle.waits
    chronicle.write(Kernel([an_offer()]), 0.0)
    assert written[-1][5] == "2 more rows like this within a minute: t"
    assert not chronicle.waits
