"""The passes of a step through one part: what comes from the part before, what goes to the one behind, and the dice.

A tensor's heading goes before it, always: its shape may be another with each micro-batch, and a message longer than its
room would end a process. It also says whether a gradient is to come back: none does to a part that trains nothing. And
before what comes back goes whether there is one: where nothing behind has learned of it (`x.detach()`), none of the
part before has a gradient, which is not a gradient of zero. A gradient goes back as autograd has it, before it is laid
as the tensor that it is of: in one process nobody would lay it so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from sublet.machine.wall import WALL
from sublet.train.grid.atoms import Atom
from sublet.train.grid.cutting import Cut, Part
from sublet.train.grid.dice import Dice
from sublet.train.grid.heading import HEADING, Heading
from sublet.train.grid.losses import Losses
from sublet.train.grid.mesh import Mesh
from sublet.train.grid.returning import Returning
from sublet.train.grid.schedule import schedule
from sublet.train.grid.seat import Seat
from sublet.train.grid.unit_times import UnitTimes

__all__ = ["Pipeline"]

FORWARD, BACKWARD = 1 << 20, 2 << 20  # tags of messages, far apart
JUDGED = 9 << 20  # forward alone: who evaluates is never taken for one who trains
HEADED = 1 << 24  # beside the tag of what comes: its heading

LossOf = Callable[[Atom], torch.Tensor]


class Pipeline:
    """Of one worker; `point` is told where it is."""

    def __init__(self, cut: Cut, seed: int, device: torch.device, point: Callable[[str], None]) -> None:
        self._cut, self._device, self._point = cut, device, point
        self.dice = Dice(seed)
        self._shares: dict[tuple[float, torch.dtype], torch.Tensor] = {}  # of an atom in the step, as backward takes it
        self.idle_s = 0.0  # waiting for neighbours, in the last pass over all atoms
        self._times = UnitTimes(len(cut.blocks)) if device.type == "cpu" else None  # a GPU works while we look
        cut.watch(self._enter, self.dice.leave)

    def train(self, mesh: Mesh, seat: Seat, step: int, work: tuple[Atom, ...], size: int, loss_of: LossOf) -> Losses:
        """Gradients of all these atoms are added to those of the parameters; our part of the loss, if we are last."""
        part, self.idle_s, losses = seat.parts[seat.part], 0.0, Losses()
        if self._times is not None:
            self._times.begin()
        kept: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
        for each in schedule(seat.part, len(seat.parts), len(work)):
            atom = work[each.atom]
            if each.forward:
                self._point(f"forward {each.atom}")
                kept[each.atom] = self._forward(mesh, seat, step, atom, FORWARD + each.atom, loss_of)
                continue
            self._point(f"backward {each.atom}")
            came, out = kept.pop(each.atom)
            self.dice.resume(step, atom)
            self._cut.hold(came)
            returning = Returning(came) if came is not None and came.requires_grad else None
            if part.last:
                losses.add(out, atom.count / size)
                self._backward(out, self._share(atom.count / size, out))
            elif out.requires_grad:  # as its heading said
                heading = self._hear(mesh, seat.rank + 1, BACKWARD + each.atom)
                if heading.learns:
                    self._backward(out, self._receive(mesh, heading, seat.rank + 1, BACKWARD + each.atom))
            self._cut.hold(None)
            if came is not None and returning is not None:
                gradient = returning.gradient
                heading = Heading.of(came if gradient is None else gradient, learns=gradient is not None)
                mesh.send(heading.said(), seat.rank - 1, HEADED + BACKWARD + each.atom)
                if gradient is not None:
                    mesh.send(heading.memory(gradient), seat.rank - 1, BACKWARD + each.atom)
        mesh.settle()
        return losses

    def unit_s(self, part: Part) -> tuple[float, ...]:
        """Seconds that one atom takes in each unit of our part, forward and backward, in the last pass over all."""
        return () if self._times is None else self._times.of(part)

    def judge(self, mesh: Mesh, seat: Seat, step: int, work: tuple[Atom, ...], size: int, loss_of: LossOf) -> float:
        """Forward alone; our part of the loss, if we are last."""
        loss = 0.0
        with torch.no_grad():
            for number, atom in enumerate(work):
                _, out = self._forward(mesh, seat, step, atom, JUDGED + number, loss_of)
                if seat.parts[seat.part].last:
                    loss += float(out) * (atom.count / size)
        mesh.settle()
        return loss

    def _forward(
        self, mesh: Mesh, seat: Seat, step: int, atom: Atom, tag: int, loss_of: LossOf
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        part = seat.parts[seat.part]
        came: torch.Tensor | None = None
        if not part.first:
            heading = self._hear(mesh, seat.rank - 1, tag)
            came = self._receive(mesh, heading, seat.rank - 1, tag).requires_grad_(heading.learns)
        self.dice.begin(step, atom)
        if self._times is not None:
            self._times.begin_atom()
        try:
            out: torch.Tensor = self._cut.run(partial(loss_of, atom), came).value
        finally:
            if self._times is not None:
                self._times.end_atom()
        if not part.last:
            heading = Heading.of(out, learns=out.requires_grad)
            mesh.send(heading.said(), seat.rank + 1, HEADED + tag)
            mesh.send(heading.memory(out.detach()), seat.rank + 1, tag)
        return came, out

    def _share(self, share: float, loss: torch.Tensor) -> torch.Tensor:
        found = self._shares.get((share, loss.dtype))
        if found is None or found.device != loss.device:
            found = self._shares[share, loss.dtype] = torch.tensor(share, dtype=loss.dtype, device=loss.device)
        return found

    def _hear(self, mesh: Mesh, giver: int, tag: int) -> Heading:
        said = torch.zeros(HEADING, dtype=torch.int64)
        self._take(mesh, said, giver, HEADED + tag)
        return Heading.heard(said)

    def _receive(self, mesh: Mesh, heading: Heading, giver: int, tag: int) -> torch.Tensor:
        found = heading.room(self._device)
        self._take(mesh, heading.memory(found), giver, tag)
        return found

    def _backward(self, out: torch.Tensor, gradient: torch.Tensor) -> None:
        began_s = WALL.monotonic()
        torch.autograd.backward(out, gradient)
        if self._times is not None:
            self._times.backward_s += WALL.monotonic() - began_s

    def _take(self, mesh: Mesh, tensor: torch.Tensor, giver: int, tag: int) -> None:
        began_s = WALL.monotonic()
        mesh.receive(tensor, giver, tag)
        self.idle_s += WALL.monotonic() - began_s

    def _enter(self, block: int) -> None:
        if self._times is not None:
            self._times.enter(block)
        self.dice.enter(block)
