"""Lives in which a job was billed more than was in its own purse, shrunk as they were found."""

from __future__ import annotations

import pytest

from sublet.domain.plan import Phase
from sublet.kernel import tenancy
from sublet.runtime.controller import lifecycle
from sublet.runtime.controller.paces import Paces
from sublet.testing.world.story import draw_story
from tests.rigs.shrunk import a_job, a_story, breaks

IN_A_MOVE_WITHOUT_END = a_story(
    3066,
    [a_job("job2", 16.709, 87, 0.2, 2.566, 2.248, max_workers=2, hang_s=300.0, purse_usd=0.0519)],
    [(36.959, "too_wide", 868257236)],
    cloud="local",
    policy="srtf",
    cap=5.0,
)
ITS_WORD_WENT_DOWN_WITH_A_LINE = a_story(
    2956,
    [a_job("job2", 33.473, 42, 1.0, 2.32, 2.501, hang_s=60.0, purse_usd=0.0422, on_node_loss="restart")],
    [(73.77, "notice", 1015973418), (84.525, "stop_controller", 761363289)],
    cloud="ray",
    cap=2.0,
    told_inside=True,
)
FINISHED_IN_A_MOVE = a_story(
    1756,
    [
        a_job("job0", 88.113, 10, 0.2, 2.157, 0.975, hang_s=300.0, on_node_loss="fail", checkpoint_every_s=25.0),
        a_job(
            "job1",
            20.412,
            400,
            0.2,
            2.969,
            2.163,
            hang_s=60.0,
            purse_usd=0.0474,
            on_node_loss="restart",
            checkpoint_every_s=8.0,
        ),
    ],
    [(23.635, "clock", 409247639), (102.261, "notice", 760508177)],
    cloud="ray",
    cap=5.0,
    paces=Paces(tick_s=1.0, save_s=5.0, agent_comes_s=45.0, rent_tries=3, events_a_snapshot=20),
    told_inside=True,
)
WIDER_AS_ITS_CONTROLLER_WENT = a_story(
    1373,
    [
        a_job("job0", 88.591, 10, 0.2, 3.095, 1.82, max_workers=2, hang_s=60.0, on_node_loss="fail"),
        a_job("job1", 87.038, 15, 1.0, 3.72, 0.721, max_workers=2, hang_s=300.0, fails=1, checkpoint_every_s=25.0),
        a_job("job2", 80.227, 499, 1.0, 3.226, 2.486, max_workers=3, hang_s=300.0, purse_usd=0.0275),
    ],
    [
        (58.709, "policy_hangs", 719903975),
        (159.326, "user_scale", 700637793),
        (181.415, "user_scale", 558559584),
        (188.318, "crash_commit", 728800177),
    ],
    cloud="aws",
    most_nodes=4,
    cap=2.0,
    told_inside=True,
)
ITS_NODE_IS_PARTED = a_story(
    511,
    [
        a_job("job0", 70.007, 48, 1.0, 3.561, 2.907, checkpoint_every_s=8.0),
        a_job("job1", 37.509, 84, 1.0, 3.154, 2.86, purse_usd=0.0095, checkpoint_every_s=8.0),
    ],
    [(105.13, "part_node", 160903859)],
    cloud="local",
    cap=2.0,
)

ITS_CONTROLLER_SLEPT = a_story(
    31187,
    [a_job("job0", 89.113, 28, 1.0, 3.451, 0.428, max_workers=3, purse_usd=0.009, on_node_loss="restart")],
    [(112.18, "stop_controller", 1012305250)],
    cloud="aws",
    cap=2.0,
)


@pytest.mark.parametrize(
    "story",
    [IN_A_MOVE_WITHOUT_END, ITS_WORD_WENT_DOWN_WITH_A_LINE, FINISHED_IN_A_MOVE, WIDER_AS_ITS_CONTROLLER_WENT],
    ids=lambda story: str(story.seed),
)
def test_a_job_whose_own_purse_is_spent_is_stopped_also_in_a_move(monkeypatch, story):
    """The kernel waited for the end of a move that could not come: its workers had been ended for want of money."""
    assert not breaks(story)
    monkeypatch.setattr(tenancy, "STOPPED_AT_ONCE", {Phase.STARTING})
    assert breaks(story) in ("J", "L", "R")


def test_nobody_ends_what_is_on_a_node_that_cannot_be_reached():
    """Its line stood, as far as the node knew; nothing came through."""
    assert not breaks(ITS_NODE_IS_PARTED)


def test_a_controller_that_sleeps_looks_at_no_purse():
    """Nothing happened meanwhile, so that nobody counted for how long it slept."""
    assert not breaks(ITS_CONTROLLER_SLEPT)


def test_a_job_is_ended_in_time_also_if_its_controller_looks_once_a_second(monkeypatch):
    assert not breaks(draw_story(3282))
    monkeypatch.setattr(lifecycle, "LAST_S", 1.0)
    assert breaks(draw_story(3282)) == "J"


@pytest.mark.parametrize("seed", [2358, 3165])
def test_after_a_boot_jobs_are_billed_for_a_little_more_than_was_rather_than_less(seed):
    assert not breaks(draw_story(seed))


def test_spot_that_was_taken_counts_until_it_is_seen_where_ec2_does_not_say_when():
    assert not breaks(draw_story(1513))
