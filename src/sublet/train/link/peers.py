"""A group of workers that sum gradients, formed without torchrun and ended from outside.

A collective whose peer is gone waits for its time-out, and nothing in torch wakes it. The end of its connections does:
`hang_up` shuts every socket that the group has opened. The collective then raises within milliseconds, here and,
because their connections end too, in all other members.

With NCCL nothing raises: its wait is the stream's, and a sum that was aborted leaves half a sum behind. So the host
waits for the stream, looks whether the group was hung up on meanwhile, and asks all others by gloo (`wait_for_step`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from sublet.errors import InvalidValue
from sublet.train.link.devices import NCCL, agreed_backend, device_name
from sublet.train.link.following import Broken
from sublet.train.link.groups import abort_nccl, gloo_group, nccl_group, within
from sublet.train.link.sockets import Connections, Patience, answers, lead_store, open_store, own_host
from sublet.train.private import coalesced, gather_blocks
from sublet.wire.messages import Meet

BROKEN = (RuntimeError, ValueError)  # of a collective whose group is gone (ValueError: already destroyed)
CPU = torch.device("cpu")
LONGEST_GIST = 300  # characters of a line
BY_GPU_BYTES = 1 << 20  # memory of the host that goes from GPU to GPU, where there are: a smaller part goes by gloo
PORTION_BYTES = 64 << 20  # of it at a time


@contextlib.contextmanager
def talking() -> Iterator[None]:
    """Around collectives alone, so that an error of the user's code is never taken for a broken group."""
    try:
        yield
    except InvalidValue:  # no connection is to blame
        raise
    except BROKEN as error:
        raise Broken(gist_of(error)) from error


class Connected:
    """The connections of one generation, and the store where its members meet."""

    def __init__(self) -> None:
        self._connections, self.patience = Connections(), Patience()
        self._store: Any = None

    def open_store(self) -> tuple[str, int]:
        """Open the store where all meet; its host and port."""
        host, port, listening = lead_store()
        self._take_store(host, port, listening)
        return host, port

    def find_store(self, host: str, port: int, check: Callable[[], None]) -> None:
        """Reach the store of another member, which may be gone already: then `check` raises some day."""
        own_host()
        check()
        while not answers(host, port):
            check()
        self._take_store(host, port)

    def _take_store(self, host: str, port: int, listening: int | None = None) -> None:
        with talking():
            self._store = self._in_a_thread(lambda: open_store(host, port, listening))

    def _in_a_thread(self, work: Callable[[], Any]) -> Any:
        return self.patience.until(self.patience.begin(work))

    def _cut(self) -> None:
        self.patience.end()
        self._connections.end()

    def _leave(self, groups: Iterable[Any]) -> None:
        """Give back the sockets. Torch would wait for threads of a group that is stuck: it must never be destroyed."""
        for group in groups if self.patience.stuck else ():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        self._store = None
        self.patience.close()
        self._connections.forget()


class PeerGroup(Connected):
    """Rank `rank` of `world`; a worker alone has no torch group. Its coroutines block (`following.at_once`).

    A group that was not formed here is torch's default one, which its maker ends.
    """

    def __init__(self, *, rank: int = 0, world: int = 1, generation: int = 0, device: torch.device = CPU) -> None:
        super().__init__()
        self.rank, self.world, self.generation = rank, world, generation
        self.device = device
        self._host: Any = None  # gloo
        self._gpus: Any = None  # NCCL

    @property
    def is_nccl(self) -> bool:
        """Whether it talks by NCCL, and so from GPU to GPU."""
        return self._gpus is not None

    @property
    def stuck(self) -> bool:
        """Whether a wait in it will never end."""
        return self.patience.stuck

    async def lead(self) -> tuple[str, int]:
        """See Collective."""
        return self.open_store()

    async def find(self, meet: Meet, check: Callable[[], None]) -> None:
        """See Collective."""
        self.find_store(meet.host, meet.port, check)

    async def form(self) -> None:
        """Make the torch groups with all members at the store."""
        with talking():
            self._in_a_thread(self._form)
        self._connections.seal()

    async def form_at(self, store: Any) -> None:
        """As `form`, at a store of torchrun's."""
        self._store = within(store, "sublet")
        await self.form()

    def _form(self) -> None:
        store, rank, world = self._store, self.rank, self.world
        self._host = gloo_group(within(store, "host"), rank, world)
        if agreed_backend(store, rank, world, device_name(self.device)) == NCCL:
            self._gpus = nccl_group(within(store, "gpus"), rank, world, self.device)

    async def numbers(self, mine: int) -> list[int]:
        """The number of each member, by rank."""
        found: list[int] = self.rows(torch.tensor(mine)).tolist()
        return found

    def rows(self, mine: torch.Tensor) -> torch.Tensor:
        """The tensor of each member, by rank, all of one shape and type; Broken."""
        table = torch.zeros(self.world, *mine.shape, dtype=mine.dtype)
        table[self.rank] = mine
        if self.world > 1:
            with talking():
                self.all_reduce(table)
        return table

    async def part(self) -> None:
        """Until every member has received the last sum."""
        with contextlib.suppress(*BROKEN):
            self.all_reduce(torch.zeros(1))

    def wait(self, work: Any) -> None:
        """Until the collective is over; one of BROKEN if it fails, or never ends after we have hung up."""
        if self._gpus is not None:
            work.wait()
            self._reach()
        else:
            self.patience.until_summed(work)

    def wait_for_step(self, works: list[Any]) -> None:
        """Until all have these sums: then, and only then, a step may be applied; one of BROKEN."""
        if self._gpus is None:
            for work in works:
                self.patience.until_summed(work)
            return
        for work in works:
            work.wait()
        self._reach()
        here = torch.ones(1)
        self.patience.until_summed(self._host.allreduce([here]))
        if int(here) != self.world:
            raise RuntimeError(f"{int(here)} of {self.world} have the sum")

    def _reach(self) -> None:
        """The GPU has done what was asked of it so far, and no thread has aborted it meanwhile."""
        reached = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch gives it no type
        reached.record(torch.cuda.current_stream(self.device))
        reached.synchronize()
        self.patience.check()

    def wait_for_message(self, work: Any) -> None:
        """As `wait`, for a message: gloo closes all connections when such a wait times out."""
        self.patience.run(work.wait)

    def begin_sum(self, tensor: torch.Tensor) -> Any:
        """Over the members, in place; what to wait for."""
        return self._for(tensor).allreduce([tensor])

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the members, in place."""
        work = self.begin_sum(tensor)
        self._wait_as(tensor, work)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """The tensor of `source`, to all."""
        if self._gpus is not None and not tensor.is_cuda and tensor.nbytes > BY_GPU_BYTES:
            for start in range(0, tensor.numel(), PORTION_BYTES // tensor.element_size()):
                part = tensor.view(-1)[start : start + PORTION_BYTES // tensor.element_size()]
                there = part.to(self.device)
                self.broadcast(there, source)
                part.copy_(there)
            return
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._wait_as(tensor, self._for(tensor).broadcast([tensor], options))

    def gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """The block of each, by rank."""
        self._wait_as(mine, gather_blocks(self._for(mine), everything, mine))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Any:
        """From memory of the host; what to wait for."""
        return self._for(tensor).send([tensor], to, tag)

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> Any:
        """Into memory of the host; what to wait for."""
        return self._for(tensor).recv([tensor], giver, tag)

    def exchange(self, sent: list[tuple[torch.Tensor, int]], wanted: list[tuple[torch.Tensor, int]]) -> None:
        """Messages from GPU to GPU, all at once: NCCL would wait for one after the other."""
        with coalesced(self._gpus) as works:
            for tensor, to in sent:
                self._gpus.send([tensor], to, 0)
            for tensor, giver in wanted:
                self._gpus.recv([tensor], giver, 0)
        for work in works:
            self.wait(work)

    def hang_up(self) -> None:
        """End every connection of the group; any thread may call this, and more than once."""
        self._cut()
        if self._gpus is not None:
            abort_nccl(self._gpus)

    def rest(self) -> None:
        """After a break: nothing on the GPU writes any more."""
        if self._gpus is not None:
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Leave the torch groups and give back their sockets."""
        if self._gpus is not None:
            abort_nccl(self._gpus)
        self._leave([] if self._host is None else [self._host])
        self._host = self._gpus = None

    def _for(self, tensor: torch.Tensor) -> Any:
        if tensor.is_cuda and self._gpus is not None:
            return self._gpus
        return self._host or dist.group.WORLD

    def _wait_as(self, tensor: torch.Tensor, work: Any) -> None:
        """NCCL carries memory of GPUs alone: gloo what lies on the host, in any group."""
        if tensor.is_cuda:
            self.wait(work)
        else:
            self.patience.until_summed(work)


def gist_of(error: BaseException) -> str:
    """The first line and the last: NCCL names the call in the one, and the error in the other."""
    text = str(error).partition("Exception raised from")[0]  # frames of C++ follow
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [repr(error)]
    return lines[0] if len(lines) == 1 else f"{lines[0][:LONGEST_GIST]} ... {lines[-1][:LONGEST_GIST]}"
