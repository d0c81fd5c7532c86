"""The passes of a step through one part: its stages one after the other, and what comes from and goes to others.

The first part begins with the inputs of a micro-batch, the last ends with the loss. Both load the samples, alike
(`atoms.loaded`); those between them need none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sublet.machine.wall import WALL
from sublet.train.grid.atoms import Atom
from sublet.train.grid.borders import Borders, Came
from sublet.train.grid.losses import Losses
from sublet.train.grid.mesh import Mesh
from sublet.train.grid.schedule import schedule
from sublet.train.grid.seat import Seat
from sublet.train.grid.stages import Part, Staged
from sublet.train.grid.unit_times import UnitTimes
from sublet.train.sessions.fitness import check_shape
from sublet.train.sessions.losses import model_input

__all__ = ["Pipeline", "Work"]

FORWARD, BACKWARD = 1 << 20, 2 << 20  # tags of messages, far apart
JUDGED = 9 << 20  # forward alone: who evaluates is never taken for one who trains


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed of each micro-batch: `loss(output, batch)`, its mean."""

    load: Callable[[Atom], Any]
    loss: Callable[[Any, Any], torch.Tensor]


class Pipeline:
    """Of one worker; `point` is told where it is."""

    def __init__(self, staged: Staged, point: Callable[[str], None]) -> None:
        self._staged, self._point = staged, point
        self._borders = Borders(staged.device)
        self._shares: dict[tuple[float, torch.dtype], torch.Tensor] = {}  # of an atom in the step, as backward takes it
        # a GPU works while we look
        self._times = UnitTimes(len(staged.blocks)) if staged.device.type == "cpu" else None

    @property
    def idle_s(self) -> float:
        """Waiting for neighbours, in the last pass over all atoms."""
        return self._borders.idle_s

    def train(self, mesh: Mesh, seat: Seat, atoms: tuple[Atom, ...], size: int, work: Work) -> Losses:
        """Gradients of all these atoms are added to those of the parameters; our part of the loss, if we are last."""
        part, borders, losses = seat.parts[seat.part], self._borders, Losses()
        borders.idle_s = 0.0
        if self._times is not None:
            self._times.begin()
        kept: dict[int, tuple[Came | None, Any]] = {}
        for each in schedule(seat.part, len(seat.parts), len(atoms)):
            atom = atoms[each.atom]
            if each.forward:
                self._point(f"forward {each.atom}")
                kept[each.atom] = self._forward(mesh, seat, atom, FORWARD + each.atom, work)
                continue
            self._point(f"backward {each.atom}")
            came, out = kept.pop(each.atom)
            if part.last:
                losses.add(out, atom.count / size)
                self._backward([(out, self._share(atom.count / size, out))])
            else:
                self._backward(borders.learned(mesh, out, seat.rank + 1, BACKWARD + each.atom))
            if came is not None:
                borders.give_back(mesh, came, seat.rank - 1, BACKWARD + each.atom)
        mesh.settle()
        return losses

    def unit_s(self, part: Part) -> tuple[float, ...]:
        """Seconds that one atom takes in each unit of our part, forward and backward, in the last pass over all."""
        return () if self._times is None else self._times.of(part)

    def judge(self, mesh: Mesh, seat: Seat, atoms: tuple[Atom, ...], size: int, work: Work) -> float:
        """Forward alone; our part of the loss, if we are last."""
        loss = 0.0
        with torch.no_grad():
            for number, atom in enumerate(atoms):
                _, out = self._forward(mesh, seat, atom, JUDGED + number, work)
                if seat.parts[seat.part].last:
                    loss += float(out) * (atom.count / size)
        mesh.settle()
        return loss

    def _forward(self, mesh: Mesh, seat: Seat, atom: Atom, tag: int, work: Work) -> tuple[Came | None, Any]:
        part, times = seat.parts[seat.part], self._times
        came = None if part.first else self._borders.take(mesh, seat.rank - 1, tag)
        if times is not None:
            times.begin_atom()
        try:
            batch = work.load(atom) if part.first or part.last else None
            x = model_input(batch) if came is None else came.value
            for number, stage in self._staged.of(part):
                if times is not None:
                    times.enter(number)
                x = stage(x)
            if part.last:
                x = work.loss(x, batch)
                check_shape(x)
        finally:
            if times is not None:
                times.end_atom()
        if not part.last:
            self._borders.give(mesh, x, seat.rank + 1, tag, f"block {part.high - 1}")
        return came, x

    def _share(self, share: float, loss: torch.Tensor) -> torch.Tensor:
        found = self._shares.get((share, loss.dtype))
        if found is None or found.device != loss.device:
            found = self._shares[share, loss.dtype] = torch.tensor(share, dtype=loss.dtype, device=loss.device)
        return found

    def _backward(self, learned: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        if not learned:
            return
        began_s = WALL.monotonic()
        torch.autograd.backward([each for each, _ in learned], [gradient for _, gradient in learned])
        if self._times is not None:
            self._times.backward_s += WALL.monotonic() - began_s
