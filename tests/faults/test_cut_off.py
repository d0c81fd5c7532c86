"""A host that is cut off holds nobody up until its lease ends, and trains nothing twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet_lab.world.life import Life, live
from sublet_lab.world.network import CONTROLLER
from sublet_lab.world.story import Fault, JobPlan, Story

JOB = JobPlan(name="job0", at_s=1.0, max_workers=3, steps=300, step_s=1.0, boot_s=1.0, write_s=0.5)
AT_S, FOR_S, LEASE_S = 60.0, 100.0, 300.0
SOON_S = 40.0  # the silence itself, the pings before it and a tick


def led(*, cut=None, strike=None, for_s=FOR_S, lease_s=LEASE_S, job=JOB, cloud="plain", span_s=600.0, **facts):
    """The life of a job; `cut` says between whom nothing passes for a while, or `strike` does something else."""
    found = []

    def watch(life):
        def part():
            hosts = [instance.node_id for instance in life.cloud.alive()]
            ways = [way for here, there in cut(hosts) for way in ((here, there), (there, here))]
            found.extend(hosts)
            life.stage.network.block(*ways)
            life.stage.parted_until_s |= dict.fromkeys(hosts, life.stage.world.now_s + for_s)
            life.stage.world.after(for_s, life.stage.network.unblock, *ways)

        life.stage.world.after(AT_S, part if strike is None else lambda: strike(life.stage))

    story = Story(seed=1, jobs=(job,), faults=(), most_nodes=3, lease_s=lease_s, span_s=span_s, cloud=cloud, **facts)
    life = Life(story, watch, keep_history=True)
    outcome = life.live()
    assert outcome.broken is None, outcome.broken
    return outcome, life, found


def last_from_all(hosts):
    return [(hosts[-1], other) for other in (CONTROLLER, *hosts[:-1])]


def last_from_controller(hosts):
    return [(hosts[-1], CONTROLLER)]


def all_from_controller(hosts):
    return [(host, CONTROLLER) for host in hosts]


def times(life, what):
    return [at_s for at_s, kind, _ in life.history if kind.split()[0] == what]


@pytest.mark.parametrize("cloud", ["plain", "aws"])
def test_the_others_go_on_from_memory_and_take_it_in_again(cloud):
    outcome, life, hosts = led(cut=last_from_all, cloud=cloud)
    (silent_s,) = times(life, "NodeSilent")
    resized_s = times(life, "JobResized")
    assert AT_S < silent_s < resized_s[0] < AT_S + SOON_S
    assert resized_s[1] > AT_S + FOR_S  # as wide as before
    assert outcome.ends == {"finished": 1}
    truth = life.stage.truth.jobs["job0-1"]
    assert truth.redone == 0
    rented = [what for _, what, _ in life.history if what.startswith("RentNode")]
    assert len(rented) == len(hosts) == 3  # none in its place, and it was not given back


def test_five_minutes_are_a_third_of_the_lease_on_aws_and_cost_no_step():
    job = replace(JOB, steps=700)
    outcome, life, hosts = led(cut=last_from_all, for_s=300.0, lease_s=900.0, span_s=1200.0, job=job, cloud="aws")
    (silent_s,) = times(life, "NodeSilent")
    narrower_s, wider_s = times(life, "JobResized")
    assert AT_S < silent_s < narrower_s < AT_S + SOON_S
    assert AT_S + 300.0 < wider_s < AT_S + 300.0 + SOON_S  # taken in again as soon as it is heard
    assert outcome.ends == {"finished": 1}
    assert life.stage.truth.jobs["job0-1"].redone == 0
    rented = [what for _, what, _ in life.history if what.startswith("RentNode")]
    assert len(rented) == len(hosts) == 3


def test_a_script_without_the_sdk_begins_again_without_it():
    job = replace(JOB, sdk=False)
    outcome, life, _ = led(cut=last_from_all, job=job)
    assert AT_S < times(life, "NodeSilent")[0] < times(life, "JobResized")[0] < AT_S + SOON_S
    assert outcome.ends == {"finished": 1}


@pytest.mark.parametrize("cut", [last_from_controller, all_from_controller])
def test_one_that_still_makes_steps_is_left_alone(cut):
    """It is the line to us that is gone, and they train on."""
    outcome, life, _ = led(cut=cut)
    assert times(life, "NodeSilent") == times(life, "JobResized") == []
    assert outcome.ends == {"finished": 1}


def test_where_the_node_stays_away_its_lease_ends_it_and_another_is_rented():
    outcome, life, _ = led(cut=last_from_all, for_s=400.0, lease_s=60.0, job=replace(JOB, steps=500))
    (silent_s,), lost_s = times(life, "NodeSilent"), [*times(life, "NodeLost"), *times(life, "NodeReleased")]
    assert silent_s < AT_S + SOON_S < min(lost_s) < AT_S + 60.0 + SOON_S
    assert max(times(life, "NodeReady")) > min(lost_s)
    assert outcome.ends == {"finished": 1}


def test_a_job_that_is_to_fail_with_a_node_is_not_failed_by_silence():
    _, life, _ = led(cut=last_from_all, job=replace(JOB, on_node_loss=str(OnNodeLoss.FAIL)))
    assert times(life, "NodeSilent") == []


def test_a_controller_that_slept_takes_nobody_for_silent():
    """The others are heard as it wakes, one is back a moment later: it was deaf for as long as that was silent."""

    def strike(stage):
        hosts = [instance.node_id for instance in stage.cloud.alive()]
        ways = [way for here, there in last_from_all(hosts) for way in ((here, there), (there, here))]
        stage.network.block(*ways)
        stage.parted_until_s |= dict.fromkeys(hosts, stage.world.now_s + 44.0)
        stage.controllers.process.stop_for(40.0)
        stage.world.after(44.0, stage.network.unblock, *ways)

    _, life, _ = led(strike=strike)
    assert times(life, "NodeSilent") == times(life, "JobResized") == []


def test_a_new_controller_hears_of_one_that_was_silent_before_it():
    def strike(stage):
        hosts = [instance.node_id for instance in stage.cloud.alive()]
        ways = [way for here, there in last_from_all(hosts) for way in ((here, there), (there, here))]
        stage.network.block(*ways)
        stage.parted_until_s[hosts[-1]] = stage.world.now_s + 150.0
        stage.world.after(SOON_S, lambda: stage.controllers.crash(stage.controllers.process))
        stage.world.after(150.0, stage.network.unblock, *ways)

    outcome, life, _ = led(strike=strike, job=replace(JOB, steps=500))
    assert len(times(life, "NodeSilent")) == 1
    assert outcome.lives == 2
    assert outcome.ends == {"finished": 1}
    assert life.stage.truth.jobs["job0-1"].redone == 0


def test_an_agent_that_sleeps_beside_a_worker_that_trains_alone_is_no_host_that_is_cut_off():
    """Newcomers stood by, and it could not be told of them: they would have begun from its checkpoint beside it."""
    job = JobPlan(
        name="job2", at_s=57.533, max_workers=3, steps=246, step_s=1.0, boot_s=1.644, write_s=2.882, purse_usd=0.0574
    )
    faults = [(140.246, "kill_agent", 910290141), (203.763, "stop_agent", 49348456), (279.108, "stop_agent", 938895016)]
    struck = tuple(Fault(at_s=at_s, kind=kind, rng=rng) for at_s, kind, rng in faults)
    outcome = live(Story(seed=19434, jobs=(job,), faults=struck, most_nodes=2))
    assert outcome.broken is None, outcome.broken
