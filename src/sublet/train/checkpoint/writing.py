"""When a session writes checkpoints at its boundaries: rank 0, with what all others have of its state.

That are random numbers of torch, and ranges of the optimizer's state where it lies in ranges. Rank 0 says with its
gradients that a checkpoint is due; at the boundary after that step all give it theirs. So a checkpoint is the same with
ranges and without.
"""

from __future__ import annotations

from functools import partial

from sublet.train.checkpoint.saving import Saver
from sublet.train.link.peers import PeerGroup
from sublet.train.numerics.seeds import own_dice
from sublet.train.sessions.steps import Steps
from sublet.train.shards.mesh import PeerMesh
from sublet.train.state.state import State

__all__ = ["Writing"]


class Writing:
    """Of one session."""

    def __init__(self, steps: Steps, state: State, saver: Saver) -> None:
        self._steps, self._state, self._saver = steps, state, saver

    def tick(self, now_s: float, group: PeerGroup, *, asked: bool, agreed: bool) -> None:
        """At a boundary of each member; `agreed` if all know that one is due. Broken if one is gone meanwhile."""
        saver, steps, progress = self._saver, self._steps, self._steps.progress
        tree = partial(self._state.tree, progress)
        if group.world == 1:
            saver.tick(now_s, tree, progress, group.world, asked=asked or steps.save_due)
            steps.save_due = False
            return
        if agreed:
            self.collect(group)
        steps.save_due = group.rank == 0 and (steps.save_due or saver.is_due(now_s, asked=asked))
        if agreed and steps.save_due:
            saver.begin(tree(), progress, group.world)
            steps.save_due = False
        self._state.dice = None
        if steps.shards is not None and steps.shards.is_cut:
            steps.shards.moments.let_go()

    def collect(self, group: PeerGroup) -> None:
        """Rank 0 has all of the state; Broken."""
        self._state.dice = group.rows(own_dice())
        if self._steps.shards is not None and self._steps.shards.is_cut:
            self._steps.shards.collect(PeerMesh(group))
