"""Copies of the store that are put back later: the state when they were made, and the facts that are lost afterwards.

Nodes, spending and promises since then are not in the log any more. Nodes are found by their marks and ended; the bill
cannot know them; users with a promise since then are told, and submit once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sublet_lab.world.stage import Stage

FOUND_S = 240.0  # at most, until what was rented since then is found and ended: as law I3 has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """As of a copy."""

    at_s: float
    spent_grains: float
    burn: float  # grains a second
    numbered: int  # nodes that were ever asked for
    orders: tuple[object, ...]  # controllers, and what jobs were told
    newest: Mapping[str, int]  # job -> the number of the last group that trained
    outside: tuple[object, ...]  # what is not undone with it


def begin(stage: Stage) -> Backup:
    """A copy is made now."""
    controller = stage.controllers.controller
    return Backup(
        at_s=stage.world.now_s,
        spent_grains=stage.cloud.spent_grains(),
        burn=stage.cloud.burn_grains_per_s(),
        numbered=0 if controller is None else controller.kernel.supply.numbered,
        orders=_orders(stage),
        newest=_newest(stage),
        outside=_outside(stage),
    )


def can_be_put_back(stage: Stage, backup: Backup) -> bool:
    """The clock was not set since then: groups are numbered by it, and would be numbered alike twice."""
    return backup.outside == _outside(stage)


def knows_all_orders(stage: Stage, backup: Backup) -> bool:
    """No job was told anything since then, and no other controller has begun."""
    return backup.orders == _orders(stage)


def was_outdone(stage: Stage, backup: Backup) -> bool:
    """A group has trained that it knows nothing of."""
    return backup.newest != _newest(stage)


def _newest(stage: Stage) -> dict[str, int]:
    return {job_id: job.newest for job_id, job in stage.truth.jobs.items() if job.newest >= 0}


def _outside(stage: Stage) -> tuple[object, ...]:
    return (stage.controllers.clock.jump_s, *sorted(stage.foreign))


def _orders(stage: Stage) -> tuple[object, ...]:
    controller = stage.controllers.controller
    jobs = {} if controller is None else controller.kernel.jobs
    told = ((job_id, state.generation) for job_id, state in sorted(jobs.items()) if state.generation)
    return (stage.controllers.lives, *told)


def has_strangers(stage: Stage, backup: Backup) -> bool:
    """Whether something is rented that it does not know."""
    return any(int(instance.node_id.removeprefix("n")) > backup.numbered for instance in stage.cloud.alive())


def put_back(stage: Stage, backup: Backup) -> None:
    """It is the store now."""
    age_s = stage.world.now_s - backup.at_s
    unknown = stage.cloud.spent_grains() - backup.spent_grains + stage.cloud.burn_grains_per_s() * FOUND_S
    stage.forgotten_grains += unknown
    stage.most_under_grains += unknown
    stage.most_over_grains += backup.burn * (age_s + FOUND_S)
    tables = [name for name in ("jobs", "shelf") if stage.disk.has_table(name)]  # one of before may lack the shelf
    kept = {job_id for name in tables for (job_id,) in stage.disk.rows(f"SELECT job_id FROM {name}")}  # noqa: S608 - ours
    stage.users.ask_again(kept)
