"""Which GPUs of which nodes each job holds, and which it will leave when its move is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sublet.domain.shape import Placement
from sublet.kernel.cluster import Cluster
from sublet.kernel.values_json import from_plain, to_plain


class Placements:
    """Keeps the cluster's free GPUs in step."""

    def __init__(self, cluster: Cluster) -> None:
        self.held: dict[str, Placement] = {}  # by job
        self.leaving: dict[str, Placement] = {}  # by job
        self.changed: Callable[[str], None] = lambda _: None  # told of every job that holds others than before
        self._cluster = cluster

    def all_of(self, job_id: str) -> Mapping[str, int]:
        """GPUs by node, with those that it will leave."""
        return Counter(dict(self.held.get(job_id, ()))) + Counter(dict(self.leaving.get(job_id, ())))

    def pool_of(self, job_id: str) -> str | None:
        """The pool of its GPUs; None = it has none."""
        held = self.held.get(job_id)
        return self._cluster.nodes[held[0][0]].offer.pool if held else None

    def move(self, job_id: str, placement: Placement) -> None:
        """It takes what it has not yet, and will leave the rest; an earlier move may be unfinished."""
        held, new = dict(self.held.get(job_id, ())), dict(placement)
        leaving = dict(self.leaving.get(job_id, ()))
        for node_id in held | new:
            more = new.get(node_id, 0) - held.get(node_id, 0)
            if more > 0:
                self._cluster.take(job_id, node_id, more)
            elif more < 0:
                leaving[node_id] = leaving.get(node_id, 0) - more
        if leaving:
            self.leaving[job_id] = tuple(leaving.items())
        self.held[job_id] = placement
        self.changed(job_id)

    def finish_move(self, job_id: str) -> bool:
        """It has left what it was to leave; whether that was anything."""
        return self._give(job_id, self.leaving.pop(job_id, ()))

    def vacate(self, job_id: str) -> bool:
        """It has left everything; whether that was anything."""
        left = self.finish_move(job_id)
        return self._give(job_id, self.held.pop(job_id, ())) or left

    def lose(self, job_id: str, node_id: str) -> Placement:
        """A node was taken from under it: what survives. A move that broke has not left its old GPUs."""
        survives = Counter(dict(self.held.get(job_id, ()))) + Counter(dict(self.leaving.pop(job_id, ())))
        del survives[node_id]
        self.held[job_id] = tuple(survives.items())
        self.changed(job_id)
        return self.held[job_id]

    def _give(self, job_id: str, placement: Placement) -> bool:
        for node_id, gpus in placement:
            self._cluster.give(job_id, node_id, gpus)
        if placement:
            self.changed(job_id)
        return bool(placement)

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"placement": to_plain(self.held), "leaving": to_plain(self.leaving)}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.held.update((job_id, from_plain(Placement, at)) for job_id, at in facts["placement"].items())
        self.leaving.update((job_id, from_plain(Placement, at)) for job_id, at in facts["leaving"].items())
