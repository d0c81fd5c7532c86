"""The end of a life: did everything that was wanted happen, is nothing left, does the bill add up, is all written?"""

from __future__ import annotations

from collections import Counter

from sublet.runtime.archive import Kept
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.inbox import Ending, Hold
from sublet_lab.world.endings import TOLERANCE, end_of, is_right
from sublet_lab.world.laws import GRAINS_PER_USD, Laws
from sublet_lab.world.stage import Stage
from sublet_lab.world.steady import moved_to_and_fro, unsteady
from sublet_lab.world.story import JobPlan
from sublet_lab.world.users import SECRET
from sublet_lab.world.written import missing, shelved, unpacked, written

# Until something is done about it; a job that is given up has failed then.
HELD_FOR_GOOD = (Hold.BUDGET, Hold.DAMAGED, Hold.SECRETS)
UNDER_WAY = (
    Hold.GIVEN_UP,
    Hold.CANCEL,
    Hold.BACK_OFF,
    Hold.COPY,
)  # such a hold ends by itself, in an end or in another try
TOLD = ("RentNode", "ReleaseNode", "StartJob", "ResizeJob", "StopJob")


def all_settled(stage: Stage) -> bool:
    """Nothing is waited for any more."""
    return stage.controllers.ready and all(_is_settled(stage, plan) for plan in stage.story.jobs)


def _is_settled(stage: Stage, plan: JobPlan) -> bool:
    if plan.name in stage.users.refused:
        return True
    controller, job_id = stage.controllers.controller, stage.users.promised.get(plan.name)
    record = None if controller is None or job_id is None else controller.records.get(job_id)
    if plan.name in stage.users.paused:
        return False
    if record is None:
        return job_id in shelved(stage.disk)
    penniless = record.paused is Hold.OWNER and plan.name in stage.users.penniless
    return bool(record.outcome) or penniless or record.paused in HELD_FOR_GOOD


def budget_is_spent(stage: Stage) -> bool:
    """The rest pays for not one node more, and none is rented: a waiting job waits for money.

    Unless something else is under way: a request to come, a job that is given up and has not failed yet, or rests; a
    node that is gone unheard, since the controller sleeps.
    """
    controller = stage.controllers.controller
    if stage.story.purse_usd is None or controller is None or not stage.controllers.ready or stage.cloud.alive():
        return False
    held = (record for record in controller.records.values() if record.paused in UNDER_WAY)
    if stage.users.waiting or controller.kernel.cluster.nodes or any(not record.outcome for record in held):
        return False
    purse, now_s = controller.kernel.supply.purse, controller.now_s()
    return not any(purse.pays_for_one_more(offer, now_s) for offer in stage.cloud.offers)


def unsettled(stage: Stage) -> str:
    """The waiting jobs, for a person."""
    controller = stage.controllers.controller
    if controller is None:
        return "no controller"
    jobs = controller.kernel.jobs
    facts = [
        f"{job_id}: {record.outcome or 'no outcome'}, hold {record.paused or '-'}, "
        f"{jobs[job_id].phase.value if job_id in jobs else 'not in the kernel'}, {len(record.group.workers)} workers"
        for job_id, record in controller.records.items()
    ]
    missing = [plan.name for plan in stage.story.jobs if plan.name not in stage.users.promised]
    return f"{'; '.join(facts)}; never answered: {missing}; planning {controller.kernel.planning}"


def check_steady(stage: Stage, laws: Laws) -> None:
    """S and M: over all that was written."""
    events = written(stage.disk, stage.controllers.files.contents, Kept.EVENTS)
    if wrong := unsteady(events, laws.starts):
        laws.break_law("S", wrong)
    # Elsewhere seeds 133 and 9247 (with price) break it, and are not mended yet. Nonsense is no plan of the policy's.
    own = stage.story.policy == "price" and stage.story.release_s and not stage.effects["policy_nonsense"]
    if own and (wrong := moved_to_and_fro(events, laws.starts)):
        laws.break_law("M", wrong)


def check_end(stage: Stage, laws: Laws, controller: Controller) -> None:
    """After a shutdown that has returned."""
    if left := [instance.node_id for instance in stage.cloud.alive()]:
        laws.break_law("I8", f"still rented after the shutdown: {left}")
    _ends_are_right(stage, laws)
    _bills_agree(stage, laws, controller)
    _shelf_is_true(stage, laws)
    _secrets_are_kept(stage, laws)
    _decisions_are_told(stage, laws)


def _ends_are_right(stage: Stage, laws: Laws) -> None:
    for plan in stage.story.jobs:
        if not is_right(stage, plan, end := end_of(stage, plan)):
            laws.break_law("R", f"{plan.name} is {end.how}, and nothing happened that it should be: {end.said[:300]}")


def _bills_agree(stage: Stage, laws: Laws, controller: Controller) -> None:
    ledger, bill = controller.kernel.ledger.spent(controller.now_s()).grains, stage.cloud.spent_grains()
    about = TOLERANCE * bill + GRAINS_PER_USD / 3600.0 + stage.cloud.steps_grains(stage.clock_off_s)
    over = about + stage.most_over_grains + stage.cloud.slack_grains + stage.cloud.untold_grains
    if not -about - stage.most_under_grains - stage.cloud.short_grains <= ledger - bill <= over:
        told, charged = ledger / GRAINS_PER_USD, bill / GRAINS_PER_USD
        laws.break_law("I6", f"the ledger says USD {told:.4f}, the cloud charges USD {charged:.4f}")


def _shelf_is_true(stage: Stage, laws: Laws) -> None:
    for job_id, facts in shelved(stage.disk).items():
        if facts["outcome"] == Ending.FINISHED and not stage.truth.jobs[job_id].done:
            laws.break_law("T", f"{job_id} is on the shelf as finished, and not all of its steps were made")


def _secrets_are_kept(stage: Stage, laws: Laws) -> None:
    for table in ("meta", "events", "jobs", "history", "snapshots"):
        for row in stage.disk.rows(f"SELECT * FROM {table}"):  # noqa: S608 - our own names
            if any(SECRET in str(value) for value in row):
                laws.break_law("I9", f"a secret is in the table {table}: {repr(row)[:200]}")
    for path, data in stage.controllers.files.contents.items():
        if SECRET.encode() in unpacked(data):
            laws.break_law("I9", f"a secret is in the archive, in {path}")


def _decisions_are_told(stage: Stage, laws: Laws) -> None:
    """I10: whatever was decided is in the history, with its reason, and what was rented with its price."""
    files = stage.controllers.files.contents
    events = written(stage.disk, files, Kept.EVENTS)
    if gone := missing(events):
        laws.break_law("A", f"events {gone[:5]} of {max(events)} are neither in the log nor in the archive")
    ordered: Counter[tuple[str, str]] = Counter()
    planned: Counter[str] = Counter()
    for facts in events.values():
        actions = facts.get("actions", ())
        for action in actions:
            if action["type"] in TOLD:
                ordered[action["type"], action.get("job_id") or action.get("node_id", "")] += 1
        if facts["event"]["type"] == "PlanMade" and not any(a["type"] == "RefusePlan" for a in actions):
            planned.update(list(facts["event"]["plan"].get("shapes", {})))
    told: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    for row in written(stage.disk, files, Kept.HISTORY).values():
        kind, job_id, node_id, text = (row[name] for name in ("kind", "job_id", "node_id", "text"))
        if kind in TOLD:
            told[kind, job_id or node_id] += 1
            if kind == "RentNode" and "USD" not in text:
                laws.break_law("I10", f"{node_id} was rented without a word of its price: {text}")
        if kind == "Plan":
            reasons[job_id] += bool(text.partition(": ")[2])
    for what, times in ordered.items():
        if told[what] < times:
            laws.break_law("I10", f"{what[0]} of {what[1]} was ordered {times} times and told {told[what]} times")
    for job_id, times in planned.items():
        if reasons[job_id] < times:
            laws.break_law("I10", f"{job_id} was planned {times} times, with a reason {reasons[job_id]} times")
