"""The training of a session, as meetings of ranges see it; and its needs, as a session reports them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.checkpoint.saving import Saver
from sublet.train.numerics.memory import memory_of
from sublet.train.numerics.noise import Noise
from sublet.train.sessions.fitness import RANGES, Asked, check_fits
from sublet.train.sessions.steps import Steps
from sublet.train.shards.meeting import NOTHING, PeerMesh, Shards
from sublet.train.shards.moments import Moments
from sublet.train.state.state import TRAINED_S, State, broadcast


class SessionRun:
    """A session whose optimizer's state is in ranges from now on. InvalidValue if its optimizer cannot."""

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

    def update_late(self, mesh: PeerMesh, speaker: int, *, late: bool) -> None:
        """See Run; a late worker updates at the rate of the speaker."""
        gradients = self._steps.gradients
        gradients.attach()
        for bucket in gradients.buckets:
            mesh.broadcast(bucket.flat, speaker)
        ours = asdict(self._steps.progress.noise) if mesh.rank == speaker else None
        noise: Mapping[str, Any] = broadcast(mesh, speaker, ours)
        if late:
            self._steps.apply_late(Noise(**noise))

    def finish(self) -> None:
        self._steps.count()

    def tell(self, mesh: PeerMesh, speaker: int) -> Any:
        ours = None
        self._rank = mesh.rank
        if mesh.rank == speaker:
            bare = self._state.tree(self._steps.progress, bare=True)
            ours = {**bare, TRAINED_S: self._saver.trained_s}
        return broadcast(mesh, speaker, ours)

    def take(self, tree: Any) -> None:
        self._state.restore(tree, self._steps.progress, rank=self._rank)
        self._saver.take_over(tree.get(TRAINED_S, 0.0))
        self._steps.gradients.clear()
        self.carries, self.handed = True, tree


def fits_of(state: State) -> dict[str, int]:
    """With SUBLET_SHARDS=auto or on: fields of `Ready`. InvalidValue if it is on and this optimizer cannot."""
    asked = os.environ.get("SUBLET_SHARDS", "off")
    if asked not in ("auto", "on"):
        return {}
    found, everything = memory_of(state.model), list(state.model.parameters())
    if not found["device_bytes"] and asked == "auto":
        return {}  # nothing to choose by
    try:
        moments = moments_of(state, [each for each in everything if each.requires_grad])
    except InvalidValue:
        if asked == "on":
            raise
        return found
    return {**found, "ranges": True, "moment_bytes": moments.whole_bytes}


def moments_of(state: State, trained: Iterable[torch.nn.Parameter]) -> Moments:
    """The state of its optimizer, to be cut into ranges; InvalidValue if that cannot be."""
    check_fits(RANGES, Asked(state, optimizer=state.optimizer))
    return Moments(state.optimizer, trained)
