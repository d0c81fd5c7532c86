"""Trials: the policy asked under other terms, and the start of a simulated future.

Nothing of it changes anything. Only `set_hour`, which is asked for apart, does: what an hour of a job is worth.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from sublet.domain.job import Pauses, Speed
from sublet.domain.plan import JobState, Plan, Policy, Snapshot
from sublet.domain.timers import Timer
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue, NoSuchJob
from sublet.policies.price.policy import Price
from sublet.runtime.controller.memory import kernel_job
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.controller_api.explain import alternatives_of, weigh_by_rent
from sublet.runtime.controller_api.money import change_budget
from sublet.runtime.controller_api.views import AlternativeView
from sublet.runtime.store import MetaKey

if TYPE_CHECKING:
    from sublet.runtime.controller.core import Controller


class TrialJobView(TypedDict):
    """One job as it is, and as the tried plan would have it. None where it has nothing, or it is unknown."""

    job_id: str
    name: str
    shape: str
    shape_then: str
    workers: int
    workers_then: int
    usd_per_h: float | None
    usd_per_h_then: float | None
    left_s: float | None
    left_s_then: float | None
    left_usd: float | None
    left_usd_then: float | None
    reason: str


class TrialView(TypedDict):
    """The plan that would be made now under other terms. Jobs that would stay as they are are not in it."""

    now_s: float
    value_of_time_usd_per_h: float | None  # that the plan rests on
    usd_per_h: float  # of all that is rented now
    usd_per_h_then: float  # and with these jobs as they would be
    jobs: list[TrialJobView]
    alternatives: list[AlternativeView]  # of the job that was asked about, weighed under these terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All that a future begins with, to be sent to another process."""

    kernel: Mapping[str, Any]  # as Kernel.facts
    speeds: Mapping[str, tuple[Speed, Pauses | None]]  # by job
    names: Mapping[str, str]  # by job
    policy: Policy
    now_s: float
    timers: Mapping[Timer, float]
    doomed_s: Mapping[str, float]  # nodes that will be taken, and when
    says_supply: bool  # the cloud says how many nodes there are
    market: tuple[str, ...]  # records that the provider replays
    notice_s: float


class Trials:
    """Of one controller."""

    def __init__(self, controller: Controller, *, market: tuple[str, ...], notice_s: float) -> None:
        self._controller, self._market, self._notice_s = controller, market, notice_s
        if (kept := controller.store.get(MetaKey.HOUR)) is not None:
            controller.planner.policy = _with_hour(controller.planner.policy, float(kept))

    def standing(self) -> Standing:
        """As of now."""
        controller, kernel = self._controller, self._controller.kernel
        speeds = {job_id: (state.job.speed, state.job.pauses) for job_id, state in kernel.jobs.items()}
        for record in controller.records.values():  # those that have ended: what arrives is learned from them, too
            if record.id not in speeds:
                job = kernel_job(record, controller.clock.speedup)
                speeds[record.id] = (job.speed, job.pauses)
        states = [kernel.supply.offering.state(offer_id) for offer_id in kernel.supply.offers]
        return Standing(
            kernel=kernel.facts(),
            speeds=speeds,
            names={job_id: controller.records[job_id].spec.name for job_id in kernel.jobs},
            policy=controller.planner.policy,
            now_s=max(controller.now_s(), kernel.now_s),
            timers={timer: each.at_s for timer, each in controller.memory.timers.items()},
            doomed_s={
                node: at_s for node, at_s in controller.context.nodes.doomed_s.items() if node in kernel.cluster.nodes
            },
            says_supply=any(state.capacity for state in states),
            market=self._market,
            notice_s=self._notice_s,
        )

    async def plan(
        self,
        *,
        job_id: str | None = None,
        hour_usd: float | None = None,
        burn_limit_usd_per_h: float | None = None,
        average_usd_per_h: float | None = None,
        purse_usd: float | None = None,
    ) -> TrialView:
        """The plan of the policy now; None leaves a term as it is."""
        controller = self._controller
        snapshot = controller.kernel.snapshot(frozen=True)
        budget = change_budget(
            snapshot.budget,
            burn_limit_usd_per_h=burn_limit_usd_per_h,
            average_usd_per_h=average_usd_per_h,
            purse_usd=purse_usd,
        )
        policy = controller.planner.policy
        if hour_usd is not None:
            _refuse_two_values(budget.average is not None or budget.until_s is not None, hour_usd)
            policy = _with_hour(policy, hour_usd)
        tried = replace(snapshot, budget=budget)
        plan = await controller.planner.ask(tried, policy, trial=True)
        rows = []
        for state in _jobs_of(tried):
            if plan.shapes.get(state.job.id, state.shape) != state.shape:
                rows.append(self._row(tried, state, plan))
                await asyncio.sleep(0)  # each takes a while, and others have their turn
        burn = controller.kernel.ledger.outflow().usd_per_h
        view: TrialView = {
            "now_s": snapshot.now_s,
            "value_of_time_usd_per_h": plan.value_of_time_usd_per_h,
            "usd_per_h": burn,
            "usd_per_h_then": burn + sum((row["usd_per_h_then"] or 0.0) - (row["usd_per_h"] or 0.0) for row in rows),
            "jobs": rows,
            "alternatives": [],
        }
        if job_id is not None:
            if (asked := controller.kernel.jobs.get(job_id)) is None:
                raise NoSuchJob(job_id, controller.kernel.jobs)
            if (weighing := plan.weighed.get(job_id)) is not None:
                shape = plan.shapes.get(job_id, asked.shape)
                view["alternatives"] = alternatives_of(controller, tried, asked, weighing, shape)
                view["value_of_time_usd_per_h"] = weighing.hour_usd
        return view

    def set_hour(self, usd_per_h: float, *, by: str = "") -> None:
        """An hour of a job is worth this from the next plan on, where no budget says so; after a restart, too."""
        controller = self._controller
        budget = controller.kernel.supply.budget
        _refuse_two_values(budget.average is not None or budget.until_s is not None, usd_per_h)
        policy = _with_hour(controller.planner.policy, usd_per_h)
        text = f"an hour of a job is worth USD {usd_per_h:g} from the next plan on"
        with controller.writing(), controller.inbox.asked_by(by):
            controller.store.put(MetaKey.HOUR, repr(usd_per_h))
            controller.note(HistoryRow(kind="ValueOfTime", text=text))
        controller.planner.policy = policy

    def _row(self, snapshot: Snapshot, state: JobState, plan: Plan) -> TrialJobView:
        then = plan.shapes.get(state.job.id, state.shape)
        by_shape = weigh_by_rent(snapshot, state)
        was, will = (None if shape is None else by_shape.get(shape) for shape in (state.shape, then))
        return {
            "job_id": state.job.id,
            "name": self._controller.records[state.job.id].spec.name,
            "shape": "" if state.shape is None else str(state.shape),
            "shape_then": "" if then is None else str(then),
            "workers": 0 if state.shape is None else state.shape.gpus,
            "workers_then": 0 if then is None else then.gpus,
            "usd_per_h": None if was is None else was.usd_per_h,
            "usd_per_h_then": None if will is None else will.usd_per_h,
            "left_s": None if was is None else was.hours * SECONDS_PER_H,
            "left_s_then": None if will is None else will.hours * SECONDS_PER_H,
            "left_usd": None if was is None else was.rent_usd,
            "left_usd_then": None if will is None else will.rent_usd,
            "reason": plan.reasons.get(state.job.id, ""),
        }


def _jobs_of(snapshot: Snapshot) -> list[JobState]:
    waiting = snapshot.waiting.by(lambda state: state.seq)
    return [*snapshot.active.values(), *(state for state in waiting if state.job.id not in snapshot.active)]


def _with_hour(policy: Policy, usd_per_h: float) -> Policy:
    if not isinstance(policy, Price):
        raise InvalidValue("hour_usd", usd_per_h, f"left out: {type(policy).__name__} knows no value of time")
    if not 0 < usd_per_h < math.inf:
        raise InvalidValue("hour_usd", usd_per_h, "above 0 and finite")
    return replace(policy, hour_usd=usd_per_h)


def _refuse_two_values(rules: bool, usd_per_h: float) -> None:  # noqa: FBT001 - whether a budget rules
    if rules:
        allowed = "left out: the budget has an average to spend, which is a value of time already"
        raise InvalidValue("hour_usd", usd_per_h, allowed)
