"""A mesh over real connections: gloo's groups as objects, so that a generation has several, and others in its place.

    lines = Lines()                                   # of one generation, as one worker has them
    lines.lead() or lines.find(host, port, check)     # the store where all meet
    mesh = lines.mesh("all", rank, world)             # of the old grid and the new one
    forming = lines.begin(mesh, sums)                 # groups of some of them, while state moves

There is no torch default group: two meshes of one process know nothing of each other. A wait for a single message has
no limit of its own, since gloo closes every connection of a worker when one runs out (a worker that is late would end
the grid): `hang_up`, from any thread, is what ends it.

Where each of those who add up gradients has a GPU of its own, NCCL adds them (`devices.backend_for`); messages between
two of them go through the host by gloo on any GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from sublet.machine.wall import WALL
from sublet.train.grid.sharing import LETTER_BYTES, Sharing
from sublet.train.link.devices import GLOO, NCCL, backend_for
from sublet.train.link.following import Broken
from sublet.train.link.patience import Patience
from sublet.train.link.peers import talking
from sublet.train.link.sockets import COLLECTIVE_TIMEOUT, Connections, answers, lead_store, open_store, own_host
from sublet.train.link.staging import Staging
from sublet.train.private import nccl_options

__all__ = ["GlooMesh", "Lines"]

PART_S = 2.0  # for all others to have heard the last sum; one that has not by then does its step again
GONE = 10 << 20  # tag of a message that is never sent
TAKEN = 1 << 28  # beside the tag of what was handed over: it has been read
FEW_BYTES = 1 << 15  # a sum of less is one worker's: a ring of six hands it on ten times, for a millisecond of CPU each
FEW = 8 << 20  # tag of their messages, far from all others; and their size, since a longer one would end the process


class Lines:
    """All connections of one generation."""

    def __init__(self, staging: Staging | None = None, sharing: Sharing | None = None) -> None:
        self.staging, self.sharing = staging or Staging(), sharing or Sharing()
        self._connections, self.patience = Connections(), Patience()
        self._store: Any = None
        self._groups: list[Any] = []
        self._on_gpus: list[Any] = []  # those of them that NCCL carries

    def lead(self) -> tuple[str, int]:
        """Open the store where all meet; its host and port."""
        host, port, listening = lead_store()
        with talking():
            self._store = self.patience.run(lambda: open_store(host, port, listening))
        return host, port

    def find(self, host: str, port: int, check: Callable[[], None]) -> None:
        """Reach the store of another, which may be gone already: then `check` raises some day."""
        own_host()
        check()
        while not answers(host, port):
            check()
        with talking():
            self._store = self.patience.run(lambda: open_store(host, port))

    def mesh(self, name: str, rank: int, world: int) -> GlooMesh:
        """With all who have this name."""
        with talking():
            return self.patience.run(lambda: GlooMesh(self, name, rank, world))

    def begin(self, mesh: GlooMesh, sums: Iterable[tuple[int, ...]]) -> Future[None]:
        """Groups for these sums, beside what else is done, which must form nothing meanwhile; `until` waits for it."""
        return self.patience.begin(lambda: mesh.prepare_all(sums))

    def until(self, forming: Future[None]) -> None:
        """They are there."""
        with talking():
            self.patience.until(forming)

    def group(self, name: str, rank: int, world: int, *, nccl: bool = False) -> Any:
        """Of gloo; blocks until all are there. Or of NCCL, which meets when it first adds up."""
        store = dist.PrefixStore(name, self._store)  # type: ignore[attr-defined]  # as in sockets.open_store
        group: Any
        if nccl:
            group = dist.ProcessGroupNCCL(store, rank, world, nccl_options(COLLECTIVE_TIMEOUT))
            self._on_gpus.append(group)
        else:
            group = dist.ProcessGroupGloo(store, rank, world, COLLECTIVE_TIMEOUT)
        self._groups.append(group)
        return group

    def names(self, name: str, rank: int, world: int) -> list[str]:
        """Whose memory each of a mesh can read (`sharing`), by rank; blocks until all have said so."""
        store = dist.PrefixStore(f"{name}/shares", self._store)  # type: ignore[attr-defined]  # as in sockets.open_store
        ours = self.sharing.name
        store.set(str(rank), ours)
        return [found.decode() for found in store.multi_get([str(each) for each in range(world)])] if ours else []

    def seal(self) -> None:
        """All that will be opened is open: sockets of later are others'."""
        self._connections.seal()

    def hang_up(self) -> None:
        """End every connection; any thread may call this, and more than once."""
        self.patience.end()
        self._connections.end()
        for group in list(self._on_gpus):  # a GPU that waits for another one
            with contextlib.suppress(RuntimeError):
                group.abort()

    def close(self) -> None:
        """Out of it, whatever state it is in."""
        self.hang_up()
        if self.patience.stuck:  # torch would wait for its threads: nobody may ever destroy them
            for group in self._groups:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        self.patience.close()
        self._groups.clear()
        self._on_gpus.clear()
        self._store = None
        self._connections.forget()


class GlooMesh:
    """As `Mesh` says. Of one alone there is no group at all."""

    def __init__(self, lines: Lines, name: str, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._lines, self._name = lines, name
        self._sent: list[tuple[Any, torch.Tensor]] = []
        self._groups: dict[tuple[tuple[int, ...], bool], Any] = {}  # by whom, and whether NCCL carries it
        self._names: list[str] = []  # of the GPUs of all
        self._all = self.prepare(tuple(range(world)))
        self._names = names = lines.names(name, rank, world) if world > 1 else []
        self._near = {each for each, found in enumerate(names) if found == names[rank] and each != rank}
        self._lent: list[tuple[torch.Tensor, int, int]] = []  # memory that others have not read yet
        self._told = False  # what the last sum came to, by the first of those who made it
        self._coming: list[tuple[Any, Callable[[], None]]] = []  # state, and what is to be done when it is there

    def prepare(self, ranks: tuple[int, ...], backend: str | None = None) -> Any:
        """The group for sums over these; all of them ask for it in the same order."""
        nccl = self._backend(ranks) == NCCL if backend is None else backend == NCCL
        if len(ranks) > 1 and (ranks, nccl) not in self._groups:
            name = f"{self._name}/{'-'.join(map(str, ranks))}{'/nccl' if nccl else ''}"
            self._groups[ranks, nccl] = self._lines.group(name, ranks.index(self.rank), len(ranks), nccl=nccl)
        return self._groups.get((ranks, nccl))

    def _backend(self, ranks: Sequence[int]) -> str:
        """NCCL where all of these have a GPU of their own: its number in the process is behind the name of it."""
        return backend_for([self._names[each].rpartition(" ")[0] for each in ranks] if self._names else [""])

    def prepare_all(self, sums: Iterable[tuple[int, ...]]) -> None:
        """One after the other."""
        for ranks in sums:
            self.prepare(ranks)

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """Of memory of a GPU a copy is sent (`staging`)."""
        there = self._lines.staging.out(tensor.detach())
        with talking():
            self._sent.append((self._all.send([there], to, tag), there))

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """Waits."""
        staging = self._lines.staging
        there = staging.room(tensor)
        with talking():
            self._wait([self._all.recv([there], giver, tag)])
        staging.bring(there, tensor)

    def hand(self, memory: torch.Tensor, to: int, tag: int) -> None:
        """To one who shares our GPU a letter goes, and it reads the memory itself."""
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
        """Givers do not wait for one another. One that cannot read it says so soon: the grid breaks."""
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
        """Waits for all that is under way."""
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

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Two alone add the same bits as any; of more, gloo chooses the order, the same for all."""
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
        """By the first of them, in their order; it tells the others what it came to."""
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
        """Who has told the others what the last sum came to hangs up after all of them; they need nobody else."""
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
    """On GPUs it is over when this returns: nobody says that it has a sum which is still under way."""
    work.wait()
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
