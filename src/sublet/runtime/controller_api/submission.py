"""How a job comes in: what can never run is refused, what may not is warned of, the same key gives the same job."""

from __future__ import annotations

from sublet.errors import NotNow
from sublet.runtime.controller.feasibility import Feasibility
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.loop import Controller
from sublet.runtime.controller_api.expecting import expected_of
from sublet.runtime.controller_api.protocol import Submitted
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["known_job", "refuse_impossible", "submit_job"]


def known_job(controller: Controller, key: str) -> Submitted | None:
    """The job that was submitted with this key, if there is one."""
    if key and (known := controller.store.job_by_key(key)) is not None:
        return {"job_id": known[0], "name": controller.records[known[0]].spec.name}
    if key and (known := controller.shelving.shelf.by_key(key)) is not None:
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
    number += controller.shelving.shelf.called(spec.name)
    record = controller.add(f"{spec.name}-{number}", spec, key)
    if warning:
        controller.note(HistoryRow(kind="Warning", job_id=record.id, text=warning))
    told: Submitted = {"job_id": record.id, "name": spec.name, "expected": expected, "warning": warning}
    return {**told, "notes": list(spec.notes)}


def refuse_impossible(feasibility: Feasibility, spec: JobSpec) -> str:
    """What can never run is refused; the warning for what may not run."""
    bounds.absolute("workdir", spec.cwd)
    bounds.absolute("checkpoint.uri", spec.checkpoint_dir)
    bounds.absolute("checkpoint.copy", spec.checkpoint_copy)
    feasibility.refuse_beyond_limits(spec)
    feasibility.refuse_beyond_own_purse(spec.name, spec)
    return "; ".join(filter(None, (feasibility.refuse_late(spec), feasibility.doubt_core(spec))))
