"""The passes of a step through one part: what comes from the part before, what goes to the one behind, and the dice.

A tensor's heading goes before it, always: its shape may be another with each micro-batch, and a message longer than its
room would end a process. It also says whether a gradient is to come back: none does to a part that trains nothing. And
before what comes back goes whether there is one: where nothing behind has learned of it (`x.detach()`), none of the
part before has a gradient, which is not a gradient of zero.
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
            if part.last:
                losses.add(out, atom.count / size)
                self._backward(out, self._share(atom.count / size, out))
            elif out.requires_grad and self._learned(mesh, seat, BACKWARD + each.atom):  # as its heading said
                gradient = torch.empty(out.shape, dtype=out.dtype, device=out.device)  # in the order of what is sent
                self._take(mesh, gradient, seat.rank + 1, BACKWARD + each.atom)
                self._backward(out, gradient)
            self._cut.hold(None)
            if came is not None and came.requires_grad:
                there = torch.tensor([came.grad is not None], dtype=torch.uint8)
                mesh.send(there, seat.rank - 1, HEADED + BACKWARD + each.atom)
                if came.grad is not None:
                    mesh.send(came.grad.contiguous(), seat.rank - 1, BACKWARD + each.atom)
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
        came = None if part.first else self._receive(mesh, seat.rank - 1, tag)
        self.dice.begin(step, atom)
        if self._times is not None:
            self._times.begin_atom()
        try:
            out: torch.Tensor = self._cut.run(partial(loss_of, atom), came).value
        finally:
            if self._times is not None:
                self._times.end_atom()
        if not part.last:
            mesh.send(Heading.of(out).said(), seat.rank + 1, HEADED + tag)
            mesh.send(out.detach().contiguous(), seat.rank + 1, tag)
        return came, out

    def _learned(self, mesh: Mesh, seat: Seat, tag: int) -> bool:
        """Somebody behind, of what we gave."""
        there = torch.zeros(1, dtype=torch.uint8)
        self._take(mesh, there, seat.rank + 1, HEADED + tag)
        return bool(there)

    def _share(self, share: float, loss: torch.Tensor) -> torch.Tensor:
        found = self._shares.get((share, loss.dtype))
        if found is None or found.device != loss.device:
            found = self._shares[share, loss.dtype] = torch.tensor(share, dtype=loss.dtype, device=loss.device)
        return found

    def _receive(self, mesh: Mesh, giver: int, tag: int) -> torch.Tensor:
        said = torch.zeros(HEADING, dtype=torch.int64)
        self._take(mesh, said, giver, HEADED + tag)
        heading = Heading.heard(said)
        found = torch.empty(heading.shape, dtype=heading.dtype, device=self._device)
        self._take(mesh, found, giver, tag)
        return found.requires_grad_(heading.learns)

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
