"""What seeds have found since, of jobs that failed for nothing and of lives that ended too soon: as they were shrunk.

Each broke its law before the mend, and does so again without it.
"""

from __future__ import annotations

import pytest

from sublet.domain import events as news
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.jobs.node_loss import Blame
from sublet.runtime.controller.memory import context
from sublet.runtime.controller.memory.snapshots import Memory
from sublet.runtime.group.core import GroupCore
from sublet.runtime.group.regroup import Regrouping
from sublet_lab.world import verdict
from tests.rigs.shrunk import a_job, a_story, breaks

LOST_WHILE_THE_CONTROLLER_SLEPT = a_story(
    7097,
    [a_job("job1", 44.326, 579, 0.2, 3.116, 1.33, hang_s=300.0, on_node_loss="fail", checkpoint_every_s=8.0)],
    [(72.611, "slow_node", 269212362), (283.21, "stop_controller", 129919169)],
    purse_usd=0.1465,
    cloud="aws",
    paces=Paces(tick_s=1.0, sweep_s=15.0, absences=2, agent_comes_s=45.0, rent_tries=3, events_a_snapshot=20),
    cap=5.0,
)
FOUR_SLEEPS = a_story(  # beside 14921, where a job rested after two of them
    14921,
    [a_job("job0", 20.0, 400, 1.0, 0.783, 2.588, checkpoint_every_s=25.0)],
    [(at_s, "stop_controller", 785137496) for at_s in (100.0, 220.0, 340.0, 460.0)],
    cloud="local",
    span_s=600.0,
)
FAILED_WITHOUT_A_WORD = a_story(  # what was left of 14554, with a crash in each commit in turn
    14554,
    [a_job("job1", 5.0, 197, 0.2, 3.7, 0.3, on_node_loss="fail")],
    [(30.0, "crash_commit", 12), (30.01, "take_told", 1)],
)
STALE_LOGS = a_story(
    16435,
    [a_job("job0", 23.826, 10, 0.2, 3.643, 2.084, max_workers=2, hang_s=60.0, checkpoint_every_s=25.0)],
    [(41.03, "no_storage", 1015450611), (94.092, "flags", 898996868)],
)
STALE_LOGS_OF_THREE = a_story(
    11913,
    [a_job("job1", 67.698, 310, 1.0, 3.422, 0.196, max_workers=3, on_node_loss="replace")],
    [
        (157.767, "part_peers", 988461360),
        (212.519, "no_storage", 325480831),
        (222.165, "kill_controller", 1024789539),
    ],
    cloud="aws",
)
PUT_BACK_WITH_A_CLOCK_BEHIND = a_story(
    15698,
    [a_job("job0", 33.614, 98, 1.0, 2.391, 2.983, on_node_loss="fail", checkpoint_every_s=8.0)],
    [
        (55.902, "foreign_job", 574582321),
        (133.761, "older_backup", 964451961),
        (157.245, "full_folder", 465997045),
        (175.801, "restart_machine", 830977024),
    ],
    cloud="local",
    cap=5.0,
)


def test_a_life_goes_on_until_its_controller_has_heard_of_the_last_node(monkeypatch):
    """It slept when its last node ended with its lease; what became of the job was looked at as it woke."""
    assert not breaks(LOST_WHILE_THE_CONTROLLER_SLEPT)
    spent = verdict.budget_is_spent

    def looks_at_the_cloud_alone(stage):
        controller = stage.controllers.controller
        if controller is None or not stage.controllers.ready or stage.cloud.alive() or stage.users.waiting:
            return spent(stage)
        purse, now_s = controller.kernel.supply.purse, controller.now_s()
        return not any(purse.pays_for_one_more(offer, now_s) for offer in stage.cloud.offers)

    monkeypatch.setattr("sublet_lab.world.life.budget_is_spent", looks_at_the_cloud_alone)
    assert breaks(LOST_WHILE_THE_CONTROLLER_SLEPT) == "R"


def test_a_job_is_not_blamed_for_nodes_that_ended_for_want_of_a_controller(monkeypatch):
    """Each of four sleeps was longer than a lease: it failed as if it ended its agents."""
    assert not breaks(FOUR_SLEEPS)
    judge = Blame.judge_loss

    def knows_of_no_silence(self, *loss, **_):
        return judge(self, *loss)

    monkeypatch.setattr(Blame, "keep_time", lambda self, wall_s, lease_s: None)
    monkeypatch.setattr(Blame, "judge_loss", knows_of_no_silence)
    assert breaks(FOUR_SLEEPS) == "R"


def test_why_a_job_failed_is_known_from_the_log_where_it_was_not_written_beside_it(monkeypatch):
    """The controller was gone between the two: the next one knew that it had failed, and not of what."""
    assert not breaks(FAILED_WITHOUT_A_WORD)
    after = Memory._after

    def without_a_word(self, event, recorded, ended):
        told = news.JobFailed(event.at_s, event.job_id, "") if isinstance(event, news.JobFailed) else event
        after(self, told, recorded, ended)

    monkeypatch.setattr(Memory, "_after", without_a_word)
    assert breaks(FAILED_WITHOUT_A_WORD) == "R"


@pytest.mark.parametrize("story", [STALE_LOGS, STALE_LOGS_OF_THREE])
def test_a_new_controller_goes_on_with_the_pause_after_a_failed_start(monkeypatch, story):
    """The file server was away; the new one tried three times within a hundredth of a second, and gave the job up."""
    assert not breaks(story)
    monkeypatch.setattr(GroupCore, "_rests_on", lambda self, wall_s: False)
    monkeypatch.setattr(Regrouping, "_is_counted", lambda self, worker: False)
    assert breaks(story) == "R"


def test_groups_are_not_numbered_alike_where_a_store_is_put_back_and_the_clock_is_behind(monkeypatch):
    """Two controllers began on one copy, both by a clock that was behind it: each was one after the last."""
    assert not breaks(PUT_BACK_WITH_A_CLOCK_BEHIND)
    monkeypatch.setattr(context, "passed_s", lambda store, wall: 0.0)
    assert breaks(PUT_BACK_WITH_A_CLOCK_BEHIND) == "I5"
