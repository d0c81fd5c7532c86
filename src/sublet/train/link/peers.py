"""A group of workers that sum gradients, formed without torchrun and ended from outside.

A collective whose peer is gone waits for its time-out, and nothing in torch wakes it. The end of its connections does:
`hang_up` shuts every socket that the group has opened. The collective then raises within milliseconds, here and,
because their connections end too, in all other members.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from sublet.train.link.devices import NCCL, agreed_backend, device_name
from sublet.train.link.following import Broken
from sublet.train.link.sockets import (
    COLLECTIVE_TIMEOUT,
    Connections,
    Patience,
    answers,
    lead_store,
    open_store,
    own_host,
)
from sublet.train.private import abort_nccl, count_groups_anew
from sublet.wire.messages import Meet

__all__ = ["BROKEN", "PeerGroup", "gist_of", "talking"]

BROKEN = (RuntimeError, ValueError)  # of a collective whose group is gone (ValueError: already destroyed)
CPU = torch.device("cpu")
LONGEST_GIST = 300  # characters of a line


@contextlib.contextmanager
def talking() -> Iterator[None]:
    """Around collectives alone, so that an error of the user's code is never taken for a broken group."""
    try:
        yield
    except BROKEN as error:
        raise Broken(gist_of(error)) from error


class PeerGroup:
    """Rank `rank` of `world`; a worker alone has no torch group. Its coroutines block (`following.at_once`)."""

    def __init__(self, *, rank: int = 0, world: int = 1, generation: int = 0, device: torch.device = CPU) -> None:
        self.rank, self.world, self.generation = rank, world, generation
        self.device = device
        self._store: Any = None
        self.is_nccl = False
        self._connections, self._patience = Connections(), Patience()

    @property
    def stuck(self) -> bool:
        """Whether a wait in it will never end."""
        return self._patience.stuck

    async def lead(self) -> tuple[str, int]:
        """Open the store where all meet; its host and port."""
        host, port, listening = lead_store()
        with talking():
            self._store = self._in_a_thread(lambda: open_store(host, port, listening))
        return host, port

    async def find(self, meet: Meet, check: Callable[[], None]) -> None:
        """Reach the store of another member, which may be gone already: then `check` raises some day."""
        own_host()
        check()
        while not answers(meet.host, meet.port):
            check()
        with talking():
            self._store = self._in_a_thread(lambda: open_store(meet.host, meet.port))

    async def form(self) -> None:
        """Make the torch group with all members at the store."""
        on_error = sys.excepthook
        store, device = self._store, device_name(self.device)
        with talking():
            backend = self._in_a_thread(lambda: _make_torch_group(store, self.rank, self.world, device))
        self.is_nccl = backend == NCCL
        sys.excepthook = on_error  # torch puts one more around it each time
        self._connections.seal()

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
        if self.is_nccl:
            work.wait()  # waits on the stream alone
        else:
            self._patience.until_summed(work)

    def wait_for_message(self, work: Any) -> None:
        """As `wait`, for a message: gloo closes all connections when such a wait times out."""
        if self.is_nccl:
            work.wait()
        else:
            self._patience.run(work.wait)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the members, in place."""
        self.wait(dist.all_reduce(tensor, async_op=True))

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """The tensor of `source`, to all."""
        self.wait(dist.broadcast(tensor, source, async_op=True))

    def hang_up(self) -> None:
        """End every connection of the group; any thread may call this, and more than once."""
        self._patience.end()
        self._connections.end()
        if self.is_nccl:
            with contextlib.suppress(RuntimeError, AttributeError):
                abort_nccl(dist.group.WORLD)

    def close(self) -> None:
        """Leave the torch group and give back its sockets."""
        if dist.is_initialized():
            if self.stuck:  # torch would wait for its threads: it must never be destroyed
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
            with contextlib.suppress(RuntimeError):  # of a group that broke
                dist.destroy_process_group()
        count_groups_anew()
        self._store = None
        self._patience.close()
        self._connections.forget()

    def _in_a_thread(self, work: Callable[[], Any]) -> Any:
        return self._patience.until(self._patience.begin(work))


def gist_of(error: BaseException) -> str:
    """The first line and the last: NCCL names the call in the one, and the error in the other."""
    text = str(error).partition("Exception raised from")[0]  # frames of C++ follow
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [repr(error)]
    return lines[0] if len(lines) == 1 else f"{lines[0][:LONGEST_GIST]} ... {lines[-1][:LONGEST_GIST]}"


def _make_torch_group(store: Any, rank: int, world: int, device: str) -> str:
    """The backend."""
    backend = agreed_backend(store, rank, world, device)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=COLLECTIVE_TIMEOUT)
    return backend
