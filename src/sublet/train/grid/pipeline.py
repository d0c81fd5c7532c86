"""The micro-batches of a step (atoms), and their passes through one part, one forward, one backward.

Atoms follow from the step alone, so that no grid changes the computation. A copy takes a contiguous share of them, and
so adds up the same sum in the same order as long as the number of copies is the same.

The first part runs as many atoms ahead as there are parts behind it, then one backward for each forward. So a part
holds the activations of at most `parts - part` atoms, and the pipeline is as full as it can be. The first part begins
with the inputs of an atom, the last ends with the loss. Both load the samples, alike; parts between them need none.

    part 0   Borders.give(value)  ->  heading, tensors  ->   Borders.take() -> Came     part 1
             Borders.learned()    <-  which, gradients  <-   Borders.give_back(came)

Received tensors may be written in place, as results of any other operation. Shapes may change with each atom, and a
message longer than its room would end a process: so a heading of fixed size says types and shapes each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.machine.wall import WALL
from sublet.train.data.samples import MicroBatch, Samples
from sublet.train.grid.gloo import LETTER_BYTES, GlooMesh, as_letter, facts_of
from sublet.train.grid.stages import Seat, Staged
from sublet.train.numerics.seeds import reseed_host, rng_kept
from sublet.train.sessions.fitness import check_shape
from sublet.train.sessions.options import model_input

HEADED = 1 << 24  # beside the tag of what comes: its heading
NEXT = 1 << 25  # from the tag of one tensor to that of the one behind it
MOST, MOST_DIMS = 8, 8  # of which a heading says all
ALLOWED = f"of which each gives one tensor, or a tuple of at most {MOST}, dense and of at most {MOST_DIMS} dimensions"
FORWARD, BACKWARD = 1 << 20, 2 << 20  # tags of messages, far apart
JUDGED = 9 << 20  # forward alone: never taken for training


@dataclass(slots=True)
class Came:
    """A received value, and after backward the gradients of its trained tensors: None where none was made."""

    value: Any
    gradients: list[torch.Tensor | None] = field(default_factory=list)


class Borders:
    """The borders of one worker."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.idle_s = 0.0  # waiting for neighbours

    def give(self, mesh: GlooMesh, value: Any, to: int, tag: int, after: str) -> None:
        """Send forward; InvalidValue for a value that cannot cross."""
        mesh.send(_heading(value, after), to, HEADED + tag)
        for number, each in enumerate(_all_of(value)):
            self._send(mesh, each, to, tag + number * NEXT)

    def take(self, mesh: GlooMesh, giver: int, tag: int) -> Came:
        """Receive it."""
        said = torch.zeros(LETTER_BYTES, dtype=torch.uint8)
        self._take(mesh, said, giver, HEADED + tag)
        heading, tensors, learns = facts_of(said), list[torch.Tensor](), list[int]()
        for number, (kind, shape, trained) in enumerate(heading["tensors"]):
            tensors.append(torch.empty(shape, dtype=getattr(torch, kind), device=self._device))
            self._receive(mesh, tensors[-1], giver, tag + number * NEXT)
            learns += [number] * trained
        came = Came(None, [None] * len(learns))
        if learns and torch.is_grad_enabled():
            root = torch.empty(0, requires_grad=True)
            found = _Arrived.apply(came.gradients, root, *(tensors[number] for number in learns))  # type: ignore[no-untyped-call]  # torch does not say
            for number, each in zip(learns, found, strict=True):
                tensors[number] = each
        came.value = tuple(tensors) if heading["tuple"] else tensors[0]
        return came

    def give_back(self, mesh: GlooMesh, came: Came, to: int, tag: int) -> None:
        """Send gradients back."""
        if not came.gradients:
            return
        there = [each is not None for each in came.gradients]
        mesh.send(torch.tensor(there, dtype=torch.int64), to, HEADED + tag)
        for number, each in enumerate(came.gradients):
            if each is not None:
                self._send(mesh, each, to, tag + number * NEXT)

    def learned(self, mesh: GlooMesh, value: Any, giver: int, tag: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Tensors that we gave and that have a gradient, each with it."""
        learns = [each for each in _all_of(value) if each.requires_grad]
        if not learns:
            return []
        there = torch.zeros(len(learns), dtype=torch.int64)
        self._take(mesh, there, giver, HEADED + tag)
        found = []
        for number, (each, has) in enumerate(zip(learns, there.tolist(), strict=True)):
            if has:
                gradient = torch.empty(each.shape, dtype=each.dtype, device=self._device)
                self._receive(mesh, gradient, giver, tag + number * NEXT)
                found.append((each, gradient))
        return found

    def _send(self, mesh: GlooMesh, tensor: torch.Tensor, to: int, tag: int) -> None:
        if tensor.numel():
            mesh.stream_to(_flat(tensor.detach().contiguous()), to, tag)

    def _receive(self, mesh: GlooMesh, tensor: torch.Tensor, giver: int, tag: int) -> None:
        if tensor.numel():
            began_s = WALL.monotonic()
            mesh.stream_from(_flat(tensor), giver, tag)
            self.idle_s += WALL.monotonic() - began_s

    def _take(self, mesh: GlooMesh, tensor: torch.Tensor, giver: int, tag: int) -> None:
        began_s = WALL.monotonic()
        mesh.receive(tensor, giver, tag)
        self.idle_s += WALL.monotonic() - began_s


class _Arrived(torch.autograd.Function):
    """The root of a graph: gradients that reach it are put into the list."""

    @staticmethod
    def forward(
        ctx: Any, gradients: list[torch.Tensor | None], _root: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # no gradient is not one of zero
        ctx.gradients = gradients
        return tuple(each.detach() for each in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        ctx.gradients[:] = gradients
        return (None, None, *(None for _ in gradients))


def _heading(value: Any, after: str) -> torch.Tensor:
    """Type and shape of each tensor, and whether something before the border is trained by it."""
    found = _all_of(value)
    for each in found:
        if not isinstance(each, torch.Tensor) or each.layout != torch.strided or each.dim() > MOST_DIMS:
            raise InvalidValue("stages", f"{after} that gives a {type(value).__name__} with {_shown(each)}", ALLOWED)
    if not 1 <= len(found) <= MOST:
        raise InvalidValue("stages", f"{after} that gives {len(found)} tensors", ALLOWED)
    told = [(str(each.dtype).removeprefix("torch."), list(each.shape), each.requires_grad) for each in found]
    return as_letter({"tuple": isinstance(value, tuple), "tensors": told})


def _shown(thing: Any) -> str:
    return f"{thing.layout} {list(thing.shape)}" if isinstance(thing, torch.Tensor) else f"a {type(thing).__name__}"


def _all_of(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes: gloo does not know of all types."""
    return tensor.view(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class Atom:
    """`count` samples from `start` on, in the order of the epoch. It is never cut."""

    start: int
    count: int


def atoms(offset: int, size: int, micro_batch: int) -> tuple[Atom, ...]:
    """The atoms of a step of `size` samples from `offset` on; the last may be smaller.

    >>> atoms(10, 5, 2) (Atom(start=10, count=2), Atom(start=12, count=2), Atom(start=14, count=1))
    """
    starts = range(offset, offset + size, micro_batch)
    return tuple(Atom(start, min(micro_batch, offset + size - start)) for start in starts)


def share(of: tuple[Atom, ...], copy: int, copies: int) -> tuple[Atom, ...]:
    """The atoms of one copy. If there are more copies than atoms, some have none.

    >>> [len(share(atoms(0, 10, 2), copy, 3)) for copy in range(3)] [1, 2, 2]
    """
    return of[copy * len(of) // copies : (copy + 1) * len(of) // copies]


@dataclass(frozen=True, slots=True)
class Pass:
    """One atom through one part."""

    atom: int
    forward: bool


@lru_cache(maxsize=64)  # asked for in every step, with the same numbers
def schedule(part: int, parts: int, atoms: int) -> tuple[Pass, ...]:
    """All passes of a part in a step, in order.

    >>> "".join(f"{'F' if each.forward else 'B'}{each.atom} " for each in schedule(0, 2, 3))
    'F0 F1 B0 F2 B1 B2 '
    """
    ahead = min(atoms, parts - 1 - part)
    order = [Pass(atom, forward=True) for atom in range(ahead)]
    for atom in range(ahead, atoms):
        order += (Pass(atom, forward=True), Pass(atom - ahead, forward=False))
    order += (Pass(atom, forward=False) for atom in range(atoms - ahead, atoms))
    return tuple(order)


def loaded(samples: Samples, seed: int, epoch: int, atom: Atom) -> Any:
    """The samples of an atom, the same at any worker, since their random numbers follow from their places."""
    piece = MicroBatch(start=atom.start, count=atom.count, first=False, last=False)
    if not samples.draws_here:
        return samples.load(epoch, piece)
    with rng_kept():
        reseed_host(seed, epoch, atom.start)
        return samples.load(epoch, piece)


@dataclass(frozen=True, slots=True)
class Work:
    """The computation of each atom: `loss(output, batch)`, its mean."""

    load: Callable[[Atom], Any]
    loss: Callable[[Any, Any], torch.Tensor]


class Losses:
    """The loss of a step, added up when it is asked for: on a GPU that waits for all pending work."""

    def __init__(self, known: float = 0.0) -> None:
        self._known = known
        self._found: list[tuple[torch.Tensor, float]] = []
        self._sent: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def add(self, loss: torch.Tensor, share: float) -> None:
        """The loss of an atom, and its share of the step."""
        self._found.append((loss.detach(), share))

    def send(self) -> None:
        """Start a copy to the host, for a reader a step later."""
        if self._found and self._found[0][0].is_cuda and self._sent is None:
            host = torch.empty(len(self._found), dtype=torch.float64, pin_memory=True)
            host.copy_(torch.stack([loss.double() for loss, _ in self._found]), non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives it no type
            event.record()
            self._sent = host, event

    def total(self) -> float:
        """Added in the order of `add`."""
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
    """The agreed results of a step, and times of this worker."""

    step: int
    losses: Losses
    norm: float  # of the gradient, before it was clipped; 0 where nothing is
    orders: bool  # a worker has some: all stop here
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
    """Seconds that units take per atom: before the blocks, each block, after them; for estimates of other grids.

    Of the backward only the whole is measured: it is divided in proportion to the forward.
    """

    def __init__(self, blocks: int) -> None:
        self.forward_s, self.backward_s, self.atoms = [0.0] * (blocks + 2), 0.0, 0

    def of_an_atom(self) -> tuple[float, ...]:
        """Means; 0 where a unit is at other workers."""
        whole_s = sum(self.forward_s)
        if not self.atoms or whole_s <= 0.0:
            return ()
        share = (1.0 + self.backward_s / whole_s) / self.atoms
        return tuple(each * share for each in self.forward_s)


class Pipeline:
    """The passes of one worker; `point` is called at each stage."""

    def __init__(self, staged: Staged, point: Callable[[str], None]) -> None:
        self._staged, self._point = staged, point
        self.borders = Borders(staged.device)
        self._shares: dict[tuple[float, torch.dtype], torch.Tensor] = {}  # of an atom in the step, as backward takes it
        self.times = UnitTimes(len(staged.blocks))  # of the last pass over all atoms; a GPU works while we look

    def train(self, mesh: GlooMesh, seat: Seat, atoms: tuple[Atom, ...], size: int, work: Work) -> Losses:
        """Add gradients of these atoms to those of the parameters; our part of the loss, in the last part."""
        part, borders, losses = seat.parts[seat.part], self.borders, Losses()
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

    def judge(self, mesh: GlooMesh, seat: Seat, atoms: tuple[Atom, ...], size: int, work: Work) -> float:
        """Forward alone; our part of the loss, in the last part."""
        loss = 0.0
        with torch.no_grad():
            for number, atom in enumerate(atoms):
                _, out = self._forward(mesh, seat, atom, JUDGED + number, work)
                if seat.parts[seat.part].last:
                    loss += float(out) * (atom.count / size)
        mesh.settle()
        return loss

    def _forward(self, mesh: GlooMesh, seat: Seat, atom: Atom, tag: int, work: Work) -> tuple[Came | None, Any]:
        part, taken_s = seat.parts[seat.part], self.times.forward_s
        came = None if part.first else self.borders.take(mesh, seat.rank - 1, tag)
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
            self.borders.give(mesh, x, seat.rank + 1, tag, f"block {part.high - 1}")
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
