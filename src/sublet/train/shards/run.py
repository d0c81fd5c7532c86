"""The training of a session, as the meetings of those who hold ranges ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sublet.train.checkpoint.saving import Saver
from sublet.train.numerics.noise import Noise
from sublet.train.sessions.steps import Steps
from sublet.train.shards.fits import moments_of
from sublet.train.shards.meeting import NOTHING, Mesh, Shards
from sublet.train.state.state import TRAINED_S, State, broadcast

__all__ = ["SessionRun"]


class SessionRun:
    """Of one session, whose optimizer's state is in ranges from now on. InvalidValue if its optimizer cannot."""

    def __init__(self, steps: Steps, state: State, saver: Saver) -> None:
        self._steps, self._state, self._saver = steps, state, saver
        state.moments = moments_of(state, steps.gradients.parameters)
        self.shards = steps.shards = Shards(state.moments, self)
        steps.gradients.seen_by = state.moments.see_gradients
        self.carries = False  # there is a state: ours, or another's
        self.handed: Any = None  # what another has handed to us
        self._rank = 0

    @property
    def applied(self) -> int:
        """Steps; NOTHING without a state."""
        return self._steps.progress.steps if self.carries else NOTHING

    def update_late(self, mesh: Mesh, speaker: int, *, late: bool) -> None:
        """All hear the sums; who is late updates its range, at the rate that the speaker had."""
        gradients = self._steps.gradients
        gradients.attach()
        for bucket in gradients.buckets:
            mesh.broadcast(bucket.flat, speaker)
        ours = asdict(self._steps.progress.noise) if mesh.rank == speaker else None
        noise: Mapping[str, Any] = broadcast(mesh, speaker, ours)
        if late:
            self._steps.apply_late(Noise(**noise))

    def finish(self) -> None:
        """The step under way counts."""
        self._steps.count()

    def tell(self, mesh: Mesh, speaker: int) -> Any:
        """All of the speaker's state but moments."""
        ours = None
        self._rank = mesh.rank
        if mesh.rank == speaker:
            bare = self._state.tree(self._steps.progress, bare=True)
            ours = {**bare, TRAINED_S: self._saver.trained_s}
        return broadcast(mesh, speaker, ours)

    def take(self, tree: Any) -> None:
        """It is ours now."""
        self._state.restore(tree, self._steps.progress, same_dice=False, rank=self._rank)
        self._saver.take_over(tree.get(TRAINED_S, 0.0))
        self._steps.gradients.clear()
        self.carries, self.handed = True, tree
