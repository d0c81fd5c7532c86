"""Ranges of workers: gathered after every step, agreed on and handed over after a change.

After every step updated ranges go to all workers, in one gathering of equal blocks for each 25 MB of weights. The
holders of a range divide it, so each sends about 1/W. Blocks of other holders of our own range are taken too, so that
weights are equal to the bit at all workers.

A worker that has the sum of a step updates its range, and keeps the sum until it has the ranges of all others
(`Gather`). Once it has them, all others have updated. So a step is applied to all ranges or to none. After a loss, with
`applied` steps each:

    some have the whole step                  all others have updated their ranges, and take the other weights
    some have updated their range, none more  the others get the sum from them, and update; then weights are exchanged
    none has updated                          the step is dropped, and made again

Then ranges move to their new holders, as far as these lack them. If no worker has a range any more (`Gone`), all go
back to a checkpoint. No worker drops a range before all have what they want.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sublet.train.link.devices import Staging
from sublet.train.link.following import Broken
from sublet.train.link.peers import PeerGroup, talking
from sublet.train.private import copy_all
from sublet.train.shards.moments import Held, Moments
from sublet.train.shards.ranges import Flat, Parcel, Ranges, Span, cells, moved, within

ROUND_BYTES = 25 << 20  # as a bucket of gradients: it is needed beside the weights, once
NUMBER_BYTES = 4  # of most weights, to choose how many go into a round
NOTHING = -1  # steps of a worker without a state
MOVES = 4 << 20  # tags of messages
CPU = torch.device("cpu")


class PeerMesh:
    """Workers 0 to `world` - 1; of one alone nothing is said. Broken from whatever waits for one that is gone."""

    def __init__(self, group: PeerGroup, staging: Staging | None = None) -> None:
        self._staging = staging or Staging()
        self.rank, self.world, self._group = group.rank, group.world, group
        self._works: list[Any] = []
        self._sent: list[torch.Tensor] = []  # memory that gloo still reads
        self._came: list[tuple[torch.Tensor, torch.Tensor]] = []  # where it belongs, and what came for it
        self._batch: list[tuple[torch.Tensor, int]] = []  # of NCCL: what is sent, and to which worker
        self._wanted: list[tuple[torch.Tensor, int]] = []

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Over all, in place."""
        if len(ranks) > 1 and tensor.numel():
            with talking():
                self._group.all_reduce(tensor)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """The tensor of `source`, at all."""
        if self.world > 1 and tensor.numel():
            with talking():
                self._group.broadcast(tensor, source)

    def gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """The block of each, by rank, at all."""
        with talking():
            self._group.gather(everything, mine)

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """By gloo from host memory; it may be written over once `settle` has returned. NCCL sends in batches."""
        if self._group.is_nccl:
            self._batch.append((tensor.to(self._group.device), to))
            return
        there = self._staging.out(tensor)
        self._sent.append(there)
        with talking():
            self._works.append(self._group.send(there, to, tag))

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """It is here once `settle` has returned."""
        if self._group.is_nccl:
            device = self._group.device
            there = tensor if tensor.device == device else torch.empty_like(tensor, device=device)
            self._came.append((tensor, there))
            self._wanted.append((there, giver))
            return
        there = self._staging.room(tensor)
        self._came.append((tensor, there))
        with talking():
            self._works.append(self._group.receive(there, giver, tag))

    def settle(self) -> None:
        """Wait for all that was sent and received."""
        works, batch, wanted, came = self._works, self._batch, self._wanted, self._came
        self._works, self._batch, self._wanted, self._came = [], [], [], []
        with talking():
            if batch or wanted:
                self._group.exchange(batch, wanted)
            for work in works:
                self._group.wait_for_message(work)
        for tensor, there in came:
            self._staging.bring(there, tensor)
        self._sent = []


@dataclass(frozen=True, slots=True)
class _Round:
    packed: tuple[list[torch.Tensor], list[torch.Tensor]]  # views of our block, and the weights that go there
    opened: tuple[list[torch.Tensor], list[torch.Tensor]]  # weights, and the views that they are in


class Gather:
    """The exchange after a step, of one worker in one group."""

    def __init__(self, flat: Flat, ranges: Ranges, rank: int) -> None:
        shares = [ranges.share(each) for each in range(ranges.world)]
        longest = max(end - start for start, end in shares)
        step = max(1, ROUND_BYTES // NUMBER_BYTES // ranges.world)
        cuts = [
            [flat.pieces(min(start + at, end), min(start + at + step, end)) for start, end in shares]
            for at in range(0, longest, step)
        ]
        parcels = [
            [Parcel((flat.parameters[each.parameter].dtype, each.size) for each in pieces) for pieces in cut]
            for cut in cuts
        ]
        block = max((parcel.size_bytes for each in parcels for parcel in each), default=0)
        device = flat.parameters[0].device
        self._mine = torch.zeros(block, dtype=torch.uint8, device=device)
        self._everything = torch.zeros(ranges.world * block, dtype=torch.uint8, device=device)
        self._rounds: list[_Round] = []
        others = [each for each in range(ranges.world) if each != rank]
        for cut, sizes in zip(cuts, parcels, strict=True):
            weights = [[flat.weights(piece) for piece in pieces] for pieces in cut]
            views = [parcel.seen_in(self._everything[n * block : (n + 1) * block]) for n, parcel in enumerate(sizes)]
            packed = (sizes[rank].seen_in(self._mine), weights[rank])
            opened = ([w for n in others for w in weights[n]], [v for n in others for v in views[n]])
            self._rounds.append(_Round(packed, opened))

    def run(self, group: PeerMesh, point: Callable[[str], None]) -> None:
        """All weights are those after the step."""
        for each in self._rounds:
            copy_all(*each.packed)
            group.gather(self._everything, self._mine)
            point("gathering")
            copy_all(*each.opened)


class Gone(Exception):
    """No worker that is left has some range; training had made `steps`."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"a range of the optimizer's state after {steps} steps")
        self.steps = steps


class Run(Protocol):
    """The training of this worker."""

    @property
    def applied(self) -> int:
        """Steps; NOTHING without a state."""

    def update_late(self, mesh: PeerMesh, speaker: int, *, late: bool) -> None:
        """All get the sums of the step under way from the speaker; a `late` worker updates its range."""

    def finish(self) -> None:
        """All weights are those after the step under way, which counts now."""

    def tell(self, mesh: PeerMesh, speaker: int) -> Any:
        """The speaker's state without moments, at all members."""

    def take(self, tree: Any) -> None:
        """Take over this state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Of one worker at a meeting."""

    applied: int
    half: bool
    stated: bool  # the optimizer keeps something
    stays: bool  # in the next group
    saves: bool
    spans: tuple[Span, ...]


class Shards:
    """The ranges of one worker; `point` is called at each stage, for tests that end it there."""

    def __init__(self, moments: Moments, run: Run, point: Callable[[str], None] = lambda _: None) -> None:
        self.moments, self.run, self.point = moments, run, point
        self.half = False  # our range is updated, and other ranges perhaps not
        self.moved_bytes = 0  # that came to us at the last meeting
        self._ranges = Ranges(moments.flat.size, 1, 1)
        self._gather: Gather | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the optimizer has only a range, so that weights have to be gathered."""
        return self._gather is not None

    @property
    def is_whole(self) -> bool:
        """Whether all of the state is here, after one step."""
        return not self.half and within(self.moments.spans(), 0, self._ranges.size)

    def gather(self, mesh: PeerMesh) -> None:
        """After the update of our range: get the others. Broken leaves us half through the step."""
        if self._gather is not None:
            self.half = True
            self.point("updated")
            self._gather.run(mesh, self.point)
            self.half = False

    # ------------------------------------------------------------------------------------------ meetings

    def meet(self, mesh: PeerMesh, count: int) -> None:
        """Agree with all members of a new group of `count` ranges. Gone, or Broken."""
        self.moved_bytes, self._gather = 0, None
        self.point("meeting")
        facts = self._facts(mesh)
        everyone = range(mesh.world)
        goal = max(each.applied + each.half for each in facts)
        whole = [n for n in everyone if facts[n].applied == goal]
        halves = [n for n in everyone if facts[n].half and facts[n].applied == goal - 1]
        late = [n for n in everyone if not whole and facts[n].applied == goal - 1 and not facts[n].half]
        current = {*whole, *halves, *late}
        have = [facts[n].spans if n in current else () for n in everyone]
        stated = any(facts[n].stated for n in current)
        lacks = not within([span for spans in have for span in spans], 0, self.moments.flat.size)
        if lacks and (stated or not whole):
            raise Gone(goal)
        if late:
            self._catch_up(mesh, halves[0], late=mesh.rank in late)
        if not whole:
            self._exchange_weights(mesh, have)
            if mesh.rank in current:
                self.run.finish()
                self.half = False
            whole, halves = sorted(current), []
        self.point("even")
        if len(whole) < mesh.world:
            tree = self.run.tell(mesh, whole[0])
            if mesh.rank not in current:
                self.moments.forget()
            if mesh.rank not in whole:
                self.run.take(tree)
                self.half = False
        ranges = self._ranges = Ranges(self.moments.flat.size, count, mesh.world)
        came = self._exchange(mesh, have, [[ranges.of(n)] for n in everyone]) if stated else []
        self.moments.hold(ranges.of(mesh.rank), came)
        if count > 1:
            self._gather = Gather(self.moments.flat, ranges, mesh.rank)
        self.point("met")

    def hand_over(self, mesh: PeerMesh, *, stays: bool, saves: bool) -> None:
        """Before a group parts: the members that stay get all of it; if none stays, the first, to save it."""
        facts = self._facts(mesh, stays=stays, saves=saves)
        have, staying = [each.spans for each in facts], [n for n, each in enumerate(facts) if each.stays]
        if not staying:
            if any(each.saves for each in facts):
                self._collect(mesh, have)
            return
        if within([span for n in staying for span in have[n]], 0, self._ranges.size):
            return
        keep = mesh.world // self._ranges.count
        ranges = Ranges(self._ranges.size, max(1, len(staying) // keep), len(staying))
        seats = {n: ranges.of(seat) for seat, n in enumerate(staying)}
        came = self._exchange(mesh, have, [[seats[n]] if n in seats else [] for n in range(mesh.world)])
        if stays:
            self.moments.hold(seats[mesh.rank], came)

    def collect(self, mesh: PeerMesh) -> None:
        """All of it to the first, beside its own range; `moments.let_go` once it is written."""
        self._collect(mesh, [each.spans for each in self._facts(mesh)])

    def _collect(self, mesh: PeerMesh, have: Sequence[Sequence[Span]]) -> None:
        want: list[list[Span]] = [[(0, self._ranges.size)], *([] for _ in have[1:])]
        self.moments.keep_beside(self._exchange(mesh, have, want, CPU))

    # ------------------------------------------------------------------------------------------ their parts

    def _facts(self, mesh: PeerMesh, *, stays: bool = True, saves: bool = False) -> list[_Facts]:
        """Of all members, by rank; spans in a table of their own, with as many columns as the most that one has."""
        spans = self.moments.spans() if self.run.applied != NOTHING else []
        rows = self._table(mesh, [self.run.applied, self.half, self.moments.is_stated, stays, saves, len(spans)])
        most = max(row[-1] for row in rows)
        borders = self._table(mesh, [border for span in [*spans, *[(0, 0)] * (most - len(spans))] for border in span])
        return [
            _Facts(
                applied=applied,
                half=bool(half),
                stated=bool(stated),
                stays=bool(stays),
                saves=bool(saves),
                spans=tuple(zip(line[::2], line[1::2], strict=True))[:count],
            )
            for (applied, half, stated, stays, saves, count), line in zip(rows, borders, strict=True)
        ]

    def _table(self, mesh: PeerMesh, ours: Sequence[int]) -> list[list[int]]:
        """The numbers of each, by rank."""
        table = torch.zeros(mesh.world, len(ours), dtype=torch.int64)
        table[mesh.rank] = torch.tensor(ours)
        mesh.sum(table, range(mesh.world))
        rows: list[list[int]] = table.tolist()
        return rows

    def _catch_up(self, mesh: PeerMesh, speaker: int, *, late: bool) -> None:
        """A worker with the whole step has dropped its sum: so all update before weights are exchanged."""
        self.run.update_late(mesh, speaker, late=late)
        self.half |= late
        self.point("late")
        mesh.sum(torch.zeros(1), range(mesh.world))

    def _exchange_weights(self, mesh: PeerMesh, have: Sequence[Sequence[Span]]) -> None:
        """Each range from the first that has updated it: no worker has all of the step yet."""
        flat = self.moments.flat
        for low, high in cells(flat.size, [span for spans in have for span in spans]):
            speaker = next(n for n, spans in enumerate(have) if within(spans, low, high))
            pieces = flat.pieces(low, high)
            parcel = Parcel((flat.parameters[each.parameter].dtype, each.size) for each in pieces)
            memory = torch.empty(parcel.size_bytes, dtype=torch.uint8, device=self.moments.device)
            views = parcel.seen_in(memory)
            if mesh.rank == speaker:
                for view, piece in zip(views, pieces, strict=True):
                    view.copy_(flat.weights(piece))
            mesh.broadcast(memory, speaker)
            if mesh.rank != speaker:
                for view, piece in zip(views, pieces, strict=True):
                    flat.weights(piece).copy_(view)

    def _exchange(
        self,
        mesh: PeerMesh,
        have: Sequence[Sequence[Span]],
        want: Sequence[Sequence[Span]],
        device: torch.device | None = None,
    ) -> list[Held]:
        """Ranges that came to us; no worker drops anything before all have what they want."""
        found = moved(self._ranges.size, have, want)
        if found is None:
            raise Gone(self.run.applied)
        (pieces, moves), held = found, self.moments.held()
        if not moves:
            return []  # all know that all have what they want
        memories: dict[int, torch.Tensor] = {}
        came: list[Held] = []
        for turn in range(1 + max((move.round for move in moves), default=-1)):
            for move in moves:
                if move.round == turn and move.giver == mesh.rank:
                    if move.unit not in memories:
                        memories[move.unit] = self.moments.packed(pieces[move.unit], held)
                    mesh.send(memories[move.unit], move.taker, MOVES + move.unit)
            for move in moves:
                if move.round == turn and move.taker == mesh.rank:
                    size = self.moments.parcel(pieces[move.unit]).size_bytes
                    memory = torch.empty(size, dtype=torch.uint8, device=device or self.moments.device)
                    memories[move.unit] = memory
                    mesh.receive(memory, move.giver, MOVES + move.unit)
                    self.moved_bytes += size
            mesh.settle()
            self.point("moving")
        mine = {move.unit for move in moves if move.taker == mesh.rank}
        for unit in sorted(mine):
            came += self.moments.opened(pieces[unit], memories[unit])
        try:
            mesh.sum(torch.zeros(1), range(mesh.world))
        except Broken:  # others may have let go of what we have, or not have received what we had
            self.moments.keep_beside(came)
            raise
        self.point("moved")
        return came
