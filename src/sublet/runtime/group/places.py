"""The grid of a group: the ordered one, its seats, the members of the hand-over, and those that have joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sublet.domain.shape import Grid
from sublet.perf.part_memory import PartMemory
from sublet.planning.seating import Seats, kept_ahead, seats
from sublet.runtime.group.workers import Worker, WorkerPhase
from sublet.runtime.jobs.bounds import MOST_STAGES
from sublet.wire import messages as wire
from sublet.wire.messages import NO_PLACE, STAGES

TOO_FEW = "a part of its model does not fit into memory, of {} parts; next: parallel.stages: auto, or a larger number"


@dataclass(frozen=True, slots=True)
class Form:
    """An order for a grid, and which of the nodes that it names are on demand."""

    grid: Grid
    on_demand: frozenset[str] = frozenset()
    device_bytes: int = 0  # memory of a GPU, as its pool states it; 0 = not known


class Places:
    """The places of one group; without a grid it is data parallel, and nothing here is asked."""

    def __init__(self, cut: str = "", stages: int = 0) -> None:
        self.cut = cut  # as the wire has it; "" = nothing of this job is cut
        self.stages = stages  # as its owner has it; 0 = as many as the plan finds best, of those that fit
        self.form: Form | None = None  # that was ordered
        self.formed: Grid | None = None  # that places are of
        self.blocks: tuple[int, ...] = ()  # bytes of the state of each
        self.memory = PartMemory()
        self._generation = -1  # of the orders that led there
        self.joined: dict[str, wire.Joined] = {}  # of this round
        self._awaited: frozenset[str] = frozenset()  # all that are to join

    @property
    def grid(self) -> Grid | None:
        """That was ordered."""
        return None if self.form is None else self.form.grid

    def take(self, form: Form | None, workers: int) -> None:
        """An order, of so many."""
        self.form = self.form_of(form, workers)

    def form_of(self, form: Form | None, workers: int) -> Form | None:
        """The form of an order: copies of one part need no plan of their own, there is one for each worker."""
        if self.cut and form is None and self.stages == 1:
            return Form(Grid(max(1, workers)))
        return form if self.cut else None

    def become_copies(self, workers: int) -> None:
        """A job of one stage whose model is in stages: it is a grid, of copies of one part."""
        self.cut = STAGES
        self.take(None, workers)

    def hear(self, message: wire.Ready) -> None:
        """A session is ready: what its model takes, and what there is for it."""
        if not self.cut or not message.blocks:
            return
        self.blocks = message.blocks
        stated = 0 if self.form is None else self.form.device_bytes
        self.memory = replace(
            self.memory,
            device_bytes=message.device_bytes or stated or self.memory.device_bytes,
            gradient_bytes=message.weight_bytes // 2,
        )

    def hear_step(self, message: wire.Stepped) -> None:
        """Steps take the state along, and show that parts as they are fit."""
        beside, worked = max(self.memory.beside_bytes, message.beside_bytes), self.memory.worked
        if self.formed is not None and message.generation == self._generation:
            worked = min(worked or self.formed.parts, self.formed.parts)
        if (beside, worked) != (self.memory.beside_bytes, self.memory.worked):
            self.memory = replace(self.memory, beside_bytes=beside, worked=worked)

    def possible(self, workers: int, *, broken: bool) -> Grid | None:
        """The possible grid of so many now: the ordered one; in a broken one fewer copies of the one before.

        One whose parts do not fit is not even tried: it is the shallowest that does, until the plan, which hears of it,
        orders another.
        """
        if self.grid is None:
            return None
        found = self.grid
        if workers < found.gpus:
            depth = (self.formed or found).parts
            copies = min(workers // depth, found.copies)
            if not (broken and copies):
                return None
            found = Grid(copies, depth)
        if self.stages or self.memory.fits(self.blocks, found.parts):
            return found
        least = self.memory.least(self.blocks, min(workers, MOST_STAGES))
        return None if least is None else Grid(workers // least, least)

    def runs_out(self) -> str:
        """A worker has run out of memory in the grid of now. Why that is the end, in words; "" if others may be."""
        parts = (self.formed or self.grid or Grid(1)).parts
        self.memory = replace(self.memory, failed=max(self.memory.failed, parts))
        return self.refuses() or (TOO_FEW.format(parts) if self.stages else "")

    def refuses(self) -> str:
        """Why no grid of this model fits, in words; "" if one does, or its owner has said how many parts."""
        most = min(MOST_STAGES, len(self.blocks) or MOST_STAGES)
        if self.stages or self.memory.least(self.blocks, most) is not None:
            return ""
        return f"{self.memory.describe(self.blocks, most)}; next: GPUs with more memory, or a smaller micro_batch"

    def spares(self, workers: Iterable[Worker]) -> int:
        """Waiting workers, in no place: some of them may keep a part."""
        waits = (WorkerPhase.READY, WorkerPhase.MEMBER)
        return sum(self.formed is not None and each.place is None and each.phase in waits for each in workers)

    def seat(self, staying: Sequence[Worker], leaving: Sequence[Worker], grid: Grid) -> Seats:
        """Everybody has a new place after it, or none.

        A worker that has not given yet what it was to give is still needed.
        """
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

    def prepare(
        self, workers: Sequence[Worker], doomed: Collection[str], generation: int, to: Grid | None
    ) -> Iterator[tuple[Worker, wire.Keep]]:
        """Nodes will go: the survivors keep the state for their loss from now on. They count as holders of it."""
        if self.formed is None:
            return
        by_id = {worker.id: worker for worker in workers}
        found = kept_ahead(
            {worker.id: worker.place for worker in workers},
            self.formed,
            to,
            self.blocks,
            {worker.id: worker.node_id for worker in workers},
            kept={worker.id: worker.keeps for worker in workers},
            doomed=doomed,
            steady={worker.id for worker in workers if self.form and worker.node_id in self.form.on_demand},
        )
        for name, parts in found.items():
            worker = by_id[name]
            worker.keeps = (*worker.keeps, *parts)
            yield worker, wire.Keep(worker_id=name, generation=generation, parts=parts)

    def orders(
        self, found: Seats, workers: Iterable[Worker], generation: int, *, batch: int, broken: bool, micro_batch: int
    ) -> Iterator[wire.Regroup]:
        """One order for each member: it knows staying workers by their rank."""
        assert self.formed is not None  # noqa: S101 - they have just been seated
        grid, order, self._generation = self.formed, found.meeting(self.formed.parts), generation
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
        """Whether that was the last awaited one."""
        self.joined[message.worker_id] = message
        return self._awaited <= self.joined.keys()
