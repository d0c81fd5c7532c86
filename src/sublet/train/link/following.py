"""How a worker follows orders, without torch: the same in a real process and in a simulated one.

Regroup  ->  form the group  ->  which member has the most steps?  ->  the others receive its state  ->  Joined
   ^              |  a member is lost, or a newer order comes: give up and follow the newest
   `--------------'

Waits are awaited. In a training process they never suspend, because they block until they are done (`at_once`). In a
simulated world (`sublet_lab.world`) they suspend, and virtual time goes on meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from sublet.errors import NoCheckpointLeft
from sublet.machine.wall import WALL, Wall
from sublet.train.link.agent_line import AgentLine, Superseded
from sublet.wire.messages import EXIT_LEFT, EXIT_LOST, Broke, Leading, Leave, Left, Meet, Regroup

ORDER_S = 300.0  # without a word from the controller for so long after a break, we give up
MEET_S = 86_400.0  # for the first member to open the store: it may evaluate. The controller says if it hangs


class Broken(Exception):
    """The group failed under a collective: a member is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How we joined a group."""

    source: str = "fresh"  # fresh | peer | checkpoint
    batch: int = 0  # that the plan chose; 0 = the script's own
    micro_batch: int = 0  # most samples at a time, as more did not fit; 0 = as the script has it
    formed_s: float = 0.0
    state_s: float = 0.0


class Collective(Protocol):
    """The group of one order, as one member has it. Its coroutines raise Broken if a member is lost."""

    rank: int
    world: int
    generation: int

    async def lead(self) -> tuple[str, int]:
        """Rank 0: open the store where all meet; its host and port."""

    async def find(self, meet: Meet, check: Callable[[], None]) -> None:
        """All others: reach that store; `check` is called now and then, and raises if the order is old."""

    async def form(self) -> None:
        """All are at the store: make the group."""

    async def numbers(self, mine: int) -> list[int]:
        """The number of each member, by rank."""

    async def part(self) -> None:
        """Until every member has received the last sum, or the group has broken: then all may leave."""

    def hang_up(self) -> None:
        """End every connection, so that no member waits in it; from any thread, and more than once."""

    def close(self) -> None:
        """Leave it, whatever state it is in."""


Group = TypeVar("Group", bound=Collective)
Group_contra = TypeVar("Group_contra", bound=Collective, contravariant=True)


class StateHolder(Protocol[Group_contra]):
    """The training state of this worker, and its checkpoints."""

    @property
    def steps(self) -> int:
        """Steps applied in all."""

    @property
    def ahead(self) -> int:
        """A count of applied updates; a step may have several."""

    @property
    def done(self) -> float:
        """Samples done."""

    def open(self, generation: int | None) -> None:
        """This worker writes checkpoints from now on, and none of a lower generation does."""

    async def load(self) -> bool:
        """Take the newest checkpoint, if there is any; NoCheckpointLeft if there is none that can be trusted."""

    async def share(self, group: Group_contra, holders: list[int]) -> None:
        """Give all members the state of the first holder; the other holders have it up to buffers."""

    async def save(self) -> None:
        """A checkpoint of now, committed when this returns."""

    def close(self) -> None:
        """Wait for what is being written."""


Came = TypeVar("Came")


class Follower(Generic[Came]):
    """A loop from order to order. Subclasses say how to join, save and part."""

    def __init__(self, line: AgentLine | None, wait_s: float) -> None:
        self.line, self.wait_s = line, wait_s

    @property
    def standing(self) -> Mapping[str, Any]:
        """Fields of `Broke`: our generation, steps, and a step that is pending."""
        raise NotImplementedError

    @property
    def done(self) -> float:
        """Samples done."""
        raise NotImplementedError

    def drop(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    async def follow(self) -> Came:
        """Into the group of the newest order with a place for us; LineLost if none comes, SystemExit to leave."""
        line = self._its_line()
        while True:
            try:
                order = await line.order(self.wait_s)
                if isinstance(order, Leave):
                    await self._save(order)
                    self._say_left(order)
                    raise SystemExit(EXIT_LEFT)
                if (came := await self._join(order)) is not None:
                    return came
            except (Superseded, NoCheckpointLeft):  # the latter has been told; what now is not ours to decide
                self.drop()
            except Broken as error:
                self.drop()
                self._tell_broken(str(error))

    async def change(self) -> Came:
        """At a step boundary that all members know of: out of this group and into the next."""
        await self._part()
        self.drop()
        return await self.follow()

    async def recover(self, why: str) -> Came:
        """After a break: out of this group, report it unless an order is there already, and into the next."""
        self.drop()
        self._tell_broken(why)
        return await self.follow()

    def say_broken(self, why: str) -> None:
        """Report a break, whatever has been ordered meanwhile."""
        line = self._its_line()
        line.say(Broke(worker_id=line.worker_id, why=why, **self.standing))

    async def _join(self, order: Regroup) -> Came | None:
        """None if we have only handed over our state."""
        raise NotImplementedError

    async def _save(self, order: Leave) -> None:
        """Save our state, if the order asks for it."""
        raise NotImplementedError

    async def _part(self) -> None:
        """Until every member has received the last sum."""
        raise NotImplementedError

    def _say_left(self, order: Regroup | Leave, gave_bytes: int = 0) -> None:
        line, step = self._its_line(), self.standing["step"]
        facts = {"generation": order.generation, "step": step, "done": self.done, "gave_bytes": gave_bytes}
        line.say(Left(worker_id=line.worker_id, **facts))

    def _tell_broken(self, why: str) -> None:
        if not self._its_line().pending:
            self.say_broken(why)

    def _its_line(self) -> AgentLine:
        assert self.line is not None  # noqa: S101 - orders come over a line
        return self.line


class Following(Follower[Entry], Generic[Group]):
    """Our place in the group that the newest order names; orders come over `line`."""

    def __init__(
        self,
        line: AgentLine | None,
        holder: StateHolder[Group],
        alone: Group,
        new: Callable[[Regroup], Group],
        *,
        wait_s: float,
        wall: Wall = WALL,
    ) -> None:
        super().__init__(line, wait_s)
        self.group = alone
        self._holder, self._new, self._wall = holder, new, wall
        self._carries = False  # whether we have a state that others may need

    @property
    def standing(self) -> Mapping[str, Any]:
        return {"generation": self.group.generation, "step": self._holder.steps}

    @property
    def done(self) -> float:
        return self._holder.done

    async def agree(self, *, batch: int, formed_s: float, generation: int | None) -> Entry:
        """All take the state of the member with the most steps, or of the newest checkpoint, or of rank 0."""
        started_s = self._wall.monotonic()
        group, holder = self.group, self._holder
        steps = await group.numbers(holder.ahead if self._carries else -1)
        source = "peer"
        if max(steps) < 0:
            loaded = False
            if group.rank == 0:
                holder.open(generation)
                loaded = await holder.load()
            source = "checkpoint" if await self._of_first(int(loaded)) else "fresh"
            steps = [0] + [-1] * (group.world - 1)
        elif group.rank == 0:
            holder.open(generation)
        await holder.share(group, [member for member in range(group.world) if steps[member] == max(steps)])
        self._carries = True
        batch = await self._of_first(batch)
        return Entry(source=source, batch=batch, formed_s=formed_s, state_s=self._wall.monotonic() - started_s)

    def drop(self) -> None:
        self.group.close()
        if self.line is not None:
            self.line.release()

    async def _join(self, order: Regroup) -> Entry:
        line, started_s = self._its_line(), self._wall.monotonic()
        self.group = group = self._new(order)
        if order.world == 1:
            entry = await self.agree(batch=order.batch, formed_s=0.0, generation=order.generation)
            return replace(entry, micro_batch=order.micro_batch)
        with line.holds(group.hang_up):
            if order.rank == 0:
                host, port = await group.lead()
                line.say(Leading(worker_id=line.worker_id, generation=order.generation, host=host, port=port))
            else:
                await group.find(await line.meeting(order.generation, MEET_S), line.check)
            await group.form()
            formed_s = self._wall.monotonic() - started_s
            entry = await self.agree(batch=order.batch, formed_s=formed_s, generation=order.generation)
            return replace(entry, micro_batch=order.micro_batch)

    async def _save(self, order: Leave) -> None:
        holder = self._holder
        if order.save and self._carries and (self.group.rank == 0 or order.broken):
            holder.open(order.generation)
            await holder.save()
        holder.close()

    async def _part(self) -> None:
        if self.group.world > 1:
            await self.group.part()

    async def _of_first(self, number: int) -> int:
        return (await self.group.numbers(number))[0]


Answer = TypeVar("Answer")


def at_once(work: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of a coroutine that never suspends, because all its waits block."""
    try:
        work.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    work.close()
    raise RuntimeError("something suspended where nothing else could go on")


def order_wait_s() -> float:
    """How long a training process waits for an order."""
    return float(os.environ.get("SUBLET_ORDER_WAIT_S", ORDER_S))


def lost(why: str) -> NoReturn:
    """End this process, which has no group."""
    print(f"sublet: this worker ends: {why}", file=sys.stderr)  # noqa: T201 - its log is all that is left
    raise SystemExit(EXIT_LOST)
