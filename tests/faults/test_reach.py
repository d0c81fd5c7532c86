"""Kinds that reach what others do not: each does what it says, is counted where it strikes, and no law breaks by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.jobs import feasibility
from sublet.runtime.controller.nodes import nodes
from sublet_lab.world.kinds import stores
from sublet_lab.world.life import Life, live
from sublet_lab.world.story import Fault, JobPlan, Story

JOB = JobPlan(
    name="job0", at_s=1.0, max_workers=2, steps=600, step_s=1.0, boot_s=1.0, write_s=0.5, checkpoint_every_s=8.0
)
LATER = replace(JOB, name="job1", at_s=60.0, max_workers=1, steps=60)
SHORT = Paces(events_a_snapshot=5, events_a_file=10, history_kept=1000, jobs_kept=10, jobs_shelved=10)


def told(*faults: Fault, **facts: object) -> tuple[dict[str, int], str]:
    """Effects by kind, and all that people can read of such a life."""
    life = Life(Story(**{"seed": 1, "jobs": (JOB, LATER), "faults": faults, **facts}), keep_history=True)
    outcome = life.live()
    assert outcome.broken is None
    return outcome.effects, "\n".join(f"{kind}: {text}" for _, kind, text in life.history)


def test_an_older_backup_is_put_back_and_what_was_rented_since_is_found_and_ended():
    effects, history = told(Fault(at_s=0.5, kind="older_backup", rng=2))
    assert effects["older_backup"] == 1
    assert "was rented after this log ends, and is ended" in history


def test_a_backup_that_is_older_than_a_group_that_trained_breaks_no_law(monkeypatch):
    monkeypatch.setattr(stores, "OLDER", 1.0)
    effects, history = told(Fault(at_s=0.5, kind="older_backup", rng=2))
    assert effects["older_backup"] == 1
    assert "was rented after this log ends, and is ended" in history


def test_a_law_breaks_where_strangers_are_not_looked_for(monkeypatch):
    monkeypatch.setattr(nodes, "unknown_among", lambda *_: None)
    story = Story(seed=1, jobs=(JOB, LATER), faults=(Fault(at_s=0.5, kind="older_backup", rng=2),))
    assert live(story).broken is not None


@pytest.mark.parametrize(("damage", "rng"), [("", 0), ("{", 1), ("[1]", 2), ("", 3)])
def test_snapshots_that_cannot_be_read_are_passed_over(monkeypatch, damage, rng):
    """An empty one too: it once counted as none at all, and what was before it was forgotten (seeds 7, 10 and 11)."""
    monkeypatch.setattr(stores, "DAMAGES", (damage,))
    effects, history = told(Fault(at_s=120.0, kind="damaged_snapshot", rng=rng), paces=SHORT)
    assert effects["damaged_snapshot"] == 1
    assert "cannot be read: an older one is used" in history


def test_a_job_that_no_rule_allows_is_held_until_it_is_what_it_was(monkeypatch):
    monkeypatch.setattr(stores, "ALL_FOREIGN", 0.0)
    found = [told(Fault(at_s=40.0, kind="foreign_job", rng=rng)) for rng in range(3)]
    assert all(effects["foreign_job"] == 1 for effects, _ in found)
    assert all("is held, for it cannot be run" in history for _, history in found)


@pytest.mark.parametrize("written", stores.NEWER_STORES)
def test_a_store_of_a_newer_program_is_left_as_it_is_until_that_is_installed_again(monkeypatch, written):
    monkeypatch.setattr(stores, "ALL_FOREIGN", 1.0)
    monkeypatch.setattr(stores, "NEWER_STORES", (written,))
    life = Life(Story(seed=1, jobs=(JOB,), faults=(Fault(at_s=40.0, kind="foreign_job", rng=1),)))
    outcome = life.live()
    assert outcome.broken is None
    assert outcome.effects["foreign_job"] == 1
    assert outcome.lives > 2


def test_a_slow_node_is_told_and_counted():
    lives = [told(Fault(at_s=60.0, kind="slow_node", rng=rng), most_nodes=3, jobs=(JOB,)) for rng in range(3)]
    assert all(effects["slow_node"] == 1 for effects, _ in lives)
    assert any("as long as its peers" in history for _, history in lives)


def test_a_job_whose_groups_do_not_form_goes_on_with_fewer():
    effects, history = told(Fault(at_s=0.5, kind="too_wide", rng=5), jobs=(JOB,))
    assert effects["too_wide"] == 1
    assert "cannot train on 2 workers" in history


def test_questions_are_answered_and_what_cannot_run_is_refused():
    effects, _ = told(
        *(Fault(at_s=at_s, kind=kind, rng=7) for at_s in (30.0, 90.0) for kind in ("user_asks", "user_bids"))
    )
    assert effects["user_asks"] == 2
    assert effects["user_bids"] == 2


def test_a_job_that_can_never_run_and_is_taken_breaks_a_law(monkeypatch):
    monkeypatch.setattr(feasibility.Feasibility, "refuse_beyond_limits", lambda *_: None)
    faults = tuple(Fault(at_s=30.0 + rng, kind="user_bids", rng=rng) for rng in range(6))
    assert str(live(Story(seed=1, jobs=(JOB,), faults=faults)).broken).startswith("W: ")


def test_a_policy_that_talks_nonsense_is_asked_again():
    effects, history = told(Fault(at_s=0.5, kind="policy_nonsense", rng=1))
    assert effects["policy_nonsense"] == 1
    assert "the policy" in history


def test_codes_of_ec2_are_answers_that_a_job_outlives():
    faults = [Fault(at_s=21.0 + 7.0 * rng, kind="ec2_code", rng=rng) for rng in range(8)]
    effects, _ = told(*faults, cloud="aws")
    assert effects["ec2_code"] >= 3


def test_a_controller_that_starts_while_ec2_refuses_to_list_ends_and_says_so():
    """Seed 3873, made small: whoever starts it again, once it is allowed to, has its job."""
    brief = JobPlan(name="job0", at_s=43.692, max_workers=1, steps=10, step_s=1.0, boot_s=3.93, write_s=1.558)
    refused = Fault(at_s=23.72, kind="ec2_code", rng=545317104)
    faults = (refused, Fault(at_s=48.08, kind="kill_controller", rng=1))
    outcome = live(Story(seed=3873, jobs=(brief,), faults=faults, cloud="aws"))
    assert outcome.broken is None
    assert outcome.effects["ec2_code"] == 1
    assert outcome.lives > 2


def test_a_script_that_was_stopped_is_not_held_to_a_width_that_the_purse_no_longer_pays_for():
    """Seed 3013 of foreign jobs, made small: who stopped it knew nothing of its start, and left it pinned."""
    script = JobPlan(
        name="job2",
        at_s=2.514,
        max_workers=3,
        steps=10,
        step_s=1.0,
        boot_s=3.872,
        write_s=1.569,
        hang_s=300.0,
        sdk=False,
        fails=3,
        on_node_loss="replace",
    )
    paces = Paces(
        tick_s=1.0,
        absences=2,
        agent_comes_s=45.0,
        agents_come_back_s=6.0,
        rent_tries=3,
        events_a_snapshot=20,
        jobs_kept=0,
        jobs_shelved=1,
        events_a_file=40,
        history_kept=60,
    )
    story = Story(
        seed=3013,
        jobs=(script,),
        faults=(Fault(at_s=29.5, kind="foreign_job", rng=1),),
        gpus_per_node=1,
        most_nodes=3,
        purse_usd=0.0636,
        cloud="aws",
        think_s=3.0,
        paces=paces,
        lease_s=30.0,
        span_s=300.0,
        cap=2.0,
        told_inside=True,
    )
    outcome = live(story)
    assert outcome.broken is None
    assert outcome.effects["foreign_job"] == 1
