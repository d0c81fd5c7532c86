"""Laws R and J: a job that could finish does, one that ends otherwise has cause to, and its own purse holds."""

from __future__ import annotations

import pytest

from sublet.errors import Infeasible
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.jobs.node_loss import NodeLosses
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.group.failures import Patience
from sublet_lab.world.life import live
from sublet_lab.world.story import Fault, JobPlan, Story


def a_life(*faults, **facts):
    plan = {"max_workers": 2, "steps": 300, "step_s": 0.5, "boot_s": 2.0, "write_s": 1.0, **facts}
    story = Story(seed=1, jobs=(JobPlan(name="job0", at_s=5.0, **plan),), faults=faults, most_nodes=2)
    outcome = live(story)
    return outcome.broken and outcome.broken.law, outcome.ends


def test_a_job_finishes_though_it_loses_a_node_or_a_worker():
    for kind in ("take_told", "take_untold", "kill_worker"):
        assert a_life(Fault(at_s=70.0, kind=kind, rng=1)) == (None, {"finished": 1})


def test_whoever_fails_has_cause_to():
    assert a_life(fails=1) == (None, {"failed: own error": 1})  # before its first step: it would fail again
    assert a_life(fails=3, sdk=False) == (None, {"failed: own error": 1})
    loss = Fault(at_s=70.0, kind="take_told", rng=1)
    assert a_life(loss, on_node_loss="fail") == (None, {"failed: lost a node": 1})


def test_a_controller_that_fails_jobs_at_any_loss_breaks_a_law(monkeypatch):
    def lose(self, record, node_id):
        record.blamed = f"it lost {node_id}, and that is that"
        return []

    monkeypatch.setattr(NodeLosses, "lose", lose)
    law, _ = a_life(Fault(at_s=70.0, kind="take_told", rng=1))
    assert law == "R"


def test_a_controller_without_patience_breaks_a_law(monkeypatch):
    monkeypatch.setattr(Patience, "is_spent", lambda self, failure, counts, retries, wall_s: True)
    law, _ = a_life(Fault(at_s=70.0, kind="kill_worker", rng=1))
    assert law == "R"


def test_a_controller_that_takes_no_job_breaks_a_law(monkeypatch):
    async def submit(self, spec, *, key="", by=""):
        raise Infeasible(spec.name, binding="taste", needed=1.0, available=0.0)

    monkeypatch.setattr(ControllerApi, "submit", submit)
    assert a_life() == ("R", {"refused": 1})


@pytest.mark.parametrize("no_forks", range(3))
def test_a_machine_that_starts_no_more_processes_is_not_the_jobs_fault(no_forks):
    """R, seed 103: a worker that could not be forked was taken for the script's own failure, and the job failed."""
    kill = Fault(at_s=60.0, kind="kill_worker", rng=1)
    assert a_life(Fault(at_s=50.0, kind="no_forks", rng=no_forks), kill)[0] is None


def test_a_job_that_has_spent_its_own_purse_is_held():
    assert a_life(purse_usd=0.01) == (None, {"held: budget": 1})


def test_a_controller_that_does_not_look_into_that_purse_breaks_a_law(monkeypatch):
    monkeypatch.setattr(Lifecycle, "watch_purse", lambda self, record: False)
    assert a_life(purse_usd=0.01)[0] == "J"
