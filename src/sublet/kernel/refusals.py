"""Whether a plan may be carried out: looked at before any of it is, so that a refused plan leaves no trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.domain.actions import RefusePlan
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Plan, Pool
from sublet.domain.shape import Shape
from sublet.kernel.supply import Supply
from sublet.kernel.waiting import Lines

Jobs = Mapping[str, JobState]
Promise = tuple[JobState, Shape | None]  # as the job is now, and what it shall have


def shapes_to_promise(plan: Plan, jobs: Jobs, supply: Supply, *, stale: bool) -> list[Promise]:
    """The changes for jobs as they are now. That a stale one did not see new terms is no fault, but they hold."""
    promises: list[Promise] = []
    for job_id, shape in plan.shapes.items():
        state = jobs.get(job_id)
        if state is None or state.shape == shape or state.job.paused:
            continue  # it ended or was paused meanwhile, or has it already
        if shape is None or shape.pool in supply.pools:  # else it is not offered any more
            promises.append((state, shape))
    return [each for each in promises if _is_within_terms(each, supply)] if stale else promises


def refuse_plan(
    plan: Plan,
    promises: Sequence[Promise],
    stand: Lines,
    *,
    jobs: Jobs,
    supply: Supply,
    stale: bool,
    falling: Mapping[str, int],
) -> RefusePlan | None:
    """Why it is not carried out; None = it is. `falling`: GPUs about to be taken, by the job that trains on them."""
    refusal = refuse_wrong_names(plan, jobs, supply, stale=stale)
    if refusal is None and not stale:
        beyond = _beyond({job_id: n for job_id, n in falling.items() if job_id not in plan.shapes}, jobs)
        refusal = _refuse_over_limits(plan, promises, stand, supply, beyond) or _refuse_other_terms(promises, supply)
    return refusal


def _beyond(falling: Mapping[str, int], jobs: Jobs) -> dict[str, int]:
    """GPUs by pool that were promised to jobs which go on as they are, and are there only until they are taken."""
    found: dict[str, int] = {}
    for job_id, gpus in falling.items():
        state = jobs[job_id]
        if (shape := state.shape) is not None:
            found[shape.pool] = found.get(shape.pool, 0) + min(gpus, max(0, shape.gpus - state.gpus + gpus))
    return found


def refuse_wrong_names(plan: Plan, jobs: Jobs, supply: Supply, *, stale: bool) -> RefusePlan | None:
    """It names a pool or an offer that never was, or a pool where the job may not run. None = it does not.

    The places where a job may run can be news to a stale one.
    """
    for job_id, shape in plan.shapes.items():
        state = jobs.get(job_id)
        if state is None or shape is None or (stale and shape.pool in supply.pools):
            continue
        if shape.pool in supply.pools and state.job.may_run_in(shape.pool):
            continue
        if not supply.offering.was_offered(shape.pool):  # what went while the plan was made is no fault of it
            allowed = [pool for pool in supply.pools if state.job.may_run_in(pool)]
            return RefusePlan(f"shapes[{job_id}].pool", shape.pool, "one of " + ", ".join(allowed))
    for offer_id in plan.hold:
        if offer_id not in supply.offering.every:
            return RefusePlan("hold", offer_id, "an offer that is there: " + ", ".join(supply.offers))
    return None


def keeps_to(job: Job, shape: Shape, pools: Mapping[str, Pool]) -> bool:
    """Whether a job may have a shape: where it is, and how many of its GPUs are on demand."""
    return job.may_run_in(shape.pool) and shape.pool in pools and shape.steady >= pools[shape.pool].core_of(job)


def _is_within_terms(promise: Promise, supply: Supply) -> bool:
    """It keeps to where and how wide the job may run as it is now."""
    state, shape = promise
    return shape is None or (_may_be(state, shape) and keeps_to(state.job, shape, supply.pools))


def _refuse_other_terms(promises: Sequence[Promise], supply: Supply) -> RefusePlan | None:
    """It gives a job fewer or more GPUs than its owner lets it have, or fewer on demand. None = it does not."""
    for state, shape in promises:
        if shape is not None and not _may_be(state, shape):
            low, high = state.job.min_gpus, state.job.max_gpus
            return RefusePlan(
                f"shapes[{state.job.id}].gpus", shape.gpus, f"a worker count of the job, from {low} to {high}"
            )
        if shape is not None and shape.steady < (core := supply.pools[shape.pool].core_of(state.job)):
            allowed = f"at least {core}: so many of its GPUs are on demand"
            return RefusePlan(f"shapes[{state.job.id}].steady", shape.steady, allowed)
    return None


def _may_be(state: JobState, shape: Shape) -> bool:
    return state.job.min_gpus <= shape.gpus <= state.job.max_gpus


def _refuse_over_limits(
    plan: Plan, promises: Sequence[Promise], stand: Lines, supply: Supply, beyond: Mapping[str, int]
) -> RefusePlan | None:
    """It promises or holds more than pools, quotas or the burn cap allow, with what stands already. None = it fits.

    GPUs that are there only until they are taken, `beyond` what may be used, are no fault of the plan.
    """
    all_gpus, all_steady = dict(stand.promised), dict(stand.steady)
    for state, shape in promises:
        if state.shape is not None:
            all_gpus[state.shape.pool] -= state.shape.gpus
            all_steady[state.shape.pool] -= state.shape.steady
        if shape is not None:
            all_gpus[shape.pool] += shape.gpus
            all_steady[shape.pool] += shape.steady
    for name, pool in supply.pools.items():
        gpus, most = all_gpus[name] - beyond.get(name, 0), supply.offering.most_gpus(pool)
        if gpus > most:
            return RefusePlan(f"GPUs in pool {name}", gpus, most)
        steady = all_steady[name]
        if steady and steady > (most := supply.offering.most_of(pool, Market.ON_DEMAND)):
            return RefusePlan(f"GPUs on demand in pool {name}", steady, most)
        for offer_ids, quota in pool.quotas:
            if (held := _wished_gpus(supply, pool, offer_ids, plan)) > quota:
                kind = "" if offer_ids == pool.offer_ids else f" on {supply.offers[offer_ids[0]].market}"
                return RefusePlan(f"quota of pool {name}{kind}", held, quota)
    burn = supply.budget.burn
    if burn is not None and (wished := _wished_burn(supply, plan)) > max(burn, _owned_burn(supply)):
        return RefusePlan("USD/h of budget", wished.usd_per_h, burn.usd_per_h)
    return None


def _wished_gpus(supply: Supply, pool: Pool, offer_ids: Sequence[str], plan: Plan) -> int:
    """GPUs of a pool's offers when all that is wanted is held, as far as it can be had."""
    hold = supply.hold_after(plan.hold)
    return sum(supply.offering.obtained(o, hold[o]) for o in offer_ids) * pool.gpus_per_node


def _wished_burn(supply: Supply, plan: Plan) -> Price:
    """The cost of an hour, at today's prices, when all that is wanted is held, as far as it can be had."""
    hold = supply.hold_after(plan.hold)
    prices = ((supply.offering.obtained(o, nodes), supply.ledger.believed(o)) for o, nodes in hold.items())
    return Price(sum(nodes * price.micro_usd_per_h for nodes, price in prices))


def _owned_burn(supply: Supply) -> Price:
    """The cost of an hour of the owned nodes, which no plan can save."""
    prices = ((limit.min_nodes, supply.ledger.believed(o)) for o, limit in supply.limits.items())
    return Price(sum(nodes * price.micro_usd_per_h for nodes, price in prices))
