"""Machines and groups that are slower than they should be, or do not come together at all."""

from __future__ import annotations

import random
from collections.abc import Callable

from sublet_lab.world.kinds.nodes import nodes_of
from sublet_lab.world.kinds.workers import SIGKILL, trainers_of
from sublet_lab.world.meetings import Slow
from sublet_lab.world.stage import Stage

TIMES = (4.0, 10.0)  # as long: a straggler is told from three times on
SLOW_S = (30.0, 150.0)  # least and most; a straggler is told after fifteen seconds
UNFORMED_S = (100.0, 500.0)  # two tries of half a minute, and more


def _slow_node(stage: Stage, rng: random.Random) -> bool:
    """A machine takes several times as long for its part of every step: a neighbour, a clock that was lowered."""
    if not (nodes := nodes_of(stage)):
        return False
    instance, _ = rng.choice(nodes)

    def struck() -> None:
        stage.effects["slow_node"] += 1

    until_s = stage.world.now_s + rng.uniform(*SLOW_S)
    stage.meetings.slow[instance.node_id] = Slow(rng.choice(TIMES), until_s, struck)
    return False


def _too_wide(stage: Stage, rng: random.Random) -> bool:
    """Groups of more than one do not form for a while: a firewall between machines, a bug in a library.

    The effect is that one of them does not.
    """
    wide = [f"{plan.name}-1" for plan in stage.story.jobs if plan.sdk and plan.max_workers > 1]
    if not wide:
        return False
    job_id = rng.choice(wide)

    def struck() -> None:
        stage.effects["too_wide"] += 1

    stage.meetings.narrow[job_id] = (stage.world.now_s + rng.uniform(*UNFORMED_S), struck)
    members = [worker for worker in trainers_of(stage) if worker.job_id == job_id]
    if len(members) > 1:
        rng.choice(members).exit(SIGKILL)  # so that they must form once more
    return False


SLOW_KINDS: dict[str, Callable[[Stage, random.Random], bool]] = {"slow_node": _slow_node, "too_wide": _too_wide}
