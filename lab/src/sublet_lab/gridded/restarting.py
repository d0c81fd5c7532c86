"""Checkpoint and restart as a policy: the fastest grid, and into any other than its own a job goes through its disk.

A job that is to change is stopped: all its workers save together and end. The next plan starts it again, in new
processes, which load what was saved. Its nodes are held meanwhile. If instances only join the spares nothing is
stopped; where any of its own go, it is, since it stands for a system that cannot go on without them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sublet.domain.plan import JobState, Phase, Plan, Pool, Snapshot
from sublet.domain.shape import Shape
from sublet.planning.turns import fastest_shape, serve_in_turn


@dataclass(frozen=True, slots=True)
class CheckpointRestart:
    """First come, first served."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Stop what has to change; start what is stopped."""
        held: Counter[str] = Counter()

        def choose(state: JobState, pool: Pool, gpus: int) -> Shape | None:
            shape, runs = fastest_shape(state, pool, gpus), state.runs_in
            if state.phase is Phase.WAITING or shape is None or runs is None:
                return shape
            if shape.trains_like(runs) and min(shape.gpus, state.gpus) >= runs.gpus:
                return shape
            held[pool.name] += gpus
            return None

        draft = serve_in_turn(snapshot, choose)
        for pool, gpus in held.items():
            draft.hold_spares(pool, gpus)
        return draft.plan()
