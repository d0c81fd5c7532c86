"""What those who are left after a change agree on, and hand over: a step is applied to all ranges or to none.

A worker that has the sum of a step updates its range, and keeps the sum until it has the ranges of all others
(`gather`). Who has those knows that everybody has updated. So after a loss, with `applied` steps each:

    some have the whole step                  everybody else has updated its own range, and takes the other weights
    some have updated their range, none more  who lacks the sum gets it from them, and updates; then weights go round
    nobody has updated                        the step is dropped, and made again

Then ranges move to who holds them from now on: only what each lacks. A range that nobody has any more is `Gone`, and
all go back to a checkpoint. Nobody lets go of a range before all have what they want.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sublet.train.link.following import Broken
from sublet.train.shards.flat import Parcel
from sublet.train.shards.gather import Gather
from sublet.train.shards.moments import Held, Moments
from sublet.train.shards.ranges import Ranges, Span, cells, moved, within

__all__ = ["NOTHING", "Gone", "Mesh", "Run", "Shards"]

NOTHING = -1  # steps of one who has no state
MOVES = 4 << 20  # tags of messages
CPU = torch.device("cpu")


class Gone(Exception):
    """Nobody who is left has some range; training had made `steps`."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"a range of the optimizer's state after {steps} steps")
        self.steps = steps


class Mesh(Protocol):
    """Workers 0 to `world` - 1. `following.Broken` from whatever waits for one that is gone."""

    rank: int
    world: int

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Over all of them, in place."""

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """What `source` has, at all."""

    def gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """The block of each, by rank, at all of them."""

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """On its way; it may be written over once `settle` has returned."""

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """It is here once `settle` has returned."""

    def settle(self) -> None:
        """Until all that was sent and received is there."""


class Run(Protocol):
    """The training of this worker."""

    @property
    def applied(self) -> int:
        """Steps; NOTHING without a state."""

    def update_late(self, mesh: Mesh, speaker: int, *, late: bool) -> None:
        """All hear the sums of the step under way, as the speaker has them; who is `late` updates its range."""

    def finish(self) -> None:
        """All weights are those after the step under way: it counts."""

    def tell(self, mesh: Mesh, speaker: int) -> Any:
        """All of the speaker's state but moments, at all."""

    def take(self, tree: Any) -> None:
        """It is ours now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Of one who meets."""

    applied: int
    half: bool
    stated: bool  # the optimizer keeps something
    stays: bool  # in the next group
    saves: bool
    spans: tuple[Span, ...]


class Shards:
    """Of one worker; `point` is told where it is, for those who want to know, or to end it there."""

    def __init__(self, moments: Moments, run: Run, point: Callable[[str], None] = lambda _: None) -> None:
        self.moments, self.run, self.point = moments, run, point
        self.half = False  # our range is updated, and other ranges perhaps not
        self.moved_bytes = 0  # that came to us at the last meeting
        self._ranges = Ranges(moments.flat.size, 1, 1)
        self._gather: Gather | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the optimizer has a range only, so that weights have to be gathered."""
        return self._gather is not None

    @property
    def is_whole(self) -> bool:
        """Whether all of the state is here, after the same step."""
        return not self.half and within(self.moments.spans(), 0, self._ranges.size)

    def gather(self, mesh: Mesh) -> None:
        """After the update of our range: the others' too. Broken leaves us half through the step."""
        if self._gather is not None:
            self.half = True
            self.point("updated")
            self._gather.run(mesh, self.point)
            self.half = False

    # ------------------------------------------------------------------------------------------ meetings

    def meet(self, mesh: Mesh, count: int) -> None:
        """With all of a new group of `count` ranges. Gone, or Broken."""
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
            self._weights_go_round(mesh, have)
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

    def hand_over(self, mesh: Mesh, *, stays: bool, saves: bool) -> None:
        """Before the members of a group part: those who stay have all of it; if nobody does, the first, to save it."""
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

    def collect(self, mesh: Mesh) -> None:
        """All of it to the first, beside what its optimizer has; `moments.let_go` when it is written."""
        self._collect(mesh, [each.spans for each in self._facts(mesh)])

    def _collect(self, mesh: Mesh, have: Sequence[Sequence[Span]]) -> None:
        want: list[list[Span]] = [[(0, self._ranges.size)], *([] for _ in have[1:])]
        self.moments.keep_beside(self._exchange(mesh, have, want, CPU))

    # ------------------------------------------------------------------------------------------ their parts

    def _facts(self, mesh: Mesh, *, stays: bool = True, saves: bool = False) -> list[_Facts]:
        """Of all who meet, by rank; spans in a table of their own, as wide as the most that anybody has."""
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

    def _table(self, mesh: Mesh, ours: Sequence[int]) -> list[list[int]]:
        """What each says, by rank."""
        table = torch.zeros(mesh.world, len(ours), dtype=torch.int64)
        table[mesh.rank] = torch.tensor(ours)
        mesh.sum(table, range(mesh.world))
        rows: list[list[int]] = table.tolist()
        return rows

    def _catch_up(self, mesh: Mesh, speaker: int, *, late: bool) -> None:
        """Nobody keeps its sum once it has the whole step: so all have updated before weights go round."""
        self.run.update_late(mesh, speaker, late=late)
        self.half |= late
        self.point("late")
        mesh.sum(torch.zeros(1), range(mesh.world))

    def _weights_go_round(self, mesh: Mesh, have: Sequence[Sequence[Span]]) -> None:
        """Each range from the first who has updated it: nobody has all of the step yet."""
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
        mesh: Mesh,
        have: Sequence[Sequence[Span]],
        want: Sequence[Sequence[Span]],
        device: torch.device | None = None,
    ) -> list[Held]:
        """What came to us; nobody lets go of anything before all have what they want."""
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
