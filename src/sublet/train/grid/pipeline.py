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
from sublet.train.grid.atoms import Atom, schedule
from sublet.train.grid.borders import Borders, Came
from sublet.train.grid.mesh import Mesh
from sublet.train.grid.stages import Seat, Staged
from sublet.train.sessions.fitness import check_shape
from sublet.train.sessions.losses import model_input

__all__ = ["Losses", "Pipeline", "Stepped", "UnitTimes", "Work"]

FORWARD, BACKWARD = 1 << 20, 2 << 20  # tags of messages, far apart
JUDGED = 9 << 20  # forward alone: who evaluates is never taken for one who trains


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed of each micro-batch: `loss(output, batch)`, its mean."""

    load: Callable[[Atom], Any]
    loss: Callable[[Any, Any], torch.Tensor]


class Losses:
    """The loss of a step, added up when it is asked for.

    On a GPU, to look at that of an atom waits for all work that is under way: so nobody looks before it must.
    """

    def __init__(self, known: float = 0.0) -> None:
        self._known = known
        self._found: list[tuple[torch.Tensor, float]] = []
        self._sent: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def add(self, loss: torch.Tensor, share: float) -> None:
        """That of an atom, which is so much of the step."""
        self._found.append((loss.detach(), share))

    def send(self) -> None:
        """From a GPU on its way here: what is asked for a step later waits for nothing else."""
        if self._found and self._found[0][0].is_cuda and self._sent is None:
            host = torch.empty(len(self._found), dtype=torch.float64, pin_memory=True)
            host.copy_(torch.stack([loss.double() for loss, _ in self._found]), non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives it no type
            event.record()
            self._sent = host, event

    def total(self) -> float:
        """In the order in which they came."""
        numbers: list[float] = []
        if self._sent is not None:
            host, event = self._sent
            event.synchronize()
            numbers = host.tolist()
        for loss, (_, share) in zip(numbers or (loss.item() for loss, _ in self._found), self._found, strict=True):
            self._known += loss * share
        self._found, self._sent = [], None
        return self._known


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What all members have agreed on, and seconds of ours."""

    step: int
    losses: Losses
    norm: float  # of the gradient, before it was clipped; 0 where nothing is
    orders: bool  # somebody has some: all stop here
    idle_s: float
    sum_s: float
    keep_s: float
    agree_s: float
    units: tuple[float, ...] = ()  # s of an atom in each, as `wire.Stepped` has it

    @property
    def loss(self) -> float:
        """The mean over the step."""
        return self.losses.total()


class UnitTimes:
    """Seconds that units take of the atoms of a pass: before the blocks, each block, after them.

    So grids that were never tried can be told. Of the backward only the whole is seen: it is shared out as the forward.
    """

    def __init__(self, blocks: int) -> None:
        self.forward_s, self.backward_s, self.atoms = [0.0] * (blocks + 2), 0.0, 0

    def of_an_atom(self) -> tuple[float, ...]:
        """By the mean; 0 where a unit is others'."""
        whole_s = sum(self.forward_s)
        if not self.atoms or whole_s <= 0.0:
            return ()
        share = (1.0 + self.backward_s / whole_s) / self.atoms
        return tuple(each * share for each in self.forward_s)


class Pipeline:
    """Of one worker; `point` is told where it is."""

    def __init__(self, staged: Staged, point: Callable[[str], None]) -> None:
        self._staged, self._point = staged, point
        self._borders = Borders(staged.device)
        self._shares: dict[tuple[float, torch.dtype], torch.Tensor] = {}  # of an atom in the step, as backward takes it
        self.times = UnitTimes(len(staged.blocks))  # of the last pass over all atoms; a GPU works while we look

    @property
    def idle_s(self) -> float:
        """Waiting for neighbours, in the last pass over all atoms."""
        return self._borders.idle_s

    def train(self, mesh: Mesh, seat: Seat, atoms: tuple[Atom, ...], size: int, work: Work) -> Losses:
        """Gradients of all these atoms are added to those of the parameters; our part of the loss, if we are last."""
        part, borders, losses = seat.parts[seat.part], self._borders, Losses()
        borders.idle_s = 0.0
        self.times = UnitTimes(len(self._staged.blocks))
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
        part, taken_s = seat.parts[seat.part], self.times.forward_s
        came = None if part.first else self._borders.take(mesh, seat.rank - 1, tag)
        began_s = WALL.monotonic()
        batch = work.load(atom) if part.first or part.last else None
        x = model_input(batch) if came is None else came.value
        if not part.first:  # what the last one loads is loaded meanwhile
            began_s = WALL.monotonic()
        for number, stage in self._staged.of(part):
            x = stage(x)
            ended_s = WALL.monotonic()
            taken_s[number + 1] += ended_s - began_s
            began_s = ended_s
        if part.last:
            x = work.loss(x, batch)
            check_shape(x)
            taken_s[-1] += WALL.monotonic() - began_s
        self.times.atoms += 1
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
        self.times.backward_s += WALL.monotonic() - began_s
