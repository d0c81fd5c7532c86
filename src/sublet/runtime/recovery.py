"""What a controller does first: live the recorded life again, then compare it with what really runs.

    log -> kernel as it was -> agents that still train, nodes that still cost -> what the last controller left undone

Agents and their workers outlive the controller by a lease. They come back by themselves, with all that they run; what
the kernel believes and nobody has is lost, what somebody has and the kernel does not know is ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.domain.plan import Phase
from sublet.errors import SubletError
from sublet.kernel.cluster import NodePhase
from sublet.kernel.journal import event_from_json
from sublet.runtime.record import kernel_job
from sublet.runtime.stored_jobs import record_from_store
from sublet.runtime.telling import Line

if TYPE_CHECKING:
    from sublet.runtime.controller import Controller

__all__ = ["recover"]

AGENTS_COME_S = 3.0  # wall; agents try again every few tenths of a second


async def recover(controller: Controller) -> None:
    """Bring the controller to where the log ends, and the world to where the kernel is."""
    _load_jobs(controller)
    budget = controller.budget
    timers = _live_again(controller)
    fresh = controller.kernel.seen == 0
    for node in controller.kernel.cluster.nodes.values():
        if node.phase is not NodePhase.RELEASING:
            controller.engine.expect(node.id, controller.renting.token(node.id))
    for job_id, state in controller.kernel.jobs.items():
        if state.gpus:
            placement, trains = controller.kernel.tenancy.placement[job_id], state.phase is Phase.RUNNING
            controller.records[job_id].group.adopt(state.generation, placement, trains=trains, wall_s=time.monotonic())
    if fresh:
        controller.tell(news.BudgetChanged(controller.now_s(), budget))
        controller.store.put("budget", repr(budget))
    await controller.engine.open(controller.workforce.hear_agent)
    await controller.provider.open(controller.hear_market)
    if fresh:
        return
    controller.holding = True  # orders for workers are given when it is known who is still there
    controller.note(Line(kind="Recovered", text=f"the controller is back; {controller.kernel.seen} events replayed"))
    await _compare_nodes(controller)
    await _agents_back(controller)
    controller.holding = False
    _finish_moves(controller)
    _submit_again(controller)
    for action in timers.values():
        controller.resume_timer(action)
    if controller.store.get("budget") != repr(budget):  # the user started it with another one than before
        controller.tell(news.BudgetChanged(controller.now_s(), budget))
        controller.store.put("budget", repr(budget))
    for record in controller.records.values():  # what was stopped with the controller may go on
        if record.id in controller.kernel.jobs:
            job = controller.kernel.jobs[record.id].job
            if job.paused != bool(record.paused):
                controller.relearn(record)
    if controller.kernel.planning:
        controller.carry_out(order.MakePlan())
    else:
        controller.tell(news.TimerFired(controller.now_s(), "purse"))  # look at the purse after the time away


def _load_jobs(controller: Controller) -> None:
    for job_id, text, facts in controller.store.jobs():
        controller.keep(record_from_store(controller, job_id, text, facts))


def _live_again(controller: Controller) -> dict[str, order.SetTimer]:
    """Feed the log to the kernel; its orders were carried out, or are looked at below. The timers that still run."""
    timers: dict[str, order.SetTimer] = {}
    controller.replaying = controller.bill.replaying = True
    for line in controller.store.lines():
        event = _with_speed(controller, event_from_json(json.loads(line)["event"]))
        try:
            actions: list[Action] = controller.bill.handle(event)
        except SubletError:  # it was refused then, too
            actions = controller.kernel.orders
        _note_outcome(controller, event)
        if isinstance(event, news.TimerFired):
            set_to = timers.get(event.timer)
            if set_to is not None and set_to.at_s <= event.at_s:  # else it was set anew, and runs still
                del timers[event.timer]
        timers |= {action.timer: action for action in actions if isinstance(action, order.SetTimer)}
    controller.bill.settle(controller.kernel.now_s)
    controller.replaying = controller.bill.replaying = False
    for record in controller.records.values():
        controller.bill.take_over(record.id, record.grains, record.outcome)
        controller.workforce.attempts.remember(record)
    return timers


def _note_outcome(controller: Controller, event: Event) -> None:
    """How a job ended stands in the log, whatever the facts of its record say."""
    if isinstance(event, news.JobSubmitted):
        controller.submitted.add(event.job.id)
    outcomes = {news.JobFinished: "finished", news.JobFailed: "failed", news.JobCancelled: "cancelled"}
    if (outcome := outcomes.get(type(event))) is not None:
        record = controller.records[event.job_id]  # type: ignore[union-attr]
        record.outcome, record.ended_s = record.outcome or outcome, record.ended_s or event.at_s


def _submit_again(controller: Controller) -> None:
    """A job that was taken, but of which the kernel had not heard; one that had ended, of which it had not either."""
    for record in list(controller.records.values()):
        if record.id not in controller.submitted:
            controller.submit(record)
        elif record.id in controller.kernel.jobs and record.outcome in ("finished", "failed"):
            ended = news.JobFinished(controller.now_s(), record.id)
            failed = news.JobFailed(controller.now_s(), record.id, record.error)
            controller.tell(ended if record.outcome == "finished" else failed)


def _with_speed(controller: Controller, event: Event) -> Event:
    """How fast a job goes is not in the log: today's knowledge serves."""
    if isinstance(event, news.JobSubmitted | news.JobChanged) and event.job.id in controller.records:
        speed = kernel_job(controller.records[event.job.id], controller.clock.speedup).speed
        return replace(event, job=replace(event.job, speed=speed))
    return event


async def _compare_nodes(controller: Controller) -> None:
    listed: Mapping[str, object] = {node.node_id: node for node in await controller.provider.list()}
    for node in list(controller.kernel.cluster.nodes.values()):
        if node.phase is NodePhase.REQUESTED:  # the same token: at most one node comes of it
            controller.carry_out(order.RentNode(node.id, node.offer.id))
        elif node.phase is NodePhase.RELEASING:
            controller.carry_out(order.ReleaseNode(node.id))
        elif node.id not in listed:  # the provider may know since when
            controller.spawn(controller.release_lost(node.id), f"lost {node.id}")


async def _agents_back(controller: Controller) -> None:
    """Give agents time to come; a node whose agent stays away is given back, and counts as lost."""
    deadline = time.monotonic() + AGENTS_COME_S
    while time.monotonic() < deadline and _silent(controller):  # noqa: ASYNC110 - with a deadline
        await asyncio.sleep(0.05)
    for node_id in _silent(controller):
        text = "its agent did not come back: it is given back"
        controller.note(Line(kind="Alarm", node_id=node_id, text=text))
        await controller.release_lost(node_id)


def _silent(controller: Controller) -> list[str]:
    ready = (NodePhase.READY, NodePhase.NOTICED)
    nodes = controller.kernel.cluster.nodes
    return [node.id for node in nodes.values() if node.phase in ready and node.id not in controller.workforce.agents]


def _finish_moves(controller: Controller) -> None:
    """Orders that the last controller gave and whose answer it did not hear: give them again."""
    wall_s = time.monotonic()
    for record in controller.records.values():
        group = record.group
        group.all_agents_came(wall_s)
        if record.id in controller.kernel.jobs:
            controller.workforce.heal(record)
        elif group.workers:  # ended, but its workers were not told
            group.stop(group.generation + 1, resumable=False, wall_s=wall_s)
        controller.workforce.touch(record)
    controller.carry_on()
