"""The grid of a group: which one was ordered, who sits where, who takes part in handing over, and who has joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sublet.domain.shape import Grid
from sublet.planning.seating import Seats, seats
from sublet.runtime.group.workers import Worker
from sublet.wire import messages as wire
from sublet.wire.grids import NO_PLACE

__all__ = ["Form", "Places"]


@dataclass(frozen=True, slots=True)
class Form:
    """What an order says of a grid, and which of the nodes that it names are on demand."""

    grid: Grid
    on_demand: frozenset[str] = frozenset()


class Places:
    """Of one group; without a grid it is data parallel, and nothing here is asked."""

    def __init__(self, cut: str = "") -> None:
        self.cut = cut  # as the wire has it; "" = nothing of this job is cut
        self.form: Form | None = None  # that was ordered
        self.formed: Grid | None = None  # that places are of
        self.blocks: tuple[int, ...] = ()  # bytes of the state of each
        self.joined: dict[str, wire.Joined] = {}  # of this round
        self._awaited: frozenset[str] = frozenset()  # all who are to join

    @property
    def grid(self) -> Grid | None:
        """That was ordered."""
        return None if self.form is None else self.form.grid

    def take(self, form: Form | None) -> None:
        """An order."""
        self.form = form if self.cut else None

    def possible(self, workers: int, *, broken: bool) -> Grid | None:
        """What so many can be now: the grid that was ordered; in a broken one fewer copies of the one before."""
        if self.grid is None or workers >= self.grid.gpus:
            return self.grid
        depth = (self.formed or self.grid).parts
        copies = min(workers // depth, self.grid.copies)
        return Grid(copies, depth) if broken and copies else None

    def seat(self, staying: Sequence[Worker], leaving: Sequence[Worker], grid: Grid) -> Seats:
        """Everybody has a new place after it, or none. Who has not given yet what it was to give is still needed."""
        everyone = [*staying, *leaving]
        found = seats(
            {worker.id: worker.place for worker in everyone},
            self.formed,
            grid,
            self.blocks,
            {worker.id: worker.node_id for worker in everyone},
            kept={worker.id: worker.keeps for worker in everyone if worker.keeps},
            leaving={worker.id for worker in leaving},
            steady={worker.id for worker in staying if self.form and worker.node_id in self.form.on_demand},
        )
        ranks = {name: rank for rank, name in enumerate(found.staying(grid.parts))}
        still = {worker.id for worker in everyone if worker.gives and worker.id not in ranks}
        found = replace(found, givers=tuple(sorted({*found.givers, *still})))
        for worker in everyone:
            worker.gives, worker.rank = worker.id in found.givers, ranks.get(worker.id, -1)
            worker.place, worker.keeps = found.members.get(worker.id), found.keepers.get(worker.id, ())
        self.formed, self.joined, self._awaited = grid, {}, frozenset(ranks)
        return found

    def orders(
        self, found: Seats, workers: Iterable[Worker], generation: int, *, batch: int, broken: bool, micro_batch: int
    ) -> Iterator[wire.Regroup]:
        """One for each who meets: it knows who stays by its rank."""
        assert self.formed is not None  # noqa: S101 - they have just been seated
        grid, order = self.formed, found.meeting(self.formed.parts)
        by_id = {worker.id: worker for worker in workers}
        staying = [by_id[name] for name in order if by_id[name].rank >= 0]
        nodes = list(dict.fromkeys(worker.node_id for worker in staying))
        on_node, seen = Counter(worker.node_id for worker in staying), Counter[str]()
        for meeting, name in enumerate(order):
            worker = by_id[name]
            stays = worker.rank >= 0
            copy, part = worker.place if stays and worker.place is not None else (NO_PLACE, NO_PLACE)
            yield wire.Regroup(
                worker_id=name,
                generation=generation,
                rank=worker.rank,
                world=len(staying),
                local_rank=seen[worker.node_id],
                local_world=max(1, on_node[worker.node_id]),
                node_rank=nodes.index(worker.node_id) if stays else 0,
                nodes=len(nodes),
                batch=batch,
                broken=broken,
                micro_batch=micro_batch,
                copy=copy,
                part=part,
                copies=grid.copies,
                parts=grid.parts,
                cut=self.cut,
                keeps=worker.keeps if stays else (),
                meeting=meeting,
                meets=len(order),
                stays=stays,
            )
            seen[worker.node_id] += stays

    def has_joined(self, message: wire.Joined) -> bool:
        """Whether that was the last who was waited for."""
        self.joined[message.worker_id] = message
        return self._awaited <= self.joined.keys()
