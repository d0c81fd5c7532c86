"""A member of a grid: it meets, takes what its seat needs, and makes steps that are applied by all or by none.

    step     passes over its atoms (1F1B); sums over the copies of its part: the step is *pending*;
             agreement: one small sum over all members of norms, loss and orders; then all apply
    meet     one table of who has what; roll forward, move, begin

Norms are of units, in double precision, added in the order of the units, so that what is clipped does not depend on the
cut. Dice are thrown by (seed, step, atom, unit), so a mask of dropout does not either. Weights that the first and the
last part share (tied) are the one exception: each adds up its atoms first, so that they agree within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sublet.train.following import Broken
from sublet.train.grid.atoms import Atom, atoms, share
from sublet.train.grid.cutting import Cut, holders
from sublet.train.grid.holdings import Holdings
from sublet.train.grid.meeting import NOTHING, Meeting, Standing, meet
from sublet.train.grid.mesh import Mesh
from sublet.train.grid.schedule import schedule
from sublet.train.grid.seat import Seat
from sublet.train.samples import mixed

__all__ = ["Lost", "Member", "Stepped"]

LOSS, ORDERS, EXTRA = 0, 1, 2  # of what is agreed on, beside the norms
FORWARD, BACKWARD, SHAPES, MOVES = 1 << 20, 2 << 20, 3 << 20, 4 << 20  # tags of messages, far apart
MOST_DIMS = 8
CODES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Lost(Exception):
    """Nobody who is left holds a unit: all go back to a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What all members have agreed on."""

    step: int
    loss: float
    norm: float  # of the gradient, before it was clipped
    orders: bool  # somebody has some: all stop here


class Member:
    """One worker. `point` is told where it is, for those who want to know, or to end it there."""

    def __init__(
        self,
        model: torch.nn.Module,
        cut: Cut,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        clip_norm: float | None = None,
        point: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.model, self.cut, self.clip_norm, self._seed, self._point = model, cut, clip_norm, seed, point
        self.holdings = Holdings(model, optimizer, cut.units)
        self.applied, self.pending = NOTHING, NOTHING
        self._agreed = torch.zeros(len(cut.units) + EXTRA, dtype=torch.float64)
        self._dice: tuple[int, int] = (0, 0)  # step, atom
        self._shapes: dict[tuple[int, bool], tuple[torch.Size, torch.dtype]] = {}
        cut.watch(self._throw)

    # ------------------------------------------------------------------------------------------ meetings

    def meet(self, mesh: Mesh, seat: Seat | None) -> Meeting:
        """With all of the mesh; the seat is that of the grid to come, None for one who only gives. Lost, or Broken."""
        units = len(self.cut.units)
        table = torch.zeros(mesh.world, 2 + 2 * units, dtype=torch.int64)
        row = table[mesh.rank]
        row[0], row[1] = self.applied, self.pending
        for unit in self.holdings.arenas:
            row[2 + unit] = 1
        wanted = () if seat is None else self._units_of(seat)
        for unit in wanted:
            row[2 + units + unit] = 1
        mesh.sum(table, range(mesh.world))
        rows = table.tolist()
        standings = [
            Standing(applied=each[0], pending=each[1], units=frozenset(_ones(each[2 : 2 + units]))) for each in rows
        ]
        stepped = max(each.applied for each in standings) > 0
        sizes = {unit: self.holdings.size_bytes(unit, stepped=stepped) for unit in range(units)}
        met = meet(standings, [frozenset(_ones(each[2 + units :])) for each in rows], sizes)
        if met is None:
            raise Lost
        self._point("met")
        self._settle(mesh, met, frozenset(wanted), sizes)
        if seat is not None:
            self.cut.become(seat.parts[seat.part])
        self._shapes = {}
        return met

    def _settle(self, mesh: Mesh, met: Meeting, wanted: frozenset[int], sizes: dict[int, int]) -> None:
        """Nobody lets go of a unit before all have said that they have what they want."""
        if met.anew:
            self.holdings.make(wanted)
            self.applied = 0
            return
        assert met.speaker is not None  # noqa: S101 - it is not anew
        self._hear_agreed(mesh, met)
        came: dict[int, torch.Tensor] = {}
        for move in met.moves:
            if move.giver == mesh.rank:
                memory = came[move.unit] if move.unit in came else self.holdings.arenas[move.unit].memory
                mesh.send(memory, move.taker, MOVES + move.unit)
            elif move.taker == mesh.rank:
                came[move.unit] = torch.empty(sizes[move.unit], dtype=torch.uint8)
                mesh.receive(came[move.unit], move.giver, MOVES + move.unit)
                self._point("moving")
        mesh.settle()
        kept = wanted
        try:
            mesh.sum(torch.zeros(1), range(mesh.world))
            self._point("moved")
        except Broken:  # others may have let go of what we have just received, or not have received what we have
            kept = wanted | ({*self.holdings.arenas} if self.applied == met.applied else set())
            raise
        finally:
            self.holdings.take(came, kept, stepped=met.applied > 0)
            self.holdings.clear_gradients()
            self.applied, self.pending = met.applied, NOTHING

    def _hear_agreed(self, mesh: Mesh, met: Meeting) -> None:
        """What the last step came to, and the counters of the optimizer, from one who was there."""
        names = self.holdings.counter_names
        said = torch.zeros(len(self._agreed) + len(names), dtype=torch.float64)
        if mesh.rank == met.speaker:
            said[: len(self._agreed)] = self._agreed
            for number, name in enumerate(names):
                said[len(self._agreed) + number] = float(self.holdings.counters.get(name, 0.0))
        mesh.sum(said, range(mesh.world))
        if mesh.rank in met.roll:
            self._agreed = said[: len(self._agreed)].clone()
            self._apply()
        elif self.applied != met.applied:
            self._agreed = said[: len(self._agreed)].clone()
            self.holdings.counters = {
                name: torch.tensor(float(said[len(self._agreed) + number])) for number, name in enumerate(names)
            }

    def _units_of(self, seat: Seat) -> tuple[int, ...]:
        return tuple(number for number, unit in enumerate(self.cut.units) if seat.part in holders(unit, seat.parts))

    # ------------------------------------------------------------------------------------------ steps

    def step(
        self,
        mesh: Mesh,
        seat: Seat,
        loss_of: Callable[[Atom], torch.Tensor],
        *,
        offset: int,
        size: int,
        micro_batch: int,
        orders: bool = False,
    ) -> Stepped:
        """Of `size` samples from `offset` on; `loss_of` loads an atom and returns the mean loss of it. Or Broken."""
        work = share(atoms(offset, size, micro_batch), seat.copy, seat.copies)
        loss = self._pass_all(mesh, seat, work, size, loss_of)
        self._point("before sum")
        self._sum(mesh, seat)
        self.pending = self.applied
        self._point("pending")
        said = torch.zeros_like(self._agreed)
        for number in self.holdings.arenas:
            if seat.copy == 0 and seat.part == holders(self.cut.units[number], seat.parts)[0]:
                flats = [each.double() for each in self.holdings.gradients(number)]
                said[number] = sum(float(torch.dot(each.flatten(), each.flatten())) for each in flats)
        said[len(self.cut.units) + LOSS] = loss
        said[len(self.cut.units) + ORDERS] = float(orders)
        mesh.sum(said, seat.everyone())
        self._point("agreed")
        self._agreed = said
        norm = self._apply()
        self._point("applied")
        return Stepped(
            step=self.applied - 1,
            loss=float(said[len(self.cut.units) + LOSS]),
            norm=norm,
            orders=bool(said[len(self.cut.units) + ORDERS]),
        )

    def _apply(self) -> float:
        norm = math.sqrt(math.fsum(self._agreed[: len(self.cut.units)].tolist()))
        if self.clip_norm is not None and norm > self.clip_norm:
            for unit in self.holdings.arenas:
                for gradient in self.holdings.gradients(unit):
                    gradient.mul_(self.clip_norm / norm)
        self.holdings.step()
        self.holdings.clear_gradients()
        self.applied, self.pending = self.applied + 1, NOTHING
        return norm

    def _sum(self, mesh: Mesh, seat: Seat) -> None:
        """Within the copy first, where several parts hold a unit: what a copy adds up is what a whole model does."""
        for number in sorted(self.holdings.arenas):
            among = holders(self.cut.units[number], seat.parts)
            for gradient in self.holdings.gradients(number):
                if len(among) > 1:
                    mesh.sum(gradient, seat.same_copy(among))
                if seat.copies > 1:
                    mesh.sum(gradient, seat.same_part())

    def _pass_all(
        self, mesh: Mesh, seat: Seat, work: tuple[Atom, ...], size: int, loss_of: Callable[[Atom], torch.Tensor]
    ) -> float:
        part = seat.parts[seat.part]
        left, right = seat.rank - 1, seat.rank + 1
        kept: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
        loss = 0.0
        for each in schedule(seat.part, len(seat.parts), len(work)):
            atom = work[each.atom]
            if each.forward:
                self._point(f"forward {each.atom}")
                came = None if part.first else self._receive(mesh, left, FORWARD + each.atom, atom).requires_grad_()
                self._begin(atom)
                out = self.cut.run(partial(loss_of, atom), came).value
                if not part.last:
                    self._send(mesh, out.detach(), right, FORWARD + each.atom, atom)
                kept[each.atom] = came, out
                continue
            self._point(f"backward {each.atom}")
            came, out = kept.pop(each.atom)
            if part.last:
                loss += float(out.detach()) * (atom.count / size)
                torch.autograd.backward(out, torch.tensor(atom.count / size, dtype=out.dtype, device=out.device))
            else:
                gradient = torch.empty_like(out)
                mesh.receive(gradient, right, BACKWARD + each.atom)
                torch.autograd.backward(out, gradient)
            if came is not None:
                assert came.grad is not None  # noqa: S101 - the first block has used it
                mesh.send(came.grad, left, BACKWARD + each.atom)
        mesh.settle()
        return loss

    # ------------------------------------------------------------------------------------------ borders and dice

    def _send(self, mesh: Mesh, tensor: torch.Tensor, to: int, tag: int, atom: Atom) -> None:
        """Its shape goes first, once for each size of an atom: a message longer than its room would end a process."""
        if (atom.count, True) not in self._shapes:
            self._shapes[atom.count, True] = tensor.shape, tensor.dtype
            facts = [CODES.index(tensor.dtype), tensor.dim(), *tensor.shape]
            mesh.send(torch.tensor(facts + [0] * (2 + MOST_DIMS - len(facts))), to, SHAPES + atom.count)
        mesh.send(tensor.contiguous(), to, tag)

    def _receive(self, mesh: Mesh, giver: int, tag: int, atom: Atom) -> torch.Tensor:
        if (atom.count, False) not in self._shapes:
            header = torch.zeros(2 + MOST_DIMS, dtype=torch.int64)
            mesh.receive(header, giver, SHAPES + atom.count)
            code, dims, *shape = header.tolist()
            self._shapes[atom.count, False] = torch.Size(shape[:dims]), CODES[code]
        shape_of, dtype = self._shapes[atom.count, False]
        found = torch.empty(shape_of, dtype=dtype)
        mesh.receive(found, giver, tag)
        return found

    def _begin(self, atom: Atom) -> None:
        self._dice = (self.applied, atom.start)
        self._throw(-1)

    def _throw(self, unit: int) -> None:
        seed = mixed(self._seed, *self._dice, unit + 1)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would ask for every kind of device each time
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no type
            torch.cuda.manual_seed(seed)


def _ones(row: Any) -> list[int]:
    return [number for number, value in enumerate(row) if value]
