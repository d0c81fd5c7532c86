"""Who is asked, in which order it counts, and what it holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sublet.domain import money
from sublet.domain.budget import Budget, Limit
from sublet.domain.offer import Market
from sublet.domain.plan import Phase
from sublet.perf.phased import Phased
from sublet.perf.speedup import Linear
from sublet.planning.terms import Refusals, Terms
from sublet.planning.value_of_time import value_of_time
from sublet.policies.price.choices import _describe_endless, ask
from sublet.policies.price.congestion import WAIT
from sublet.policies.price.decision import Decision, LeastWork, _just_stopped
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

OFFER = an_offer("o", gpus=1, usd_per_h="1", pool="p")


def linear(job_id, hours, submit_s=0.0, **facts):
    return a_job(job_id, submit_s=submit_s, work=3600.0 * hours, speed=Linear(), gpus=1, max_gpus=1, **facts)


def driver_with(*jobs, nodes):
    driver = Driver([OFFER], limits={"o": Limit(max_nodes=nodes)})
    driver.submit(*jobs)
    return driver


def asked_of(terms):
    decision = Decision.read(terms, value_of_time(terms).over, review_s=60.0)
    return ask(decision, decision.jobs)


def test_work_left_counts_over_the_weight_of_a_job():
    terms = Terms.from_snapshot(driver_with(linear("a", 8.0), linear("b", 8.0, weight=4.0), nodes=2).kernel.snapshot())
    asked, warnings = asked_of(terms)
    assert [state.job.id for state in asked.jobs.states] == ["b", "a"]  # the least work first
    assert asked.jobs.gpu_hours_J.tolist() == pytest.approx([2.0, 8.0])
    assert [LeastWork(terms.sites)(state) for state in asked.jobs.states] == pytest.approx([2.0, 8.0])
    assert not warnings


def test_who_has_waited_for_too_long_comes_before_who_has_less_to_do():
    driver = driver_with(linear("long", 9.0), linear("short", 1.0, 500.0), nodes=1)
    now = replace(driver.kernel.snapshot(), now_s=1000.0)
    patient, impatient = (Price(patience_s=patience_s).decide(now).shapes for patience_s in (86_400.0, 600.0))
    assert list(patient) == ["short"]
    assert list(impatient) == ["long"]


def test_on_a_cluster_a_second_too_long_counts_more_than_any_work_left():
    driver = Driver([OFFER], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(linear("long", 90.0), linear("short", 0.1, 500.0))
    now = replace(driver.kernel.snapshot(), now_s=1000.0)
    patient, impatient = (Price(patience_s=patience_s).decide(now).shapes for patience_s in (1000.0, 999.0))
    assert list(patient) == ["short"]
    assert list(impatient) == ["long"]


@pytest.mark.parametrize("speed", [Linear(), Phased(ends=(1800.0, 7200.0), rates=lambda gpu, spread: (1.0, 2.0))])
@pytest.mark.parametrize(
    ("hazard_per_h", "every_s", "why"),
    [(2.0, math.inf, "without a checkpoint"), (1e6, 600.0, "before any work is saved")],
)
def test_who_would_never_keep_any_work_waits_and_is_told_why(speed, hazard_per_h, every_s, why):
    spot = replace(OFFER, market=Market.SPOT, hazard_per_h=hazard_per_h, notice_s=0.0)
    job = a_job("a", work=7200.0, speed=speed, gpus=1, max_gpus=1, checkpoint_every_s=every_s, deadline_s=9e4)
    driver = Driver([spot], limits={"o": Limit(max_nodes=2)}, budget=Budget(average=money.Price.from_usd_per_h("2")))
    driver.submit(job)
    plan = Price().decide(driver.kernel.snapshot())
    assert plan.shapes == {}
    told = f"nodes of p are taken {why}: it is not thought to end there, and has nowhere else; it waits"
    assert plan.warnings == {"a": told}
    driver = Driver([spot, replace(OFFER, id="d", pool="d")], limits={"o": Limit(max_nodes=2)})
    driver.submit(job)
    plan = Price().decide(driver.kernel.snapshot())
    assert plan.shapes["a"].pool == "d"
    assert not plan.warnings


def test_a_job_that_lost_a_node_holds_nothing_whole():
    driver = driver_with(linear("a", 8.0), nodes=2)
    driver.settle(Price())
    now = driver.kernel.snapshot()
    (state,) = now.active.values()
    terms = Terms.from_snapshot(now)
    broken = replace(now, active={"a": replace(state, phase=Phase.BROKEN)})
    held = [
        Decision.read(each, value_of_time(each).over, review_s=60.0).jobs.whole_J[0]
        for each in (terms, Terms.from_snapshot(broken))
    ]
    assert held[0] != WAIT
    assert held[1] == WAIT


def test_who_gave_its_gpus_up_at_this_very_instant_is_not_asked_until_the_next():
    """It would go round in circles: only where GPUs are limited, and only who has run before."""
    driver = driver_with(linear("a", 8.0), nodes=1)
    (waits,) = driver.kernel.snapshot().waiting.by(lambda state: state.seq)

    def is_asked(now_s=50.0, limited=True, **facts):
        snapshot = replace((driver if limited else unlimited).kernel.snapshot(), now_s=now_s)
        return not _just_stopped(Terms.from_snapshot(snapshot), replace(waits, **facts))

    unlimited = Driver([OFFER])
    assert not is_asked(generation=1, held_since_s=50.0)
    assert is_asked(generation=1, held_since_s=49.0)
    assert is_asked(generation=0, held_since_s=50.0)
    assert is_asked(limited=False, generation=1, held_since_s=50.0)


def test_where_something_was_refused_nothing_is_given_up_to_ask_for_it_again(monkeypatch):
    """Through all of a decision: what `_without_gambles` strikes out is not chosen, of those that have a shape."""
    driver = driver_with(linear("a", 8.0), nodes=2)
    driver.settle(Price())
    driver.submit(linear("b", 8.0))
    terms = Terms.from_snapshot(driver.kernel.snapshot())
    seen = []

    def struck(options, state, own, refusals):
        seen.append((state.job.id, tuple(own), refusals))
        return replace(options, cost_C=options.cost_C + 1000.0)

    monkeypatch.setattr("sublet.policies.price.choices._without_gambles", struck)
    plain, _ = asked_of(terms)
    assert seen == []
    nothing, none = np.zeros(1), np.zeros(1, dtype=bool)
    refusals = Refusals(refused_R=none, coming_R=none, free_R=nothing, beside_R=nothing)
    some = replace(terms, refusals=refusals)
    found, _ = asked_of(some)
    assert seen == [("a", (0,), refusals)]
    more_J = found.table.cost_JC.min(axis=1) - plain.table.cost_JC.min(axis=1)
    assert dict(zip((state.job.id for state in found.jobs.states), more_J.tolist(), strict=True)) == {
        "a": pytest.approx(1000.0),
        "b": pytest.approx(0.0),
    }


@pytest.mark.parametrize(("gpus", "told"), [(4, False), (4 * 40, True)])
def test_that_no_work_would_be_kept_is_said_of_as_many_nodes_as_it_needs(gpus, told):
    """One node of four is seldom taken; of forty one goes before the job has come back from the last time."""
    spot = an_offer("o", gpus=4, usd_per_h="1", pool="p", hazard_per_h=300.0, notice_s=0.0)
    sites = Terms.from_snapshot(Driver([spot]).kernel.snapshot()).sites
    job = a_job("a", gpus=gpus, min_gpus=gpus, max_gpus=gpus, checkpoint_every_s=600.0, restart_s=60.0)
    assert bool(_describe_endless(job, sites)) is told
