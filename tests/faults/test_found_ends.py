"""What seeds have found since, of jobs that never ended and of money that ran on: lives as they were shrunk.

Each broke its law before the mend, and does so again without it.
"""

from __future__ import annotations

import pytest

from sublet.domain.plan import Phase
from sublet.kernel import kernel
from sublet.kernel.changing import with_gpus
from sublet.kernel.tenancy import Tenancy
from sublet.kernel.total import TotalBudget
from sublet.policies.fifo import Fifo
from sublet.runtime.controller.core.recovery import Recovery
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.jobs.attempts import Attempts
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.memory import table as stored_jobs
from sublet.runtime.group.build import build_group
from sublet.runtime.group.failures import WorkerCounts
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.providers.ray.cluster import Stewards
from sublet_lab.world import life
from sublet_lab.world.story import Fault, Story
from tests.rigs.shrunk import a_paced_job as a_job
from tests.rigs.shrunk import breaks

FAILED_IN_A_COMMIT = Story(
    seed=2317,
    jobs=(a_job("job0", 70.408, 2, (10, 1.0, 3.597, 0.179), hang_s=300.0, fails=3, checkpoint_every_s=8.0),),
    faults=(Fault(at_s=74.023, kind="crash_commit", rng=170883077),),
    paces=Paces(tick_s=1.0, sweep_s=15.0, agent_comes_s=45.0, rent_tries=3, events_a_snapshot=20),
    told_inside=True,
)
FAILED_ON_A_FULL_DISK = Story(
    seed=15330,
    jobs=(
        a_job(
            "job0",
            19.867,
            1,
            (10, 0.5, 3.133, 1.776),
            hang_s=60.0,
            fails=3,
            on_node_loss="replace",
            checkpoint_every_s=25.0,
        ),
    ),
    faults=(Fault(at_s=38.427, kind="full_disk", rng=492133210),),
    paces=Paces(
        tick_s=1.0,
        save_s=5.0,
        sweep_s=15.0,
        absences=2,
        agents_come_back_s=6.0,
        events_a_snapshot=5,
        jobs_kept=1,
        jobs_shelved=1,
        events_a_file=40,
        history_kept=10,
    ),
    told_inside=True,
)
LOST_BESIDE_A_NOTICED_NODE = Story(
    seed=8337,
    jobs=(a_job("job2", 41.898, 1, (437, 0.5, 3.764, 0.337)),),
    faults=(
        Fault(at_s=271.868, kind="hang_worker", rng=640873313),
        Fault(at_s=275.428, kind="notice", rng=383054183),
        Fault(at_s=296.036, kind="end_agent", rng=296065327),
    ),
)
REVIVED_WITH_ITS_PIN = Story(
    seed=5236,
    jobs=(
        a_job("job0", 51.154, 1, (132, 0.5, 0.588, 2.512), checkpoint_every_s=8.0),
        a_job("job1", 11.29, 2, (10, 1.0, 1.074, 2.485), hang_s=300.0, sdk=False, fails=3),
        a_job("job2", 50.519, 1, (255, 0.5, 2.164, 0.586), hang_s=300.0, checkpoint_every_s=8.0),
    ),
    faults=(Fault(at_s=220.653, kind="user_pause", rng=150638558),),
    purse_usd=0.1653,
)
SENT_BACK_WITH_EMPTY_HANDS = Story(
    seed=8213,
    jobs=(
        a_job("job0", 9.927, 2, (29, 0.2, 3.45, 0.375), hang_s=300.0, checkpoint_every_s=8.0),
        a_job("job1", 49.791, 3, (10, 0.2, 2.612, 2.839), hang_s=60.0, on_node_loss="restart", checkpoint_every_s=8.0),
    ),
    faults=(Fault(at_s=54.352, kind="second_controller", rng=87300783),),
    purse_usd=0.2428,
    policy="fifo",
)
GIVEN_UP_AND_NOT_ENDED = Story(
    seed=2836,
    jobs=(
        a_job("job0", 16.424, 2, (455, 0.2, 3.987, 2.429), on_node_loss="replace"),
        a_job("job1", 19.385, 1, (383, 1.0, 3.449, 1.525)),
    ),
    faults=(
        Fault(at_s=136.859, kind="take_untold", rng=957113398),
        Fault(at_s=263.23, kind="not_ended", rng=12439385),
    ),
    most_nodes=1,
    purse_usd=0.2202,
    cloud="aws",
    policy="fifo",
    think_s=3.0,
)
ASLEEP_AS_THE_PURSE_ENDS = Story(
    seed=1693,
    jobs=(a_job("job1", 15.039, 2, (68, 1.0, 2.794, 0.379), hang_s=60.0, on_node_loss="replace"),),
    faults=(Fault(at_s=70.457, kind="stop_controller", rng=788815697),),
    purse_usd=0.0755,
    cloud="aws",
    cap=2.0,
)
ENDED_BEYOND_THE_PURSE_WITH_NOBODY_THERE = Story(
    seed=2364,
    jobs=(
        a_job("job0", 30.936, 1, (134, 0.5, 1.943, 1.73), checkpoint_every_s=25.0),
        a_job(
            "job1", 14.864, 3, (147, 1.0, 0.645, 0.464), hang_s=300.0, on_node_loss="restart", checkpoint_every_s=25.0
        ),
    ),
    faults=(
        Fault(at_s=114.629, kind="restart_machine", rng=950050586),
        Fault(at_s=114.816, kind="full_disk", rng=704885177),
    ),
    gpus_per_node=1,
    most_nodes=4,
    purse_usd=0.0439,
    keeps_records=True,
    cloud="ray",
    policy="max-speedup",
    think_s=0.02,
    lease_s=30.0,
    span_s=300.0,
    http=False,
    cap=2.0,
    told_inside=True,
)
TOLD_TO_COME_BACK = Story(
    seed=1482,
    jobs=(
        a_job("job0", 33.456, 3, (133, 1.0, 3.598, 0.914), hang_s=60.0, sdk=False, purse_usd=0.0821),
        a_job("job1", 27.257, 3, (444, 0.5, 2.764, 2.525), hang_s=60.0, sdk=False, fails=1, on_node_loss="fail"),
        a_job("job2", 37.816, 2, (586, 1.0, 3.28, 0.343), fails=3, checkpoint_every_s=8.0),
    ),
    faults=(
        Fault(at_s=70.907, kind="full_disk", rng=566754684),
        Fault(at_s=105.165, kind="end_agent", rng=856333424),
        Fault(at_s=127.708, kind="price_garbage", rng=438742125),
    ),
    most_nodes=4,
    keeps_records=False,
    cloud="aws",
    policy="price",
    paces=Paces(agents_come_back_s=6.0, rent_tries=3, events_a_snapshot=20),
    http=True,
    told_inside=True,
)
STEWARD_SILENT_AT_A_START = Story(
    seed=4708,
    jobs=(a_job("job0", 30.913, 1, (335, 0.5, 3.604, 0.806), hang_s=300.0),),
    faults=(
        Fault(at_s=142.253, kind="list_lie", rng=245366845),
        Fault(at_s=177.618, kind="crash_commit", rng=647650093),
    ),
    cloud="ray",
)
RESIZED_BY_A_SILENT_STEWARD = Story(
    seed=3212,
    jobs=(a_job("job1", 69.88, 2, (10, 0.2, 2.491, 0.344), checkpoint_every_s=25.0),),
    faults=(
        Fault(at_s=43.287, kind="list_lie", rng=247984399),
        Fault(at_s=85.206, kind="flags", rng=774987278),
    ),
    cloud="ray",
    told_inside=True,
)
FORMS_NO_MORE_WHERE_IT_DID = Story(
    seed=2635,
    jobs=(a_job("job0", 40.972, 3, (348, 0.5, 1.962, 1.837), checkpoint_every_s=25.0),),
    faults=(
        Fault(at_s=92.01, kind="kill_agent", rng=359633737),
        Fault(at_s=177.628, kind="rot", rng=852745365),
        Fault(at_s=181.945, kind="too_wide", rng=287013715),
        Fault(at_s=247.088, kind="too_wide", rng=433844310),
    ),
    paces=Paces(silence_s=1000.0),  # a node without an agent is waited for, as it was when this was found
)
ENDED_WHILE_UNREADABLE = Story(
    seed=305,
    jobs=(a_job("job0", 47.85, 1, (82, 0.2, 3.91, 1.823), hang_s=300.0, sdk=False, on_node_loss="replace"),),
    faults=(Fault(at_s=72.034, kind="foreign_job", rng=199419923),),
    cloud="aws",
    cap=2.0,
    told_inside=True,
)


@pytest.mark.parametrize("story", [FAILED_IN_A_COMMIT, FAILED_ON_A_FULL_DISK])
def test_a_job_that_failed_as_its_controller_died_is_not_started_by_the_next(monkeypatch, story):
    """How it ended was written down, and the kernel had not heard of it: its last order was given again."""
    assert not breaks(story)

    def finish_moves(self):
        wall_s = self._clock.wall.monotonic()
        for record in self._table.records.values():
            record.group.all_agents_came(wall_s)
            self._groups.heal(record)
            self._groups.touch(record)
        self._pump.carry_on()

    monkeypatch.setattr(Recovery, "_finish_moves", finish_moves)
    assert breaks(story) == "P"


def test_a_job_whose_new_node_is_lost_while_its_old_one_is_noticed_waits_for_another(monkeypatch):
    """It still held as many GPUs as it was promised, all of them about to be taken: it stood in no line."""
    assert not breaks(LOST_BESIDE_A_NOTICED_NODE)

    def lose_node(self, node, event):
        for job_id in list(node.jobs):
            survives, state = self._placements.lose(job_id, node.id), self.jobs[job_id]
            state = with_gpus(state, survives, Phase.BROKEN, self.now_s)
            self._store(state)
            if state.shape is None or state.shape.gpus <= state.gpus:
                self.settle(state)
            else:
                self.enqueue(state)

    monkeypatch.setattr(Tenancy, "lose_node", lose_node)
    assert breaks(LOST_BESIDE_A_NOTICED_NODE) == "L"


def test_a_script_that_failed_and_is_tried_again_may_have_another_width(monkeypatch):
    """It was held to the two workers that it once had, and the budget paid for one."""
    assert not breaks(REVIVED_WITH_ITS_PIN)
    revive, submit = Lifecycle.revive, Lifecycle.submit

    def with_its_pin(self, record):
        pinned = record.pinned

        def pin_and_submit(jobs, record):
            record.pinned = pinned
            submit(jobs, record)

        monkeypatch.setattr(Lifecycle, "submit", pin_and_submit)
        revive(self, record)
        monkeypatch.setattr(Lifecycle, "submit", submit)

    monkeypatch.setattr(Lifecycle, "revive", with_its_pin)
    assert breaks(REVIVED_WITH_ITS_PIN) == "L"


def test_a_job_without_gpus_that_is_sent_back_queues_in_the_same_plan(monkeypatch):
    """It was promised three nodes and the budget pays for two: nothing happened after that, so nobody planned again."""
    assert not breaks(SENT_BACK_WITH_EMPTY_HANDS)
    send_back = Fifo._send_back_the_last
    monkeypatch.setattr(Fifo, "_send_back_the_last", lambda self, draft: send_back(self, draft)[:0])
    assert breaks(SENT_BACK_WITH_EMPTY_HANDS) == "L"


def test_a_node_that_its_cloud_does_not_end_does_not_keep_others_beyond_the_purse(monkeypatch):
    """What it reserved was to pay for the others; it is gone by its own bill."""
    monkeypatch.setattr(kernel, "let_go", lambda *_: None)  # two nodes for one job: one that is lost is rented again
    assert not breaks(GIVEN_UP_AND_NOT_ENDED)
    monkeypatch.setattr(TotalBudget, "is_overdue", lambda self, now_s: False)
    monkeypatch.setattr(TotalBudget, "is_exceeded", lambda self, now_s: False)
    assert breaks(GIVEN_UP_AND_NOT_ENDED) == "K"


def test_a_controller_that_slept_past_the_end_of_its_purse_gives_all_nodes_up(monkeypatch):
    """It gave half of them up, as if it had looked in time: nothing was left that paid for the other half."""
    assert not breaks(ASLEEP_AS_THE_PURSE_ENDS)
    monkeypatch.setattr(TotalBudget, "is_exceeded", lambda self, now_s: False)
    assert breaks(ASLEEP_AS_THE_PURSE_ENDS) == "K"


def test_a_purse_that_its_last_node_passed_while_nobody_was_there_is_spent(monkeypatch):
    """The node had ended with its lease: nothing was billed any more, so nobody looked at the budget."""
    assert not breaks(ENDED_BEYOND_THE_PURSE_WITH_NOBODY_THERE)
    monkeypatch.setattr(TotalBudget, "is_exceeded", lambda self, now_s: False)
    assert breaks(ENDED_BEYOND_THE_PURSE_WITH_NOBODY_THERE) == "K"


def test_a_script_is_not_held_to_a_width_that_it_leaves_at_once(monkeypatch):
    """It went from two workers to three and back for ever: each time it was held to where it had just been."""
    monkeypatch.setattr(life, "PEACE_S", 60.0)  # what ends, has ended before; what does not makes thousands of moves
    assert not breaks(TOLD_TO_COME_BACK)

    def hold_in_place(self, record):
        held = self._inbox.kernel.tenancy.placement.get(record.id, ())
        if record.id in self._running and not self._running[record.id].kept and held:
            pool = self._inbox.kernel.cluster.nodes[held[0][0]].offer.pool
            self._pin(record, (pool, sum(gpus for _, gpus in held)))

    monkeypatch.setattr(Attempts, "hold_in_place", hold_in_place)
    assert breaks(TOLD_TO_COME_BACK) == "L"


@pytest.mark.parametrize("story", [STEWARD_SILENT_AT_A_START, RESIZED_BY_A_SILENT_STEWARD])
def test_a_steward_that_did_not_answer_a_new_controller_is_asked_again(monkeypatch, story):
    """Its one silence was kept for ever: what it held could not be given back, by nobody."""
    assert not breaks(story)
    monkeypatch.setattr(Stewards, "_known", lambda self, ray_node: self._cards.get(ray_node))
    assert breaks(story) == "L"


def test_a_job_whose_group_forms_no_more_where_it_did_goes_on_with_fewer_before_it_is_given_up(monkeypatch):
    """It had trained on three, so nothing narrower was tried: it failed of a network that was not its own."""
    assert not breaks(FORMS_NO_MORE_WHERE_IT_DID)
    monkeypatch.setattr(WorkerCounts, "last_resort", lambda self, width, spec: None)
    assert breaks(FORMS_NO_MORE_WHERE_IT_DID) == "R"


def test_a_script_that_ended_well_while_its_specification_could_not_be_read_has_finished(monkeypatch):
    """What stood in for its specification had a session, and the script was failed for never opening it."""
    assert not breaks(ENDED_WHILE_UNREADABLE)
    stand_in = stored_jobs._stand_in
    monkeypatch.setattr(stored_jobs, "_stand_in", lambda job_id, *, sdk: stand_in(job_id, sdk=True))
    assert breaks(ENDED_WHILE_UNREADABLE) == "R"


def test_nobody_of_a_job_that_cannot_be_read_is_started():
    """Its agents would run what stands in for its script."""
    spec = JobSpec(name="job", argv=("false",), cwd="/", sdk=False)
    for barred, started in ((False, 1), (True, 0)):
        group = build_group("job-1", spec, log_of=str, env=dict)
        group.barred = barred
        group.move(1, (("n1", 1),), 0, 0.0)
        assert len(group.workers) == len(group.outbox) == started
