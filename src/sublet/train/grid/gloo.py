"""A mesh over real connections: gloo's groups as objects, so that a generation can have several.

    lines = Lines()                                   # of one generation, as one worker has them
    lines.open_store() or lines.find_store(...)       # the store where all meet
    mesh = lines.mesh("all", rank, world)             # of the old grid and the new one
    forming = lines.begin(mesh, sums, neighbours)     # groups of some of them, while state moves

There is no torch default group: two meshes of one process are independent. A wait for a message has no time-out, since
gloo closes all connections of a worker after one; `hang_up`, from any thread, ends it.

Where each has a GPU of its own, NCCL adds up gradients, and carries what neighbours of a pipeline say to each other
(`devices.backend_for`): by two groups for each pair, since one would wait where both send. All other messages of GPUs
go through the host by gloo.

State for another process on the same GPU is read where it lies (CUDA IPC): a letter goes in its place. The letter is
JSON, not a pickle as that of `torch.multiprocessing`. If a letter cannot be opened, the process never tries again.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, NoReturn

import torch

from sublet.machine.wall import WALL
from sublet.train.link.devices import GLOO, NCCL, Staging, backend_for, device_name
from sublet.train.link.following import Broken
from sublet.train.link.groups import abort_nccl, gloo_group, nccl_group, within
from sublet.train.link.peers import Connected, talking
from sublet.train.private import as_shared, shared_from
from sublet.train.state.state import broadcast

LETTER_BYTES = 2048  # of a few hundred that it takes
BYTES = ("handle", "counter", "event")  # that JSON knows only as text
FACTS = ("device", "handle", "size", "start", "counter", "counted", "event", "waits")  # as torch has them, in its order
PART_S = 2.0  # for all others to have heard the last sum; one that has not by then does its step again
GONE = 10 << 20  # tag of a message that is never sent
TAKEN = 1 << 28  # beside the tag of what was handed over: it has been read
FEW_BYTES = 1 << 15  # a sum of less is one worker's: a ring of six hands it on ten times, for a millisecond of CPU each
FEW = 8 << 20  # tag of their messages, far from all others; and their size, since a longer one would end the process


class Sharing:
    """Shared memory of one process, which trains on `device`: that of a tensor, so that it has a number."""

    refused: ClassVar[bool] = False  # by this process: what was tried once

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    @property
    def name(self) -> str:
        """The same for processes that can read each other's memory; "" for none."""
        if self.device is None or self.device.type != "cuda" or Sharing.refused:
            return ""
        return f"{device_name(self.device, whole=True)} {self.device.index}"

    @property
    def gpu(self) -> str:
        """The GPU of this process; "" for a CPU."""
        return "" if self.device is None else device_name(self.device)

    def refuse(self) -> None:
        """Never again by this process."""
        Sharing.refused = True

    def letter(self, memory: torch.Tensor) -> torch.Tensor:
        """The place of these bytes, as a message; earlier work of the GPU is done."""
        torch.cuda.current_stream(memory.device).synchronize()
        facts = dict(zip(FACTS, as_shared(memory.untyped_storage()), strict=True))
        text = {name: value.hex() if name in BYTES else value for name, value in facts.items()}
        return as_letter({**text, "offset": memory.storage_offset()})

    def bring(self, letter: torch.Tensor, room: torch.Tensor) -> None:
        """Copy from the place in a letter; RuntimeError if it cannot be read."""
        text = facts_of(letter)
        facts = [bytes.fromhex(text[name]) if name in BYTES else text[name] for name in FACTS]
        storage = shared_from(facts)
        there = torch.empty(0, dtype=torch.uint8, device=room.device)
        there.set_(storage, text["offset"], room.shape, (1,))
        room.copy_(there)
        torch.cuda.current_stream(room.device).synchronize()


def as_letter(facts: dict[str, Any]) -> torch.Tensor:
    """A message of fixed size."""
    found = torch.zeros(LETTER_BYTES, dtype=torch.uint8)
    text = json.dumps(facts).encode()
    found[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return found


def facts_of(letter: torch.Tensor) -> dict[str, Any]:
    """Counterpart of `as_letter`."""
    found: dict[str, Any] = json.loads(bytes(letter.tolist()).rstrip(b"\0"))
    return found


class Lines(Connected):
    """All connections of one generation."""

    def __init__(self, staging: Staging | None = None, sharing: Sharing | None = None) -> None:
        super().__init__()
        self.staging, self.sharing = staging or Staging(), sharing or Sharing()
        self._groups: list[Any] = []
        self._on_gpus: list[Any] = []  # those of them that NCCL carries

    def mesh(self, name: str, rank: int, world: int) -> GlooMesh:
        """The mesh of all members with this name."""
        with talking():
            return self.patience.run(lambda: GlooMesh(self, name, rank, world))

    def begin(self, mesh: GlooMesh, sums: Iterable[tuple[int, ...]], neighbours: Sequence[int] = ()) -> Future[None]:
        """Form groups for sums and neighbours in a thread, and no others meanwhile; `until` waits for it."""

        def form() -> None:
            for ranks in sums:
                mesh.prepare(ranks)
            mesh.prepare_ways(neighbours)

        return self.patience.begin(form)

    def until(self, forming: Future[Any]) -> None:
        """Wait until they are formed."""
        with talking():
            self.patience.until(forming)

    def group(self, name: str, rank: int, world: int, *, nccl: bool = False) -> Any:
        """Of gloo or of NCCL; blocks until all are there."""
        store = within(self._store, name)
        if nccl:
            assert self.sharing.device is not None  # noqa: S101 - it has said its name
            group = nccl_group(store, rank, world, self.sharing.device)
            self._on_gpus.append(group)
        else:
            group = gloo_group(store, rank, world)
            self._groups.append(group)
        return group

    def names(self, name: str, rank: int, world: int) -> list[tuple[str, str]]:
        """The `Sharing.name` and the GPU of each member, by rank; blocks until all have published theirs."""
        store = within(self._store, f"{name}/names")
        store.set(str(rank), json.dumps((self.sharing.name, self.sharing.gpu)))
        found = [json.loads(each) for each in store.multi_get([str(each) for each in range(world)])]
        return [(shares, gpu) for shares, gpu in found]

    def seal(self) -> None:
        """All connections are open: later sockets are not ours."""
        self._connections.seal()

    def hang_up(self) -> None:
        """End every connection; any thread may call this, and more than once."""
        self._cut()
        aborts = [threading.Thread(target=abort_nccl, args=(each,)) for each in list(self._on_gpus)]
        for each in aborts:  # half a second each, and all of them wait for one another's ends
            each.start()
        for each in aborts:
            each.join()

    def close(self) -> None:
        """Leave it, whatever state it is in."""
        self.hang_up()
        self._leave(self._groups)
        self._groups.clear()
        self._on_gpus.clear()


class GlooMesh:
    """Workers 0 to `world` - 1; alone without a group. Waits raise `following.Broken` if a member is lost.

    Sizes are agreed beforehand: a receiver has memory of just the size that is sent.
    """

    def __init__(self, lines: Lines, name: str, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._lines, self._name = lines, name
        self._sent: list[tuple[Any, torch.Tensor]] = []
        self._groups: dict[tuple[tuple[int, ...], bool], Any] = {}  # by members, and whether NCCL carries it
        self._gpus: list[str] = []  # of all; "" = none
        self._ways: dict[tuple[int, int], Any] = {}  # groups of NCCL by who sends to whom
        self._streamed: list[tuple[Any, torch.Tensor]] = []  # what NCCL carries now
        self._all = self.prepare(tuple(range(world)))
        names = lines.names(name, rank, world) if world > 1 else []
        self._gpus = [gpu for _, gpu in names]
        ours = names[rank][0] if names else ""
        self._near = {each for each, (shares, _) in enumerate(names) if ours and shares == ours and each != rank}
        self._lent: list[tuple[torch.Tensor, int, int]] = []  # memory that others have not read yet
        self._told = False  # the first member sent the result of the last sum
        self._coming: list[tuple[Any, Callable[[], None]]] = []  # state, and what is to be done when it is there

    def prepare(self, ranks: tuple[int, ...], backend: str | None = None) -> Any:
        """The group for sums over these; all of them ask for it in the same order."""
        nccl = self._backend(ranks) == NCCL if backend is None else backend == NCCL
        if len(ranks) > 1 and (ranks, nccl) not in self._groups:
            name = f"{self._name}/{'-'.join(map(str, ranks))}{'/nccl' if nccl else ''}"
            self._groups[ranks, nccl] = self._lines.group(name, ranks.index(self.rank), len(ranks), nccl=nccl)
        return self._groups.get((ranks, nccl))

    def _backend(self, ranks: Sequence[int]) -> str:
        """NCCL where all of these have a GPU of their own."""
        return backend_for([self._gpus[each] for each in ranks] if self._gpus else [""])

    def prepare_ways(self, neighbours: Sequence[int]) -> None:
        """Groups to and from neighbours where both ends have a GPU; even pairs come first, so no chain waits."""
        for low, high in sorted(((min(self.rank, n), max(self.rank, n)) for n in neighbours), key=lambda p: p[0] % 2):
            if self._backend((low, high)) == NCCL:
                for giver, taker in ((low, high), (high, low)):
                    name = f"{self._name}/{giver}>{taker}"
                    group = self._lines.group(name, 0 if self.rank == giver else 1, 2, nccl=True)
                    self._ways[giver, taker] = group

    def stream_to(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """Send to a neighbour: by NCCL on a stream of its own, in the order of the calls, or as `send`."""
        way = self._ways.get((self.rank, to))
        if way is None:
            self.send(tensor, to, tag)
            return
        with talking():
            self._streamed.append((way.send([tensor], 1, 0), tensor))

    def stream_from(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """Receive from a neighbour: later work of the GPU waits, and the host does not."""
        way = self._ways.get((giver, self.rank))
        if way is None:
            self.receive(tensor, giver, tag)
            return
        with talking():
            way.recv([tensor], 0, 0).wait()
        self._streamed.append((None, tensor))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """It may be written over once `settle` has returned. From a GPU a copy is sent (`Staging`)."""
        there = self._lines.staging.out(tensor.detach())
        with talking():
            self._sent.append((self._all.send([there], to, tag), there))

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """Into this memory; waits."""
        staging = self._lines.staging
        there = staging.room(tensor)
        with talking():
            self._wait([self._all.recv([there], giver, tag)])
        staging.bring(there, tensor)

    def hand(self, memory: torch.Tensor, to: int, tag: int) -> None:
        """Send state; to a process on the same GPU a letter goes, and it reads the memory itself."""
        if to not in self._near:
            self.send(memory, to, tag)
            return
        try:
            letter = self._lines.sharing.letter(memory)
        except RuntimeError as error:
            self._refuse(error)
        self.send(letter, to, tag)
        self._lent.append((memory, to, tag))

    def take(self, memory: torch.Tensor, giver: int, tag: int) -> None:
        """Receive state, which is there when `settle` returns. If it cannot be read, the grid breaks."""
        near, staging = giver in self._near, self._lines.staging
        there = torch.zeros(LETTER_BYTES, dtype=torch.uint8) if near else staging.room(memory)

        def bring() -> None:
            if near:
                self._read(there, memory, giver, tag)
            else:
                staging.bring(there, memory)

        with talking():
            self._coming.append((self._all.recv([there], giver, tag), bring))

    def _read(self, letter: torch.Tensor, memory: torch.Tensor, giver: int, tag: int) -> None:
        try:
            self._lines.sharing.bring(letter, memory)
        except RuntimeError as error:
            self._refuse(error)
        self.send(torch.ones(1, dtype=torch.uint8), giver, TAKEN + tag)

    def settle(self) -> None:
        """Wait for all that was sent, handed and taken."""
        coming, self._coming = self._coming, []
        for work, bring in coming:
            with talking():
                self._wait([work])
            bring()
        sent, self._sent, lent, self._lent = self._sent, [], self._lent, []
        if sent:
            with talking():
                self._wait([work for work, _ in sent])
        for _, taker, tag in lent:
            self.receive(torch.zeros(1, dtype=torch.uint8), taker, TAKEN + tag)
        streamed, self._streamed = self._streamed, []
        if streamed:
            with talking():
                for work, _ in streamed:
                    if work is not None:
                        work.wait()
                if streamed[0][1].is_cuda:
                    torch.cuda.current_stream(streamed[0][1].device).synchronize()
                self._lines.patience.check()  # an abort ends them too, with whatever had come

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Over these workers, in place, the same bits at all of them."""
        among = tuple(ranks)
        if len(among) == 1:
            return
        with talking():
            self._told = tensor.nbytes <= FEW_BYTES and not self._lines.staging.is_needed(tensor)
            if self._told:
                self._add_up(tensor, among)
                return
            if self._lines.staging.is_needed(tensor) and self._backend(among) == NCCL:
                work = self.prepare(among).allreduce([tensor])
                self._lines.patience.run(lambda: _until_added(work, tensor))
                self._lines.patience.check()
                return
            group = self._groups.get((among, False)) or self._lines.patience.run(lambda: self.prepare(among, GLOO))
            self._lines.patience.until_summed(group.allreduce([tensor]))

    def _add_up(self, tensor: torch.Tensor, among: tuple[int, ...]) -> None:
        """The first adds in their order, and sends the result."""
        (first, *others), tag = among, FEW + tensor.nbytes
        if self.rank != first:
            mine = tensor.clone()
            self._wait([self._all.send([mine], first, tag), self._all.recv([tensor], first, tag)])
            return
        terms = [torch.empty_like(tensor) for _ in others]
        self._wait([self._all.recv([term], each, tag) for term, each in zip(terms, others, strict=True)])
        for term in terms:
            tensor += term
        self._wait([self._all.send([tensor], each, tag) for each in others])

    def part(self, ranks: Sequence[int]) -> None:
        """Leave after the last sum: the member that sent its result closes its connections last."""
        if not self._told:  # by a ring, in which all need their neighbours to the end
            with contextlib.suppress(Broken):
                self.sum(torch.zeros(1), ranks)
        first, *others = ranks
        if self.rank != first:
            return
        ends_s = WALL.monotonic() + PART_S
        for each in others:
            with contextlib.suppress(Broken), talking():  # when its connection ends: nothing is ever sent there
                work = self._all.recv([torch.zeros(1)], each, GONE)
                self._lines.patience.run(work.wait, max(0.0, ends_s - WALL.monotonic()))

    def _refuse(self, error: RuntimeError) -> NoReturn:
        self._lines.sharing.refuse()
        raise Broken(f"memory of another process on this GPU cannot be read: {error}") from error

    def _wait(self, works: Sequence[Any]) -> None:
        self._lines.patience.run(lambda: [work.wait() for work in works])


def _until_added(work: Any, tensor: torch.Tensor) -> None:
    """On GPUs wait for the sum itself, so that no pending one is reported as done."""
    work.wait()
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def spread(mesh: GlooMesh, speaker: int, tree: Any, among: Sequence[int] | None = None) -> Any:
    """A tree of numbers, texts and tensors from the speaker to all of these, or to all of the mesh."""
    ranks = range(mesh.world) if among is None else among
    return tree if len(ranks) == 1 else broadcast(_AsGroup(mesh, ranks), speaker, tree)


class _AsGroup:
    """Some of a mesh, as a group with a broadcast: a sum with zeros."""

    def __init__(self, mesh: GlooMesh, ranks: Sequence[int]) -> None:
        self._mesh, self._ranks, self.rank = mesh, ranks, mesh.rank

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        if self.rank != source:
            tensor.zero_()
        self._mesh.sum(tensor, self._ranks)
