"""Lives in which a job was billed more than was in its own purse, shrunk as they were found."""

from __future__ import annotations

import pytest

from sublet.domain.plan import Phase
from sublet.kernel import tenancy
from sublet.runtime.controller.core.recovery import Absence
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.jobs import lifecycle as stopping
from sublet.runtime.controller.jobs.groups import Groups
from sublet.runtime.controller.money import bill
from sublet_lab.world.laws import Laws
from sublet_lab.world.plain import PlainCloud
from sublet_lab.world.story import draw_story
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

A_DAY_AHEAD_AFTER_A_BOOT = a_story(
    14297,
    [a_job("job1", 11.973, 33, 1.0, 1.578, 2.474, hang_s=60.0, purse_usd=0.0513)],
    [(53.996, "restart_machine", 317111117), (90.755, "clock", 13224982)],
    cloud="aws",
    cap=2.0,
)
AN_HOUR_AHEAD_AFTER_A_BOOT = a_story(
    10697,
    [a_job("job1", 62.521, 219, 1.0, 0.875, 2.905, hang_s=60.0, purse_usd=0.0671, checkpoint_every_s=8.0)],
    [(226.457, "clock", 104410782), (229.203, "restart_machine", 437776693)],
    cloud="aws",
    cap=5.0,
    told_inside=True,
)
AN_HOUR_AHEAD_ON_A_PLAIN_CLOUD = a_story(
    16928,
    [
        a_job(
            "job1",
            74.522,
            144,
            1.0,
            0.864,
            2.352,
            hang_s=300.0,
            purse_usd=0.0722,
            on_node_loss="replace",
            checkpoint_every_s=8.0,
        )
    ],
    [
        (60.947, "kill_controller", 698189776),
        (126.546, "kill_controller", 222682421),
        (237.847, "restart_machine", 685564300),
        (250.03, "clock", 281350129),
    ],
    cap=5.0,
)
ITS_NODES_WERE_GONE_AS_ITS_CONTROLLER_WOKE = a_story(
    7019,
    [
        a_job("job0", 54.85, 10, 1.0, 1.628, 2.127, max_workers=3, purse_usd=0.013, checkpoint_every_s=8.0),
        a_job("job1", 11.266, 269, 0.2, 3.338, 1.185, max_workers=2, checkpoint_every_s=8.0),
        a_job("job2", 24.776, 37, 0.5, 1.947, 1.931, max_workers=2, hang_s=300.0),
    ],
    [(74.802, "stop_controller", 862043666)],
    gpus_per_node=2,
    policy="las",
    cap=2.0,
)
ITS_NODE_WAS_GONE_AS_ITS_CONTROLLER_WOKE = a_story(
    17648,
    [a_job("job0", 27.087, 119, 0.5, 2.052, 2.252, hang_s=300.0, purse_usd=0.01)],
    [(97.432, "stop_controller", 392031081)],
    cap=2.0,
)
ANOTHER_AGENT_SLEEPS_AFTER_THE_LAST_FAULT = a_story(
    17113,
    [
        a_job("job0", 6.149, 390, 1.0, 0.917, 1.2, max_workers=2, hang_s=300.0, purse_usd=0.0456),
        a_job("job2", 7.824, 122, 0.5, 2.082, 0.283),
    ],
    [(26.213, "take_untold", 1048162883), (205.07, "stop_agent", 983591720)],
    cloud="aws",
    most_nodes=1,
    cap=2.0,
)
ITS_NODE_WAS_GONE_BESIDE_A_SCRIPT = a_story(
    211,
    [
        a_job(
            "job0",
            48.772,
            10,
            0.2,
            3.208,
            2.656,
            hang_s=60.0,
            purse_usd=0.0106,
            on_node_loss="replace",
            checkpoint_every_s=8.0,
        ),
        a_job("job1", 14.272, 58, 1.0, 3.207, 1.25, max_workers=3, sdk=False),
    ],
    [(66.059, "stop_controller", 200862941)],
    cap=5.0,
)
ITS_NODE_WAS_GONE_BESIDE_ANOTHER = a_story(
    15,
    [
        a_job("job0", 63.014, 123, 0.5, 2.69, 1.908, purse_usd=0.0242, checkpoint_every_s=8.0),
        a_job("job1", 29.776, 87, 0.2, 1.057, 0.163, hang_s=300.0, checkpoint_every_s=25.0),
    ],
    [(110.174, "stop_controller", 699987694)],
    cap=2.0,
)
NO_RECORD_SAYS_SINCE_WHEN = a_story(
    161,
    [a_job("job0", 69.594, 275, 1.0, 2.643, 1.107, max_workers=3, purse_usd=0.043)],
    [(57.548, "stop_controller", 136379550), (256.638, "stop_controller", 755652213)],
    most_nodes=2,
    keeps_records=False,
    cap=2.0,
)
ITS_LINE_IS_SWALLOWED = a_story(
    14499,
    [a_job("job1", 60.303, 267, 0.5, 0.838, 2.307, max_workers=3, hang_s=300.0, purse_usd=0.008)],
    [(115.118, "hole", 518895571)],
    gpus_per_node=2,
    think_s=3.0,
    paces=Paces(
        tick_s=1.0,
        absences=2,
        agent_comes_s=45.0,
        events_a_snapshot=20,
        jobs_kept=1,
        jobs_shelved=1,
        events_a_file=10,
        history_kept=60,
    ),
    cap=2.0,
)
ITS_AGENT_SLEEPS_AFTER_THE_LAST_FAULT = a_story(
    6225,
    [
        a_job(
            "job0",
            46.598,
            126,
            1.0,
            3.722,
            0.174,
            purse_usd=0.016,
            on_node_loss="replace",
            checkpoint_every_s=25.0,
        ),
        a_job("job1", 23.982, 10, 0.2, 2.584, 2.943, fails=3, checkpoint_every_s=8.0),
    ],
    [(131.835, "hole", 487548767), (140.157, "stop_agent", 666928576)],
    cloud="aws",
    think_s=3.0,
    cap=2.0,
    told_inside=True,
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
    [IN_A_MOVE_WITHOUT_END, ITS_WORD_WENT_DOWN_WITH_A_LINE, FINISHED_IN_A_MOVE],
    ids=lambda story: str(story.seed),
)
def test_a_job_whose_own_purse_is_spent_is_stopped_also_in_a_move(monkeypatch, story):
    """The kernel waited for the end of a move that could not come: its workers had been ended for want of money."""
    assert not breaks(story)
    monkeypatch.setattr(tenancy, "STOPPED_AT_ONCE", {Phase.STARTING})
    assert breaks(story) in ("J", "K", "L", "R")


def test_nobody_ends_what_is_on_a_node_that_cannot_be_reached():
    """Its line stood, as far as the node knew; nothing came through."""
    assert not breaks(ITS_NODE_IS_PARTED)


@pytest.mark.parametrize(
    "story",
    [ITS_LINE_IS_SWALLOWED, ITS_AGENT_SLEEPS_AFTER_THE_LAST_FAULT, ANOTHER_AGENT_SLEEPS_AFTER_THE_LAST_FAULT],
    ids=lambda story: str(story.seed),
)
def test_nor_on_one_whose_line_goes_nowhere_or_whose_agent_sleeps(monkeypatch, story):
    """False alarms: as far as the node knew its line stood, and nobody had parted it."""
    assert not breaks(story)
    monkeypatch.setattr(Laws, "_reached", lambda self: {instance.node_id for instance in self._stage.cloud.alive()})
    assert breaks(story) == "J"


@pytest.mark.parametrize(
    "story",
    [A_DAY_AHEAD_AFTER_A_BOOT, AN_HOUR_AHEAD_AFTER_A_BOOT, AN_HOUR_AHEAD_ON_A_PLAIN_CLOUD],
    ids=lambda story: str(story.seed),
)
def test_records_of_nodes_that_ended_with_their_lease_show_that_a_clock_is_ahead(monkeypatch, story):
    """Such a record lay a day ahead like everything else, and the job was billed for that day: USD 12 of 0.05."""
    assert not breaks(story)
    monkeypatch.setattr(Absence, "_ahead_s", lambda self, leased: 0.0)
    assert breaks(story) == "J"


@pytest.mark.parametrize(
    "story",
    [
        ITS_NODES_WERE_GONE_AS_ITS_CONTROLLER_WOKE,
        ITS_NODE_WAS_GONE_AS_ITS_CONTROLLER_WOKE,
        ITS_NODE_WAS_GONE_BESIDE_A_SCRIPT,
        ITS_NODE_WAS_GONE_BESIDE_ANOTHER,
    ],
    ids=lambda story: str(story.seed),
)
def test_no_job_is_billed_for_a_node_beyond_its_end_on_record(monkeypatch, story):
    """The ledger had the record, and the job paid until somebody heard of it."""
    assert not breaks(story)
    monkeypatch.setattr(bill, "_pay_back", lambda *_: None)
    assert breaks(story) == "J"


def test_without_records_nobody_knows_since_when_a_node_is_gone_that_ended_in_a_sleep(monkeypatch):
    """A false alarm: its job held nothing any more as its controller woke, so nothing was allowed for the sleep."""
    assert not breaks(NO_RECORD_SAYS_SINCE_WHEN)
    monkeypatch.setattr(PlainCloud, "keeps_records", property(lambda self: True, lambda self, _: None), raising=False)
    monkeypatch.setattr(PlainCloud, "billed", lambda self, instance, clock: (None, None))
    assert breaks(NO_RECORD_SAYS_SINCE_WHEN) == "J"


def test_a_controller_that_sleeps_looks_at_no_purse():
    """Nothing happened meanwhile, so that nobody counted for how long it slept."""
    assert not breaks(ITS_CONTROLLER_SLEPT)


def test_a_job_is_ended_in_time_also_if_its_controller_looks_once_a_second(monkeypatch):
    """Seed 3282."""
    jobs = [
        a_job("job0", 31.294, 82, 0.5, 1.543, 2.0, hang_s=300.0),
        a_job("job1", 24.572, 254, 1.0, 2.173, 0.775, max_workers=3, hang_s=300.0, sdk=False, purse_usd=0.0349),
    ]
    paces = Paces(tick_s=1.0, save_s=5.0, sweep_s=15.0, absences=2, agents_come_back_s=6.0, rent_tries=3)
    knobs = {"gpus_per_node": 1, "most_nodes": 2, "policy": "price", "think_s": 0.02, "span_s": 300.0, "cap": 5.0}
    story = a_story(3282, jobs, [(287.619, "clock", 1019183302)], cloud="local", paces=paces, **knobs)
    assert not breaks(story)
    monkeypatch.setattr(stopping, "LAST_S", 1.0)
    assert breaks(story) == "J"


BOOTED_WHILE_IT_TRAINS = a_story(
    2358,
    [
        a_job("job0", 23.966, 10, 0.5, 3.455, 2.697, hang_s=120.0, on_node_loss="replace"),
        a_job("job1", 5.485, 10, 0.5, 3.536, 1.716, hang_s=60.0),
        a_job("job2", 42.263, 129, 0.2, 3.355, 0.932, purse_usd=0.012, on_node_loss="replace", checkpoint_every_s=25.0),
    ],
    [(75.832, "restart_machine", 44360200)],
    gpus_per_node=1,
    most_nodes=3,
    span_s=300.0,
    cap=2.0,
    told_inside=True,
)


def test_who_was_told_to_stop_before_its_agents_were_back_is_told_again(monkeypatch):
    """Orders to jobs are held back at a start. One to a group that trained on was given to nobody."""
    assert not breaks(WIDER_AS_ITS_CONTROLLER_WENT)
    heal = Groups.heal
    monkeypatch.setattr(Groups, "heal", lambda self, record, held=False: heal(self, record))
    assert breaks(BOOTED_WHILE_IT_TRAINS) == "J"


@pytest.mark.parametrize("story", [BOOTED_WHILE_IT_TRAINS, draw_story(3165)], ids=["2358", "3165"])
def test_after_a_boot_jobs_are_billed_for_a_little_more_than_was_rather_than_less(story):
    assert not breaks(story)


def test_spot_that_was_taken_counts_until_it_is_seen_where_ec2_does_not_say_when():
    assert not breaks(draw_story(1513))
