"""The submission of a job: refused if it can never run, one job for one key; and the cost that is expected of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.domain.units import SECONDS_PER_H
from sublet.errors import NotNow
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.policies.price.prospect import hour_usd_of, prospect
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.jobs import Feasibility
from sublet.runtime.controller.memory import kernel_job
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.controller_api.protocol import Submitted
from sublet.runtime.controller_api.views import ExpectedView
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.spec import JobSpec

if TYPE_CHECKING:
    from sublet.runtime.controller.core import Controller

__all__ = ["expected_of", "known_job", "refuse_impossible", "submit_job"]


def known_job(controller: Controller, key: str) -> Submitted | None:
    """The job that was submitted with this key, if there is one."""
    if key and (known := controller.store.job_by_key(key)) is not None:
        return {"job_id": known[0], "name": controller.records[known[0]].spec.name}
    if key and (known := controller.archive.shelf.by_key(key)) is not None:
        return {"job_id": known[0], "name": known[1]}
    return None


def submit_job(controller: Controller, spec: JobSpec, key: str) -> Submitted:
    """Take a job; durable when it returns."""
    if (known := known_job(controller, key)) is not None:
        return known
    if controller.stopping:
        raise NotNow(spec.name, "brought to a controller that is stopping", "be submitted", hint="sublet up")
    warning = refuse_impossible(controller.feasibility, spec)
    expected = expected_of(controller, spec)
    number = 1 + len(controller.table.named.get(spec.name, ()))
    number += controller.archive.shelf.called(spec.name)
    record = controller.add(f"{spec.name}-{number}", spec, key)
    if warning:
        controller.note(HistoryRow(kind="Warning", job_id=record.id, text=warning))
    told: Submitted = {"job_id": record.id, "name": spec.name, "expected": expected, "warning": warning}
    return {**told, "notes": list(spec.notes)}


def refuse_impossible(feasibility: Feasibility, spec: JobSpec) -> str:
    """A job that can never run is refused; the warning for one that may not run."""
    bounds.absolute("workdir", spec.cwd)
    bounds.absolute("checkpoint.uri", spec.checkpoint_dir)
    bounds.absolute("checkpoint.copy", spec.checkpoint_copy)
    feasibility.refuse_beyond_limits(spec)
    feasibility.refuse_beyond_own_purse(spec.name, spec)
    return "; ".join(filter(None, (feasibility.refuse_late(spec), feasibility.doubt_core(spec))))


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
