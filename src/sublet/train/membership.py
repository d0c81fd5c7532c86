"""Who we train with, in a torch process: the group that orders name (`following`), and one state in all its members."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from sublet.machine.objects import StoreFailed
from sublet.train.agent_line import AgentLine, Lost
from sublet.train.devices import GLOO, NCCL
from sublet.train.following import Entry, Following, at_once
from sublet.train.peers import PeerGroup, talking
from sublet.train.saving import Saver
from sublet.train.state import Progress, State, broadcast
from sublet.wire.exits import EXIT_LOST
from sublet.wire.messages import Regroup
from sublet.wire.saves import DISK

__all__ = ["ORDER_S", "Membership", "lost"]

ORDER_S = 300.0  # without a word from the controller for so long after a break, we give up
BRING_S = 86_400.0  # for a checkpoint that its agent brings, however large: the agent says if it cannot
TRAINED_S = "trained_s"  # beside a state that is handed over; one of an earlier version has none


class Membership:
    """Our place in the group, under a controller (`line`) or without one."""

    def __init__(
        self, line: AgentLine | None, state: State, progress: Progress, saver: Saver, device: torch.device
    ) -> None:
        self._holding = Holding(state, progress, saver, lambda: self.line)
        self._device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # for what is made without naming one: communicators, streams, the user's own
        wait_s = float(os.environ.get("SUBLET_ORDER_WAIT_S", ORDER_S))
        self._following = Following(line, self._holding, PeerGroup(), self._new_group, wait_s=wait_s)

    @property
    def line(self) -> AgentLine | None:
        """Over which orders come."""
        return self._following.line

    @line.setter
    def line(self, line: AgentLine | None) -> None:
        self._following.line = line

    @property
    def group(self) -> PeerGroup:
        """The present one."""
        return self._following.group

    def take_handed(self) -> Any:
        """The state that another has handed to us, if one did since this was last asked."""
        handed, self._holding.handed = self._holding.handed, None
        return handed

    def enter(self) -> Entry:
        """The first group: that of the first order, of torchrun's environment, or ourselves alone."""
        if self.line is not None:
            return self._until(self._following.follow())
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if dist.is_initialized():
            self._following.group = PeerGroup(rank=dist.get_rank(), world=dist.get_world_size())
        elif world > 1 and "RANK" in os.environ:
            dist.init_process_group(NCCL if self._device.type == "cuda" else GLOO)
            self._following.group = PeerGroup(rank=dist.get_rank(), world=world)
        return self._until(self._following.agree(batch=0, formed_s=0.0, generation=None))

    def change(self) -> Entry:
        """At a step boundary that all members know of: out of this group and into the next."""
        return self._until(self._following.change())

    def recover(self, why: str) -> Entry:
        """After a break: out of this group, say so unless an order is there already, and into the next."""
        if self.line is None:
            raise RuntimeError(f"a worker is gone, and no controller finds another: {why}")
        return self._until(self._following.recover(why))

    def lost(self, why: str) -> NoReturn:
        """As the function of this name."""
        lost(why)

    def _until(self, entered: Coroutine[Any, Any, Entry]) -> Entry:
        try:
            return at_once(entered)
        except Lost as error:
            self.lost(str(error))

    def _new_group(self, order: Regroup) -> PeerGroup:
        return PeerGroup(rank=order.rank, world=order.world, generation=order.generation, device=self._device)


def lost(why: str) -> NoReturn:
    """End this process: nobody tells it what to do."""
    print(f"sublet: this worker ends: {why}", file=sys.stderr)  # noqa: T201 - its log is all that is left
    raise SystemExit(EXIT_LOST)


class Holding:
    """The state of this worker and its checkpoints, as `following` keeps them."""

    def __init__(
        self,
        state: State,
        progress: Progress,
        saver: Saver,
        line: Callable[[], AgentLine | None] = lambda: None,
    ) -> None:
        self._state, self._progress, self._saver, self._line = state, progress, saver, line
        self._generation: int | None = None
        self.handed: Any = None  # the state that another has handed to us; the session takes it

    @property
    def steps(self) -> int:
        """Steps applied in all."""
        return self._progress.steps

    @property
    def done(self) -> float:
        """Samples behind us."""
        return float(self._progress.done)

    def open(self, generation: int | None) -> None:
        """We write from now on."""
        self._generation = generation
        self._saver.opened(generation)

    async def load(self) -> bool:
        """From the newest checkpoint, if there is any."""
        line = self._line()
        try:
            with self._at_work():
                if line is not None and self._generation is not None and self._saver.tier == DISK:
                    await line.bring(self._generation, BRING_S)
                loaded = self._saver.newest()
        except StoreFailed as error:
            if error.lasting:
                raise
            raise Lost(str(error)) from error  # whether there is one is not known: another worker is to ask again
        if loaded is None:
            return False
        self._state.restore(loaded.state, self._progress, same_dice=True)
        return True

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """What takes long here is work, and no sign of a group that does not form."""
        line = self._line()
        if line is None:
            yield
            return
        before, line.script_s = line.script_s, line.wall.monotonic()
        try:
            yield
        finally:
            line.script_s = before

    async def share(self, group: PeerGroup, holders: list[int]) -> None:
        """From the first holder to all: buffers, in which holders may differ, and the state if somebody lacks it."""
        rank, first = group.rank, holders[0]
        if len(holders) > 1 and (buffers := self._state.buffers()):
            with talking():
                truth = broadcast(group, first, buffers)
            for name, buffer in buffers.items():
                buffer.copy_(truth[name])
        if len(holders) < group.world:
            ours = {**self._state.tree(self._progress), TRAINED_S: self._saver.trained_s} if rank == first else None
            with talking():
                tree = broadcast(group, first, ours)
            if rank not in holders:
                self._state.restore(tree, self._progress, same_dice=False, rank=rank)
                self._saver.take_over(tree.get(TRAINED_S, 0.0))
                self.handed = tree

    async def save(self) -> None:
        """Now, and wait until it is committed."""
        self._saver.save(self._state.tree(self._progress), self._progress)

    def close(self) -> None:
        """Wait for what is being written."""
        self._saver.close()
