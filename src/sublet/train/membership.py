"""Who we train with: waits for orders, forms the group that they name, and sees that all members have the same state.

Regroup  ->  form the group  ->  who has the most steps?  ->  all others receive its state  ->  Joined
   ^              |  somebody goes away, or a newer order comes: give up and follow the newest
   `--------------'
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from sublet.errors import NoCheckpointLeft
from sublet.train.agent_line import AgentLine, Lost, Superseded
from sublet.train.devices import GLOO, NCCL, device_name
from sublet.train.peers import BROKEN, PeerGroup, gist_of
from sublet.train.saving import Saver
from sublet.train.state import Progress, State, broadcast
from sublet.wire.exits import EXIT_LEFT, EXIT_LOST
from sublet.wire.messages import Broke, Leave, Left, Regroup

__all__ = ["Broken", "Entry", "Membership", "talking"]

ORDER_S = 300.0  # without a word from the controller for so long after a break, we give up
TRAINED_S = "trained_s"  # beside a state that is handed over; one of an earlier version has none


class Broken(Exception):
    """The group failed under a collective: somebody is gone."""


@contextlib.contextmanager
def talking() -> Iterator[None]:
    """Around collectives alone, so that an error of the user's code is never taken for a broken group."""
    try:
        yield
    except BROKEN as error:
        raise Broken(gist_of(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How we came into a group."""

    source: str = "fresh"  # fresh | peer | checkpoint
    batch: int = 0  # that the plan chose; 0 = the script's own
    formed_s: float = 0.0
    state_s: float = 0.0


class Membership:
    """Our place in the group, under a controller (`line`) or without one."""

    def __init__(
        self, line: AgentLine | None, state: State, progress: Progress, saver: Saver, device: torch.device
    ) -> None:
        self.line, self.group = line, PeerGroup()
        self._state, self._progress, self._saver, self._device = state, progress, saver, device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # for what is made without naming one: communicators, streams, the user's own
        self._wait_s = float(os.environ.get("SUBLET_ORDER_WAIT_S", ORDER_S))
        self.handed: Any = None  # the state that another has handed to us; the session takes it
        self._carries = False  # whether we have a state that others may need

    def enter(self) -> Entry:
        """The first group: that of the first order, of torchrun's environment, or ourselves alone."""
        if self.line is not None:
            return self._follow(self.line)
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if dist.is_initialized():
            self.group = PeerGroup(rank=dist.get_rank(), world=dist.get_world_size())
        elif world > 1 and "RANK" in os.environ:
            dist.init_process_group(NCCL if self._device.type == "cuda" else GLOO)
            self.group = PeerGroup(rank=dist.get_rank(), world=world)
        return self._agree(batch=0, formed_s=0.0, generation=None)

    def change(self) -> Entry:
        """At a step boundary that all members know of: out of this group and into the next."""
        assert self.line is not None  # noqa: S101 - orders come over a line
        if self.group.world > 1:
            with contextlib.suppress(*BROKEN):  # nobody hangs up before the last has heard the last sum
                self.group.all_reduce(torch.zeros(1))
        self._drop_group()
        return self._follow(self.line)

    def recover(self, why: str) -> Entry:
        """After a break: out of this group, say so unless an order is there already, and into the next."""
        if self.line is None:
            raise RuntimeError(f"a worker is gone, and no controller finds another: {why}")
        self._drop_group()
        self._tell_broken(self.line, why)
        return self._follow(self.line)

    def lost(self, why: str) -> NoReturn:
        """End this process: nobody tells it what to do."""
        print(f"sublet: this worker ends: {why}", file=sys.stderr)  # noqa: T201 - its log is all that is left
        raise SystemExit(EXIT_LOST)

    def _follow(self, line: AgentLine) -> Entry:
        while True:
            try:
                order = line.order(self._wait_s)
                if isinstance(order, Leave):
                    self._leave(line, order)
                return self._join(line, order)
            except Lost as error:
                self.lost(str(error))
            except (Superseded, NoCheckpointLeft):  # the latter has been told; what now is not ours to decide
                self._drop_group()
            except Broken as error:
                self._drop_group()
                self._tell_broken(line, str(error))

    def _join(self, line: AgentLine, order: Regroup) -> Entry:
        started_s = time.perf_counter()
        self.group = PeerGroup(rank=order.rank, world=order.world, generation=order.generation)
        if order.world == 1:
            return self._agree(batch=order.batch, formed_s=0.0, generation=order.generation)
        with line.holds(self.group.hang_up):
            with talking():
                self.group.form(order, line, device=device_name(self._device))
            formed_s = time.perf_counter() - started_s
            return self._agree(batch=order.batch, formed_s=formed_s, generation=order.generation)

    def _leave(self, line: AgentLine, order: Leave) -> NoReturn:
        progress = self._progress
        if order.save and self._carries and (self.group.rank == 0 or order.broken):
            self._saver.opened(order.generation)
            self._saver.save(self._state.tree(progress), progress)
        self._saver.close()
        done = float(progress.done)
        line.say(Left(worker_id=line.worker_id, generation=order.generation, step=progress.steps, done=done))
        raise SystemExit(EXIT_LEFT)

    def _tell_broken(self, line: AgentLine, why: str) -> None:
        if not line.pending:
            generation, step = self.group.generation, self._progress.steps
            line.say(Broke(worker_id=line.worker_id, generation=generation, step=step, why=why))

    def _drop_group(self) -> None:
        self.group.close()
        if self.line is not None:
            self.line.release()

    # ------------------------------------------------------------------------------------------- one state for all

    def _agree(self, *, batch: int, formed_s: float, generation: int | None) -> Entry:
        """Everybody has the state of the member with the most steps, or of the newest checkpoint, or of rank 0."""
        started_s = time.perf_counter()
        rank, world, progress = self.group.rank, self.group.world, self._progress
        steps = self._gather_numbers(progress.steps if self._carries else -1)
        source = "peer"
        if max(steps) < 0:
            loaded = self._load(generation) if rank == 0 else False
            source = "checkpoint" if self._from_first(int(loaded)) else "fresh"
            steps = [0] + [-1] * (world - 1)
        elif rank == 0:
            self._saver.opened(generation)
        holders = [member for member in range(world) if steps[member] == max(steps)]
        self._spread(holders)
        self._carries = True
        batch = self._from_first(batch)
        return Entry(source=source, batch=batch, formed_s=formed_s, state_s=time.perf_counter() - started_s)

    def _spread(self, holders: list[int]) -> None:
        """From the first holder to all: buffers, in which holders may differ, and the state if somebody lacks it."""
        rank, group, first = self.group.rank, self.group, holders[0]
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

    def _load(self, generation: int | None) -> bool:
        self._saver.opened(generation)
        loaded = self._saver.newest()
        if loaded is None:
            return False
        self._state.restore(loaded.state, self._progress, same_dice=True)
        return True

    def _gather_numbers(self, number: int) -> list[int]:
        if self.group.world == 1:
            return [number]
        table = torch.zeros(self.group.world, dtype=torch.int64)
        table[self.group.rank] = number
        with talking():
            self.group.all_reduce(table)
        found: list[int] = table.tolist()
        return found

    def _from_first(self, number: int) -> int:
        return self._gather_numbers(number)[0]
