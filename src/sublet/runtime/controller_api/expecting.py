"""What is said of a new job: what it is expected to cost, and what that saves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.domain.units import SECONDS_PER_H
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.policies.price.prospect import hour_usd_of, prospect
from sublet.runtime.controller.records import kernel_job
from sublet.runtime.controller_api.views import ExpectedView
from sublet.runtime.jobs.spec import JobSpec

if TYPE_CHECKING:
    from sublet.runtime.controller.loop import Controller

__all__ = ["expected_of"]


def expected_of(controller: Controller, spec: JobSpec) -> ExpectedView | None:
    """Beside the jobs that are there, by what can be had; None for policies that weigh no money, or if nothing can."""
    policy = controller.planner.policy
    if not isinstance(policy, Price):
        return None
    job = kernel_job(controller.factory.bare_record(spec.name, spec), controller.clock.speedup)
    terms = Terms.from_snapshot(controller.kernel.snapshot())
    value = hour_usd_of(policy, terms, job)
    ours = prospect(terms, job, value)
    quick = prospect(terms, job, hour_usd_of(policy, terms, replace(job, hurry=True)))
    steady = prospect(terms, job, value, on_demand=True)
    if ours is None or quick is None:
        return None
    known = spec.work is not None and spec.samples_per_s is not None
    return {
        "shape": str(ours.shape),
        "waits": ours.waits,
        "usd_per_h": ours.usd_per_h,
        "usd_per_h_in_a_hurry": quick.usd_per_h,
        "usd_per_h_on_demand": None if steady is None else steady.usd_per_h,
        "seconds": ours.hours * SECONDS_PER_H if known else None,
        "seconds_in_a_hurry": quick.hours * SECONDS_PER_H if known else None,
        "usd": ours.usd if known else None,
        "usd_in_a_hurry": quick.usd if known else None,
        "usd_on_demand": steady.usd if known and steady is not None else None,
    }
