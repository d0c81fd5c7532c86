"""Long words of a peer are cut where they are read, and nothing else is."""

from __future__ import annotations

import pytest

from sublet.wire.files import Damaged, Printed, SaveFailed
from sublet.wire.lines import LONGEST_WORDS, from_line, shortened, to_line
from sublet.wire.messages import FromWorker, Hello, StartWorker, WorkerDown

LONG = "word " * 80_000
NOTE = 60


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (SaveFailed(worker_id="w", step=1, why=LONG), lambda said: said.why),
        (FromWorker(message=SaveFailed(worker_id="w", step=1, why=LONG)), lambda said: said.message.why),
        (WorkerDown(worker_id="w", code=1, error=LONG), lambda said: said.error),
        (Damaged(worker_id="w", paths=(LONG,), why=""), lambda said: said.paths[0]),
        (Hello(node_id="n", token="", pid=1, workers={"w": LONG}), lambda said: said.workers["w"]),
    ],
)
def test_every_text_of_a_peer_is_cut_and_says_by_how_much(message, text):
    found = text(from_line(to_line(message)))
    assert len(found) <= LONGEST_WORDS + NOTE
    assert "characters left out" in found


@pytest.mark.parametrize(
    "message",
    [
        StartWorker(worker_id="w", job_id="j", argv=("python", LONG), env={"A": LONG}),
        Printed(worker_id="w", offset=0, data=LONG),
        SaveFailed(worker_id="w", step=1, why="x" * LONGEST_WORDS),
    ],
)
def test_orders_and_what_was_printed_and_what_is_short_are_as_they_were_said(message):
    assert from_line(to_line(message)) == message


def test_begin_and_end_are_kept_from_whole_lines_or_words():
    lines = "".join(f"line {at:06}\n" for at in range(5_000))
    head, note, tail = shortened(lines, 100).partition("... 59,905 characters left out ...\n")
    assert head.splitlines() == [f"line {at:06}" for at in range(4)]
    assert note
    assert tail.splitlines() == [f"line {at:06}" for at in range(4_996, 5_000)]
    assert shortened("begin " + "secret" * 100 + " end", 40) == "begin ... 602 characters left out ... end"
    assert shortened("x" * 41, 40) == "... 41 characters left out ..."
