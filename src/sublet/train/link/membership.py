"""The group of a torch process, as orders name it (`following`), and one state in all its members."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from sublet.train.checkpoint.saving import Saver, find
from sublet.train.link.agent_line import LineLost
from sublet.train.link.following import Broken, Entry, Following, at_once, lost, order_wait_s
from sublet.train.link.peers import PeerGroup, talking
from sublet.train.numerics.seeds import own_rng
from sublet.train.shards.meeting import Gone, PeerMesh
from sublet.train.shards.run import SessionRun
from sublet.train.state.state import TRAINED_S, Progress, State, broadcast
from sublet.wire.messages import SHARDS, Leave, Regroup

Answer = TypeVar("Answer")

MOST_TURNS = 1000  # optimizers of a session
LEAVES = 1 << 62  # in place of the generation that one goes on in


class Membership:
    """Our place in the group, with a controller (`following.line`) or without, and the state that it shares."""

    def __init__(
        self,
        state: State,
        progress: Progress,
        saver: Saver,
        device: torch.device,
        shard: Callable[[], SessionRun] | None = None,
    ) -> None:
        self._state, self._progress, self._saver = state, progress, saver
        self._shard = shard  # makes ranges of the optimizer's state
        self._writes_as: int | None = None  # generation
        self.run: SessionRun | None = None  # the optimizer's state is in ranges
        self.ranges = 1  # of the present group
        self.handed: Any = None  # the state that another has handed to us; the session takes it
        self.redone = 0  # steps, since all went back to a checkpoint
        self._device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # for what is made without naming one: communicators, streams, the user's own
        self.following = Following(None, self, PeerGroup(), self._new_group, wait_s=order_wait_s())

    @property
    def group(self) -> PeerGroup:
        """The present one."""
        return self.following.group

    def take_handed(self) -> Any:
        """The state that another has handed to us, if one did since this was last asked."""
        handed, self.handed = self.handed, None
        if self.run is not None:
            handed, self.run.handed = self.run.handed, None
        return handed

    def take_redone(self) -> int:
        """Steps that are lost, since all went back to a checkpoint; told once."""
        redone, self.redone = self.redone, 0
        return redone

    @property
    def moved_bytes(self) -> int:
        """Bytes of ranges that came to us with the present group."""
        return 0 if self.run is None else self.run.shards.moved_bytes

    def enter(self) -> Entry:
        """The first group: that of the first order, of torchrun's environment, or ourselves alone."""
        if self.following.line is not None:
            return self._until(self.following.follow())
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if dist.is_initialized():
            self.following.group = PeerGroup(rank=dist.get_rank(), world=dist.get_world_size())
        elif world > 1 and "RANK" in os.environ:
            store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]  # it is documented
            group = self.following.group = PeerGroup(rank=rank, world=world, device=self._device)
            self._until(group.form_at(store))
        return self._until(self.following.agree(batch=0, formed_s=0.0, generation=None))

    def change(self) -> Entry:
        """At a step boundary that all members know of: out of this group and into the next."""
        run, group = self.run, self.group
        try:
            if group.world > 1:  # a member that leaves may save
                self._state.rng = group.rows(own_rng())
            if run is not None and run.shards.is_cut:
                self._until(self._hand_over(run))
        except Broken as error:
            return self.recover(str(error))
        return self._until(self.following.change())

    async def _hand_over(self, run: SessionRun) -> None:
        """Before members part, those that leave give the others their ranges: so each must know its order."""
        line, group, at_least = self.following.line, self.group, 0
        assert line is not None  # noqa: S101 - orders come over a line
        while True:
            order = await line.foreseen(at_least, self.following.wait_s)
            stays = isinstance(order, Regroup)
            goes_on_in = [n for n in await group.numbers(order.generation if stays else LEAVES) if n != LEAVES]
            if len(set(goes_on_in)) <= 1:
                break
            at_least = max(goes_on_in)
        run.shards.hand_over(PeerMesh(group), stays=stays, saves=isinstance(order, Leave) and order.save)

    def recover(self, why: str) -> Entry:
        """After a break: out of this group, say so unless an order is there already, and into the next."""
        if self.following.line is None:
            raise RuntimeError(f"a worker is gone, and no controller finds another: {why}")
        return self._until(self.following.recover(why))

    def recover_behind(self, why: str) -> Entry:
        """As `recover`, where the script has left its loop. If all go back to a checkpoint, this process ends."""
        made = self.steps
        entry = self.recover(why)
        if self.steps < made:
            lost(f"all went back to step {self.steps} when {made} were made")
        return entry

    def _until(self, entered: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return at_once(entered)
        except LineLost as error:
            lost(str(error))

    def _new_group(self, order: Regroup) -> PeerGroup:
        self._state.rng = None  # what was saved is behind us
        self.ranges = order.parts if order.cut == SHARDS else 1
        if order.cut == SHARDS and self.run is None and self._shard is not None:
            self.run = self._shard()
        return PeerGroup(rank=order.rank, world=order.world, generation=order.generation, device=self._device)

    # ------------------------------------------------------------------------------------------- as a StateHolder

    @property
    def steps(self) -> int:
        """Steps applied in all."""
        return self._progress.steps

    @property
    def ahead(self) -> int:
        """Larger, the more updates are applied: several optimizers take turns within a step."""
        return self._progress.steps * MOST_TURNS + self._progress.turn

    @property
    def done(self) -> float:
        """Samples done."""
        return float(self._progress.done)

    def open(self, generation: int | None) -> None:
        """This worker writes checkpoints from now on."""
        self._writes_as = generation
        self._saver.opened(generation)

    async def load(self) -> bool:
        """Restore the newest checkpoint, if there is any."""
        loaded = await find(self._saver, self.following.line, self._writes_as)
        if self.run is not None:
            self.run.carries = True  # what the script has built is a state too
        if loaded is None:
            return False
        self._state.restore(loaded.state, self._progress)
        self._state.rng = loaded.state["rng"]  # for the other members, which receive our state
        return True

    async def share(self, group: PeerGroup, holders: list[int]) -> None:
        """From the first holder to all: buffers, in which holders may differ, and the state if a member lacks it."""
        if self.run is not None:
            await self._share_ranges(self.run, group)
        else:
            self._share_whole(group, holders)
        self._state.rng = None

    def _share_whole(self, group: PeerGroup, holders: list[int]) -> None:
        rank, first = group.rank, holders[0]
        if len(holders) > 1:
            self._share_buffers(group, first)
        if len(holders) < group.world:
            ours = {**self._state.tree(self._progress), TRAINED_S: self._saver.trained_s} if rank == first else None
            with talking():
                tree = broadcast(group, first, ours)
            if rank not in holders:
                self._state.restore(tree, self._progress, rank=rank)
                self._saver.take_over(tree.get(TRAINED_S, 0.0))
                self.handed = tree

    async def _share_ranges(self, run: SessionRun, group: PeerGroup) -> None:
        mesh = PeerMesh(group)
        try:
            run.shards.meet(mesh, self.ranges)
        except Gone as gone:
            loaded = await self.load() if group.rank == 0 else False
            if not (await group.numbers(int(loaded)))[0]:
                raise LineLost(f"no worker has {gone}, and there is no checkpoint") from gone
            run.shards.half = False
            if group.rank != 0:
                run.carries = False
                run.shards.moments.forget()
            run.shards.meet(mesh, self.ranges)
            self.redone = gone.steps - self._progress.steps
        self._share_buffers(group, 0)

    def _share_buffers(self, group: PeerGroup, first: int) -> None:
        if group.world > 1 and (buffers := self._state.buffers()):
            with talking():
                truth = broadcast(group, first, buffers)
            for name, buffer in buffers.items():
                buffer.copy_(truth[name])

    async def save(self) -> None:
        """Save now, and wait until it is committed."""
        if self.run is not None and not self.run.shards.is_whole:
            self._saver.cannot(self.steps, "its group broke, and one worker has a range of the optimizer's state only")
            return
        self._saver.save(self._state.saved(self._progress), self._progress)

    def close(self) -> None:
        """Wait for what is being written."""
        self._saver.close()
