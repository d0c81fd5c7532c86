"""What a controller does first: read what the last one left, then compare it with what really runs.

    snapshot + log -> kernel as it was -> agents that still train, nodes that still cost -> what was left undone

Agents and their workers outlive the controller by a lease. They come back by themselves, with all that they run; what
the kernel believes and nobody has is lost, what somebody has and the kernel does not know is ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.budget import Limit
from sublet.domain.events import Event
from sublet.domain.plan import Phase
from sublet.domain.timers import CheckPurse
from sublet.errors import BadInput, InvalidValue
from sublet.kernel.cluster import NodePhase
from sublet.runtime.controller.away import agents_came, latest_end_s, settle_what_was_held, silent, was_away_too_long
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.stored_jobs import record_from_store
from sublet.runtime.controller.timekeeping import last_sign_s

if TYPE_CHECKING:
    from sublet.runtime.controller.loop import Controller

__all__ = ["recover"]


async def recover(controller: Controller) -> None:
    """Bring the controller to where the log ends, and the world to where the kernel is."""
    _load_jobs(controller)
    latest_s = latest_end_s(controller, last_sign_s(controller.store))
    read = controller.memory.read()
    fresh = controller.kernel.seen == 0
    other_offers = _other_offers(controller)
    for node in controller.kernel.cluster.nodes.values():
        if node.phase is not NodePhase.RELEASING:
            controller.engine.expect(node.id, controller.leases.token(node.id))
    for job_id, state in controller.kernel.jobs.items():
        if state.gpus:
            placement, trains = controller.kernel.tenancy.placement[job_id], state.phase is Phase.RUNNING
            controller.records[job_id].group.adopt(state.generation, placement, trains=trains, wall_s=time.monotonic())
    if fresh:
        controller.tell(news.BudgetChanged(controller.now_s(), controller.budget))
        controller.store.put("budget", repr(controller.budget))
        await controller.engine.open(controller.router.hear_agent)
        await controller.provider.open(controller.hear_market)
    else:
        controller.holding = True  # orders for workers are given when it is known who is still there
        text = f"the controller is back; {read} of {controller.kernel.seen} events replayed"
        controller.note(HistoryRow(kind="Recovered", text=text))
        held = list(controller.kernel.cluster.nodes)
        await _meet_the_world(controller, latest_s, other_offers)
        await _compare_nodes(controller, held)
        await _agents_back(controller)
        controller.holding = False
        _finish_moves(controller)
        _go_on(controller)
    controller.memory.write()


async def _meet_the_world(controller: Controller, latest_s: float, first: list[Event]) -> None:
    """Agents and the market speak from now on; what ended long ago is heard first, then what is on offer now."""
    controller.listening = False
    await controller.engine.open(controller.router.hear_agent)
    await controller.provider.open(controller.hear_market)
    if was_away_too_long(controller, latest_s):
        await settle_what_was_held(controller, latest_s, first)
    else:
        controller.hear_first(lambda told: [*first, *told])


def _other_offers(controller: Controller) -> list[Event]:
    """What can be rented now, and within which limits, where that is not what the kernel knows."""
    supply, offers = controller.kernel.supply, tuple(controller.provider.offers)
    known = tuple(offer for offer_id, offer in supply.offers.items() if offer_id not in supply.withdrawn)
    limits = {offer.id: controller.limits.get(offer.id, Limit()) for offer in offers}
    if known == offers and {o: limit for o, limit in supply.limits.items() if o not in supply.withdrawn} == limits:
        return []
    try:
        supply.listing(offers, controller.limits, {})
    except InvalidValue as error:
        hint = "start it as before and 'sublet down', then change it; or begin anew with 'sublet up --fresh'"
        why = f"cannot go on with other offers: {str(error).partition(chr(10))[0]}"
        raise BadInput(controller.store.path, why, hint=hint) from error
    return [news.OffersChanged(controller.now_s(), offers, dict(controller.limits))]


def _go_on(controller: Controller) -> None:
    _submit_again(controller)
    for action in list(controller.memory.timers.values()):
        controller.resume_timer(action)
    if controller.store.get("budget") != repr(controller.budget):  # it was started with another one than last time
        controller.store.put("budget", repr(controller.budget))
        if controller.budget != controller.kernel.supply.budget:  # which may have been changed since
            controller.tell(news.BudgetChanged(controller.now_s(), controller.budget))
    for record in controller.records.values():  # what was stopped with the controller may go on
        if record.id in controller.kernel.jobs:
            job = controller.kernel.jobs[record.id].job
            if job.paused != bool(record.paused) or job.pools != record.pools:
                controller.relearn(record)
    if controller.kernel.planning:
        controller.carry_out(order.MakePlan())
    else:
        controller.tell(news.TimerFired(controller.now_s(), CheckPurse()))  # look at the purse after the time away


def _load_jobs(controller: Controller) -> None:
    for job_id, text, facts in controller.store.jobs():
        controller.keep(record_from_store(controller, job_id, text, facts))


def _submit_again(controller: Controller) -> None:
    """A job that was taken, but of which the kernel had not heard; one that had ended, of which it had not either."""
    for record in list(controller.records.values()):
        if record.id not in controller.submitted:
            controller.submit(record)
        elif record.id in controller.kernel.jobs and record.outcome in ("finished", "failed"):
            ended = news.JobFinished(controller.now_s(), record.id)
            failed = news.JobFailed(controller.now_s(), record.id, record.error)
            controller.tell(ended if record.outcome == "finished" else failed)


async def _compare_nodes(controller: Controller, held: list[str]) -> None:
    """What the last controller held, with what there is; orders for others were given a moment ago."""
    listed: Mapping[str, object] = {node.node_id: node for node in await controller.provider.list()}
    for node in [node for node_id, node in controller.kernel.cluster.nodes.items() if node_id in held]:
        if node.phase is NodePhase.REQUESTED:  # the same token: at most one node comes of it
            controller.carry_out(order.RentNode(node.id, node.offer.id))
        elif node.phase is NodePhase.RELEASING:
            controller.carry_out(order.ReleaseNode(node.id))
        elif node.id not in listed:  # the provider may know since when
            controller.spawn(controller.release_lost(node.id), f"lost {node.id}")


async def _agents_back(controller: Controller) -> None:
    """Give agents time to come; a node whose agent stays away is given back, and counts as lost."""
    await agents_came(controller)
    for node_id in silent(controller):
        text = "its agent did not come back: it is given back"
        controller.note(HistoryRow(kind="Alarm", node_id=node_id, text=text))
        await controller.release_lost(node_id)


def _finish_moves(controller: Controller) -> None:
    """Orders that the last controller gave and whose answer it did not hear: give them again."""
    wall_s = time.monotonic()
    for record in controller.records.values():
        group = record.group
        group.all_agents_came(wall_s)
        if record.id in controller.kernel.jobs:
            controller.router.heal(record)
        elif group.workers:  # ended, but its workers were not told
            group.stop(group.generation + 1, resumable=False, wall_s=wall_s)
        controller.router.touch(record)
    controller.carry_on()
