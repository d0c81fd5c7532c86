"""No plan whose expected cost is above what is left of all money, unless there is nothing that costs less.

U     a job gets another shape only if its rent to the end is within what is not spent, or the least of all it can have
"""

from __future__ import annotations

from sublet.domain.plan import Plan, Snapshot

ABOUT = 1e-6  # relative


def beyond_what_is_left(plan: Plan, snapshot: Snapshot) -> str:
    """The first job that the plan gives too dear a shape, by what its policy weighed; "" = none."""
    unspent = snapshot.unspent
    if unspent is None or snapshot.budget.until_s is not None:
        return ""
    for job_id, shape in plan.shapes.items():
        weighing = plan.weighed.get(job_id)
        rows = [] if weighing is None or shape is None else weighing.rows()
        chosen = next((row for row in rows if row.shape == shape), None)
        if chosen is None:
            continue
        least_usd = min(row.rent_usd for row in rows)
        if chosen.rent_usd > max(unspent.usd, least_usd) * (1.0 + ABOUT):
            takes = f"{chosen.shape} for USD {chosen.rent_usd:.4f}, where another takes USD {least_usd:.4f}"
            return f"{job_id} is to have {takes}, and USD {unspent.usd:.4f} are left"
    return ""
