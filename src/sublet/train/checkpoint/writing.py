"""When a session writes checkpoints at its boundaries: rank 0 by itself, or with what all others hold.

Where the optimizer's state is in ranges, rank 0 says with its gradients that a checkpoint is due; at the boundary after
that step all give it their ranges, and it writes as ever. So a checkpoint is the same with ranges and without.
"""

from __future__ import annotations

from sublet.train.checkpoint.saving import Saver
from sublet.train.link.peers import PeerGroup
from sublet.train.sessions.steps import Steps
from sublet.train.shards.mesh import PeerMesh
from sublet.train.state.state import State

__all__ = ["Writing"]


class Writing:
    """Of one session."""

    def __init__(self, steps: Steps, state: State, saver: Saver) -> None:
        self._steps, self._state, self._saver = steps, state, saver

    @property
    def _is_cut(self) -> bool:
        return self._steps.shards is not None and self._steps.shards.is_cut

    def tick(self, now_s: float, group: PeerGroup, *, asked: bool, agreed: bool) -> None:
        """At a boundary of each member; `agreed` if all know that one is due. Broken if one is gone meanwhile."""
        saver, progress, steps = self._saver, self._steps.progress, self._steps
        if not self._is_cut:
            if group.rank == 0:
                saver.tick(now_s, lambda: self._state.tree(progress), progress, group.world, asked=asked)
            return
        if agreed:
            self.collect(group)
        if group.rank != 0:
            steps.save_due = False
        elif agreed and steps.save_due:
            saver.begin(self._state.tree(progress), progress, group.world)
            steps.save_due = False
        else:
            steps.save_due = steps.save_due or saver.is_due(now_s, asked=asked)
        self.let_go()

    def collect(self, group: PeerGroup) -> None:
        """Rank 0 has all of the state; Broken."""
        if self._is_cut and self._steps.shards is not None:
            self._steps.shards.collect(PeerMesh(group))

    def let_go(self) -> None:
        """Of what was collected."""
        if self._is_cut and self._steps.shards is not None:
            self._steps.shards.moments.let_go()
