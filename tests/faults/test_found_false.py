"""Lives in which the world, or a law, was wrong and not the code: each broke its law, and does so again as it was."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sublet.errors import BadInput, StaleController
from sublet.kernel.requests import PlanRequests
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.inbox import Ending, Hold
from sublet_lab.world import laws, users
from sublet_lab.world.fence import Fence
from sublet_lab.world.heap import World
from sublet_lab.world.laws import Laws
from sublet_lab.world.local import LocalCloud, WorldForker
from sublet_lab.world.script import Script
from sublet_lab.world.story import Fault, Story, draw_story
from sublet_lab.world.verdict import all_settled
from tests.rigs.shrunk import a_paced_job as a_job
from tests.rigs.shrunk import breaks

LOST_BEFORE_NONSENSE = Story(
    seed=745,
    jobs=(a_job("job2", 5.936, 1, (137, 1.0, 0.99, 0.924)),),
    faults=(
        Fault(at_s=83.878, kind="policy_nonsense", rng=235757998),
        Fault(at_s=98.244, kind="crash_call", rng=459969219),
    ),
    cloud="aws",
)
REFUSED_BEFORE_NONSENSE = Story(
    seed=1072,
    jobs=(a_job("job0", 24.654, 1, (565, 0.5, 1.473, 2.677), on_node_loss="restart", checkpoint_every_s=25.0),),
    faults=(
        Fault(at_s=80.839, kind="rent_lie", rng=882980675),
        Fault(at_s=152.466, kind="policy_nonsense", rng=107412796),
        Fault(at_s=207.034, kind="kill_controller", rng=633077453),
    ),
    cap=2.0,
)
FAILED_ON_A_SPENT_PURSE = Story(
    seed=803,
    jobs=(
        a_job("job0", 27.102, 1, (443, 0.5, 0.933, 2.413), hang_s=300.0, on_node_loss="fail", checkpoint_every_s=8.0),
        a_job("job1", 34.8, 1, (10, 0.5, 2.978, 2.345), on_node_loss="fail"),
    ),
    faults=(Fault(at_s=232.793, kind="hang_worker", rng=49386816),),
    purse_usd=0.0526,
    cap=2.0,
)
STALE_ON_A_FULL_DISK = Story(
    seed=17651,
    jobs=(a_job("job1", 1.786, 2, (568, 0.2, 2.562, 1.049), purse_usd=0.1703, checkpoint_every_s=8.0),),
    faults=(
        Fault(at_s=46.926, kind="second_controller", rng=191660310),
        Fault(at_s=47.277, kind="full_disk", rng=318515323),
    ),
    gpus_per_node=2,
)
ASLEEP_AS_THE_FAULTS_END = Story(
    seed=19434,
    jobs=(a_job("job2", 57.533, 3, (246, 1.0, 1.644, 2.882), purse_usd=0.0574),),
    faults=(
        Fault(at_s=140.246, kind="kill_agent", rng=910290141),
        Fault(at_s=203.763, kind="stop_agent", rng=49348456),
        Fault(at_s=279.108, kind="stop_agent", rng=938895016),
    ),
    most_nodes=2,
    paces=Paces(silence_s=1000.0),  # such a node is waited for, as it was when this was found
)
FORKED_AS_THE_MACHINE_WENT_DOWN = Story(
    seed=2768,
    jobs=(a_job("job0", 83.924, 1, (10, 0.5, 0.94, 2.38), hang_s=60.0, on_node_loss="replace"),),
    faults=(
        Fault(at_s=54.788, kind="rent_lie", rng=414464553),
        Fault(at_s=83.975, kind="restart_machine", rng=169824945),
    ),
    cloud="local",
    told_inside=True,
)
STUCK_IN_THE_KERNEL = Story(
    seed=14283,
    jobs=(
        a_job("job0", 72.114, 1, (129, 1.0, 3.743, 0.14), hang_s=60.0, on_node_loss="replace", checkpoint_every_s=8.0),
    ),
    faults=(Fault(at_s=160.721, kind="release_lie", rng=343423732),),
    cloud="local",
    told_inside=True,
)
STUCK_SCRIPT = Story(
    seed=1466,
    jobs=(
        a_job("job1", 27.803, 1, (265, 1.0, 0.654, 1.894), hang_s=300.0, sdk=False, on_node_loss="replace"),
        a_job("job2", 27.499, 2, (254, 0.5, 1.066, 1.442)),
    ),
    faults=(Fault(at_s=232.013, kind="release_lie", rng=422191364),),
    cloud="local",
    policy="price",
)
RESUMED_ON_A_FULL_DISK = Story(
    seed=2253,
    jobs=(
        a_job("job0", 65.256, 1, (10, 0.5, 3.502, 1.476), checkpoint_every_s=8.0),
        a_job("job1", 82.121, 1, (10, 0.2, 3.988, 1.548), hang_s=300.0, checkpoint_every_s=25.0),
    ),
    faults=(
        Fault(at_s=36.014, kind="user_pause", rng=663895032),
        Fault(at_s=115.454, kind="full_disk", rng=869335729),
    ),
)
PAUSED_AS_THE_PURSE_IS_SPENT = Story(
    seed=2120,
    jobs=(
        a_job("job1", 65.271, 1, (270, 0.5, 3.045, 0.196), hang_s=60.0, on_node_loss="replace", checkpoint_every_s=8.0),
    ),
    faults=(Fault(at_s=287.005, kind="user_pause", rng=226825078),),
    purse_usd=0.0392,
    cap=2.0,
)
ABOUT_TO_FAIL = Story(
    seed=2298,
    jobs=(
        a_job("job1", 42.004, 3, (403, 1.0, 1.55, 0.809), on_node_loss="fail", checkpoint_every_s=8.0),
        a_job("job2", 33.403, 1, (46, 1.0, 1.21, 2.09), hang_s=60.0, sdk=False),
    ),
    faults=(Fault(at_s=180.385, kind="take_untold", rng=18634556),),
    cloud="local",
    cap=2.0,
    told_inside=True,
)
RESUMED_BY_ONE_THAT_SLEPT = Story(
    seed=2726,
    jobs=(a_job("job1", 76.394, 1, (10, 1.0, 3.501, 1.637), hang_s=60.0, checkpoint_every_s=8.0),),
    faults=(
        Fault(at_s=95.435, kind="user_pause", rng=834298686),
        Fault(at_s=152.725, kind="stop_controller", rng=68386016),
        Fault(at_s=191.12, kind="second_controller", rng=605027024),
    ),
)
ORDERED_AND_REFUSED_AT_ONCE = Story(
    seed=50,
    jobs=(a_job("job0", 87.296, 1, (92, 0.5, 2.46, 1.797), checkpoint_every_s=8.0),),
    faults=(Fault(at_s=0.0, kind="crash_at", rng=106),),  # before commit 53
    most_nodes=4,
    keeps_records=False,
    cloud="local",
    paces=Paces(save_s=5.0, events_a_snapshot=20),
    http=True,
    cap=2.0,
    told_inside=True,
)


def test_an_order_without_a_written_answer_is_in_doubt_though_its_refusal_came_at_once(monkeypatch):
    """To the next controller it may have come, and counts for a lease. The law knew only of those it had seen open."""
    assert not breaks(ORDERED_AND_REFUSED_AT_ONCE)
    monkeypatch.setattr(laws, "unanswered", lambda disk, files: {})
    assert breaks(ORDERED_AND_REFUSED_AT_ONCE) == "I6"


def test_a_controller_that_was_succeeded_may_end_of_a_full_disk_before_it_learns_that():
    """It commits nothing, and ends: whichever it meets first."""
    assert not breaks(STALE_ON_A_FULL_DISK)
    ended = SimpleNamespace(done=lambda: True, cancelled=lambda: False, exception=lambda: OSError("the disk is full"))
    process = SimpleNamespace(pid=1, stopped_until_s=0.0, kill=lambda: None)
    for was_full, says in ((True, ""), (False, "controller 1 ended of OSError('the disk is full')")):
        fence = Fence(SimpleNamespace(was_full=was_full, commits_of=Counter()))
        slept = SimpleNamespace(process=process, running=ended, since_s=0.0, done=(0, 0), life=1)
        assert fence._judge(slept, 1.0) == says


@pytest.mark.parametrize("story", [LOST_BEFORE_NONSENSE, REFUSED_BEFORE_NONSENSE])
def test_a_job_is_not_stuck_while_a_policy_that_talked_nonsense_is_to_be_asked_again(monkeypatch, story):
    """Its node was lost, the plan that followed was refused, and the law did not count the timer of the next."""
    assert not breaks(story)
    monkeypatch.setattr(PlanRequests, "put_off", False)
    assert breaks(story) == "K"


def test_an_agent_that_sleeps_on_after_the_last_fault_cannot_renew_its_lease(monkeypatch):
    """Faults had ended for the law, and not for the agent: SIGSTOP lasts till somebody says otherwise."""
    assert not breaks(ASLEEP_AS_THE_FAULTS_END)
    lease_ended = Laws.lease_ended
    awake = SimpleNamespace(stopped_until_s=-math.inf)
    monkeypatch.setattr(Laws, "lease_ended", lambda self, one: lease_ended(self, replace(one, node=awake)))
    assert breaks(ASLEEP_AS_THE_FAULTS_END) == "L31"


def test_nobody_forks_for_a_controller_whose_machine_went_down_meanwhile(monkeypatch):
    """An order that was under way was carried out after the boot, beside the next controller's."""
    assert not breaks(FORKED_AS_THE_MACHINE_WENT_DOWN)
    monkeypatch.setattr(WorldForker, "_is_up_since", lambda self, boot: True)
    assert breaks(FORKED_AS_THE_MACHINE_WENT_DOWN) == "I2"


@pytest.mark.parametrize("story", [STUCK_IN_THE_KERNEL, STUCK_SCRIPT])
def test_a_process_with_its_sigkill_trains_no_more_though_the_kernel_still_shows_it(monkeypatch, story):
    """In the world it went on for as long as its end was waited for, beside its successor."""
    assert not breaks(story)
    monkeypatch.setattr(LocalCloud, "silence", lambda self, pid, start: None)
    assert breaks(story) == "I5"


def test_a_life_whose_purse_is_spent_goes_on_until_its_users_are_answered(monkeypatch):
    """The job waited for money as its owner paused it, and the world ended before they let it go on."""
    assert not breaks(PAUSED_AS_THE_PURSE_IS_SPENT)
    monkeypatch.setattr(users.Users, "waiting", property(lambda self: False))
    assert breaks(PAUSED_AS_THE_PURSE_IS_SPENT) == "R"


def test_a_life_whose_purse_is_spent_does_not_wait_for_who_was_given_up_and_has_failed():
    assert breaks(FAILED_ON_A_SPENT_PURSE) == ""


def test_a_job_that_is_given_up_has_not_come_to_its_end_before_it_has_failed():
    """It had saved and left, and the world ended a moment before it was told to have failed."""
    assert not breaks(ABOUT_TO_FAIL)
    record = SimpleNamespace(outcome=Ending.NONE, paused=Hold.GIVEN_UP)
    stage = SimpleNamespace(
        story=SimpleNamespace(jobs=ABOUT_TO_FAIL.jobs[:1]),
        users=SimpleNamespace(promised={"job1": "job1-1"}, refused={}, paused=set(), penniless=set()),
        controllers=SimpleNamespace(ready=True, controller=SimpleNamespace(records={"job1-1": record})),
    )
    assert not all_settled(stage)
    record.outcome = Ending.FAILED
    assert all_settled(stage)


class Refuses:
    """A controller that refuses once, by this error, and then does what it is asked."""

    border, alive = None, True

    def __init__(self, error):
        self.errors, self.resumed, self.api = [error], 0, self
        self.process = SimpleNamespace(dead=False, spawn=self.run_now)

    def run_now(self, work):
        with suppress(StopIteration):
            work.send(None)

    async def resume(self, job_id):
        if self.errors:
            raise self.errors.pop()
        self.resumed += 1


@pytest.mark.parametrize(
    ("story", "error"),
    [
        (RESUMED_ON_A_FULL_DISK, BadInput("the store", "the disk is full")),
        (RESUMED_BY_ONE_THAT_SLEPT, StaleController("the store", life=1, now=2)),
    ],
)
def test_users_who_hear_that_it_is_not_for_this_controller_ask_the_next(monkeypatch, story, error):
    """They took "the disk is full" or "another one has begun" for the answer: their job stayed held for ever."""
    assert not breaks(story)
    assert resumed_though(error) == 1
    monkeypatch.setattr(users, "NOT_HERE", ())
    assert resumed_though(error) == 0


def resumed_though(error) -> int:
    world, controller = World(1), Refuses(error)
    asking = users.Users(Story(seed=1, jobs=(), faults=()), world, controller)
    asking.promised["job"] = "job-1"
    asking.resume("job")
    world.run(world.now_s + 60.0)
    return controller.resumed


def test_a_script_whose_disk_is_away_as_it_starts_ends_with_an_error_and_does_not_begin_anew(monkeypatch):
    """Seed 268: its file was there, and the server of it did not answer."""
    story = draw_story(268, policy="price")
    assert not breaks(story)
    newest = Script._newest

    def whatever_is_wrong(script):
        with suppress(OSError):
            return newest(script)
        return 0

    monkeypatch.setattr(Script, "_newest", whatever_is_wrong)
    assert breaks(story) == "I4"
