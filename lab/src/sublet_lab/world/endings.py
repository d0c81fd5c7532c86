"""Ends of jobs, and whether they are right: a job that could finish does; all else has a cause.

Law R asks the world, not the controller, for the cause: an error that the script really made, nodes that were really
lost by a job that wants to fail then, a budget, or checkpoints that were really damaged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sublet.runtime.controller.inbox import Ending
from sublet_lab.world.stage import Stage
from sublet_lab.world.story import JobPlan
from sublet_lab.world.written import shelved

DAMAGE = ("rot", "lost_power", "no_storage")  # faults after which no checkpoint may be left, or none be read
INSIDE = ("kill_agent", "end_agent", "told_inside", "short_of_memory")  # nodes or processes end, and no cloud took them
PEERS = ("kill_agent", "end_agent", "take_untold", "take_told", "told_inside", "notice", "part_peers", "stop_agent")
OWN_NODES = 3  # of a job that ended so: it is to blame (runtime/controller/jobs/node_loss.py)
RETRIES = 1  # after errors of its own that a job has, where its owner says nothing
TOLERANCE = 0.02  # of a bill: when the ledger heard of what happened
A_SECOND = 1e12  # grains, at USD 1 an hour
MONEY = ("purse", "budget")  # of which every refusal for money speaks


@dataclass(frozen=True, slots=True)
class End:
    """The end of one job: a word to count, and the message of it."""

    how: str  # finished | cancelled | failed | held: ... | waits | refused | unknown
    said: str = ""


def end_of(stage: Stage, plan: JobPlan) -> End:
    """As the controller has it, or its shelf, or as its owner was told."""
    users, controller = stage.users, stage.controllers.controller
    job_id = users.promised.get(plan.name)
    if job_id is None:
        return End("refused", users.refused[plan.name]) if plan.name in users.refused else End("unknown")
    record = None if controller is None else controller.records.get(job_id)
    if record is None:
        facts = shelved(stage.disk).get(job_id)
        return End("unknown") if facts is None else End(str(facts["outcome"]), str(facts.get("error", "")))
    if record.outcome:
        return End(str(record.outcome), record.error)
    return End(f"held: {record.paused}") if record.paused else End("waits")


def is_right(stage: Stage, plan: JobPlan, end: End) -> bool:
    """Whether the world has given cause for this end."""
    purse = plan.purse_usd is not None or stage.story.purse_usd is not None
    match end.how:
        case Ending.FINISHED:
            return True
        case Ending.CANCELLED:
            return plan.name in stage.users.cancelled
        case Ending.FAILED:
            return bool(end.said and _why_failed(stage, plan, end))  # and its owner is told why
        case "held: budget":
            return plan.purse_usd is not None
        case "held: user":
            return purse and plan.name in stage.users.penniless
        case "held: damaged":
            return any(stage.hits[kind] for kind in DAMAGE)
        case "held: secrets":  # it had ended, and its secrets with it, when a backup of before was put back
            return bool(stage.hits["older_backup"])
        case "waits":
            return stage.story.purse_usd is not None and not _budget_pays(stage)
        case "refused":
            return purse and any(word in end.said for word in MONEY)
        case _:
            return False


def _budget_pays(stage: Stage) -> bool:
    """By the cloud's own bill, for one node more, which is not rented.

    A budget that has given its last nodes up rents none until it is filled again, though some of what they reserved is
    left: what that would pay for ends before it trains.
    """
    controller = stage.controllers.controller
    purse = None if controller is None else controller.kernel.supply.purse
    if purse is None or purse.broke or purse.budget.purse is None:
        return False
    cloud = stage.cloud
    over = cloud.slack_grains + cloud.untold_grains + cloud.steps_grains(stage.clock_off_s) + stage.most_over_grains
    left = purse.budget.purse.grains - cloud.spent_grains() * (1.0 + TOLERANCE) - over
    return left >= min(offer.reserve.grains for offer in cloud.offers) + A_SECOND


def _why_failed(stage: Stage, plan: JobPlan, end: End) -> str:
    """The world's cause of its failure, in a word; "" if there is none."""
    truth = stage.truth.jobs[stage.users.promised[plan.name]]
    own = truth.failed
    if own > RETRIES or (own and plan.sdk):  # before its first step it would fail again
        return "own error"
    if plan.on_node_loss == "fail" and "it lost" in end.said:
        return "lost a node"
    if not plan.sdk and any(stage.hits[kind] for kind in DAMAGE):
        return "own error"  # a script without the SDK has no better answer to a disk that is away
    if not plan.sdk and plan.max_workers > 1 and own + sum(stage.effects[kind] for kind in PEERS) > RETRIES:
        return "lost a peer"  # its collective fails before anybody knows of the machine: it looks like its own error
    inside = INSIDE if stage.story.cloud != "local" else (*INSIDE, "take_untold")  # there it is an agent that ends
    if sum(stage.effects[kind] for kind in inside) >= OWN_NODES:
        return "ends its nodes"
    return ""


def count_ends(stage: Stage) -> Counter[str]:
    """Ends of all jobs of a life, with the reason of those that failed."""
    found: Counter[str] = Counter()
    for plan in stage.story.jobs:
        end = end_of(stage, plan)
        reason = _why_failed(stage, plan, end) or "nobody's fault" if end.how == Ending.FAILED else ""
        found[f"{end.how}: {reason}" if reason else end.how] += 1
    return found
