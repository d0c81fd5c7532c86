"""Copies of the store that are put back later: what was so when they were made, and what nobody can know afterwards.

What was rented, spent and promised since then is not in the log any more. Nodes are found by their marks and ended; the
bill cannot know them; users who were promised something since then are told, and bring it once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sublet.testing.world.stage import Stage

__all__ = ["Backup", "begin", "has_strangers", "is_fresh", "put_back"]

FOUND_S = 240.0  # at most, until what was rented since then is found and ended: as law I3 has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """As of a copy."""

    at_s: float
    spent_grains: float
    burn: float  # grains a second
    numbered: int  # nodes that were ever asked for
    orders: tuple[object, ...]  # controllers, and what jobs were told


def begin(stage: Stage) -> Backup:
    """A copy is made now."""
    controller = stage.controllers.controller
    return Backup(
        at_s=stage.world.now_s,
        spent_grains=stage.cloud.spent_grains(),
        burn=stage.cloud.burn_grains_per_s(),
        numbered=0 if controller is None else controller.kernel.supply.numbered,
        orders=_orders(stage),
    )


def is_fresh(stage: Stage, backup: Backup) -> bool:
    """No job was told anything since then: groups are numbered by the log, and would be numbered alike twice."""
    return backup.orders == _orders(stage)


def _orders(stage: Stage) -> tuple[object, ...]:
    controller = stage.controllers.controller
    jobs = {} if controller is None else controller.kernel.jobs
    told = ((job_id, state.generation) for job_id, state in sorted(jobs.items()) if state.generation)
    return (stage.controllers.lives, *sorted(stage.foreign), *told)


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
    kept = {job_id for (job_id,) in stage.disk.rows("SELECT job_id FROM jobs UNION SELECT job_id FROM shelf")}
    stage.users.ask_again(kept)
