"""The time at EC2, by its own answers."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from sublet.runtime.providers.aws.calls import ServerTime
from sublet_lab.walls import WallOf

NOON = 1_900_000_000


def dated(unix_s):
    text = format_datetime(datetime.fromtimestamp(unix_s, UTC), usegmt=True)
    return {"ResponseMetadata": {"HTTPHeaders": {"date": text}}}


def test_a_clock_that_somebody_sets_back_does_not_move_the_time_of_the_cloud():
    seconds = [0.0]
    wall = WallOf(lambda: seconds[0], unix_s=NOON + 0.25)
    time = ServerTime(wall)
    assert time.unix() == NOON + 0.25  # nobody has answered yet
    time.hear(dated(NOON))
    assert time.unix() == NOON + 0.25  # ours is right, and finer
    seconds[0] += 10.0
    wall.unix_s -= 3600.0
    assert time.unix() == NOON + 10.0


def test_of_several_answers_the_one_that_was_quickest_counts_for_ten_minutes():
    seconds = [0.0]
    time = ServerTime(WallOf(lambda: seconds[0], unix_s=0.0))
    time.hear(dated(NOON))
    seconds[0] = 20.0
    time.hear(dated(NOON + 10))  # it took ten seconds to come
    assert time.unix() == NOON + 20
    seconds[0] = 100.0
    time.hear(dated(NOON + 101))  # a rounded second nearer
    assert time.unix() == NOON + 101
    seconds[0] = 701.0
    time.hear(dated(NOON + 700))  # our own clock runs ahead
    assert time.unix() == NOON + 700


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"ResponseMetadata": None}, {"ResponseMetadata": {"HTTPHeaders": {"date": "soon"}}}, "a page"],
)
def test_an_answer_without_a_date_says_nothing(answer):
    time = ServerTime(WallOf(lambda: 5.0, unix_s=7.0))
    time.hear(answer)
    assert time.unix() == 7.0
