"""Whose orders a worker follows, without a word about tensors: the same in a real process and in a simulated one.

Regroup  ->  form the group  ->  who has the most steps?  ->  all others receive its state  ->  Joined
   ^              |  somebody goes away, or a newer order comes: give up and follow the newest
   `--------------'

What waits is awaited. In a training process nothing of it ever suspends, because its parts block until they are done
(`at_once`). In a simulated world (`sublet_lab.world`) they suspend, and virtual time goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from sublet.errors import NoCheckpointLeft
from sublet.machine.wall import WALL, Wall
from sublet.train.link.agent_line import AgentLine, Superseded
from sublet.wire.exits import EXIT_LEFT
from sublet.wire.messages import Broke, Leading, Leave, Left, Meet, Regroup

__all__ = ["Broken", "Collective", "Entry", "Follower", "Following", "Keeper", "at_once"]

MEET_S = 86_400.0  # for the first member to open the store: it may evaluate. The controller says if it hangs


class Broken(Exception):
    """The group failed under a collective: somebody is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How we came into a group."""

    source: str = "fresh"  # fresh | peer | checkpoint
    batch: int = 0  # that the plan chose; 0 = the script's own
    micro_batch: int = 0  # most samples at a time, as more did not fit; 0 = as the script has it
    formed_s: float = 0.0
    state_s: float = 0.0


class Collective(Protocol):
    """The group of one order, as one member has it. What is awaited raises Broken if somebody goes away meanwhile."""

    rank: int
    world: int
    generation: int

    async def lead(self) -> tuple[str, int]:
        """Rank 0: open the store where all meet; its host and port."""

    async def find(self, meet: Meet, check: Callable[[], None]) -> None:
        """All others: reach that store, with a `check` now and then, which raises if it is no longer wanted."""

    async def form(self) -> None:
        """All are there: make the group."""

    async def numbers(self, mine: int) -> list[int]:
        """What each member says, by rank."""

    async def part(self) -> None:
        """Until every member has heard the last sum, or the group has broken: then nobody waits for anybody."""

    def hang_up(self) -> None:
        """End every connection, so that nobody waits in it; from any thread, and more than once."""

    def close(self) -> None:
        """Out of it, whatever state it is in."""


Group = TypeVar("Group", bound=Collective)
Group_contra = TypeVar("Group_contra", bound=Collective, contravariant=True)


class Keeper(Protocol[Group_contra]):
    """What training has come to in this worker: its state, and its checkpoints."""

    @property
    def steps(self) -> int:
        """Steps applied in all."""

    @property
    def ahead(self) -> int:
        """Larger, the more updates are applied; a step may be made of several."""

    @property
    def done(self) -> float:
        """Samples behind us."""

    def open(self, generation: int | None) -> None:
        """This worker writes checkpoints from now on, and none of a lower generation does."""

    async def load(self) -> bool:
        """Take the newest checkpoint, if there is any; NoCheckpointLeft if there is none that can be trusted."""

    async def share(self, group: Group_contra, holders: list[int]) -> None:
        """All holders have the state of the first of them, up to what may differ: now everybody has."""

    async def save(self) -> None:
        """A checkpoint of now, committed when this returns."""

    def close(self) -> None:
        """Wait for what is being written."""


Came = TypeVar("Came")


class Follower(Generic[Came]):
    """The way from order to order, whatever a worker holds: a class that has it says how it joins, saves and parts."""

    def __init__(self, line: AgentLine | None, wait_s: float) -> None:
        self.line, self._wait_s = line, wait_s

    @property
    def standing(self) -> Mapping[str, Any]:
        """What `Broke` says of us: our generation, steps, and a step that is pending."""
        raise NotImplementedError

    @property
    def done(self) -> float:
        """Samples behind us."""
        raise NotImplementedError

    def drop(self) -> None:
        """Out of the group."""
        raise NotImplementedError

    async def follow(self) -> Came:
        """Into the group of the newest order with a place for us; Lost if nobody gives any, SystemExit to leave."""
        line = self._its_line()
        while True:
            try:
                order = await line.order(self._wait_s)
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
        """After a break: out of this group, say so unless an order is there already, and into the next."""
        self.drop()
        self._tell_broken(why)
        return await self.follow()

    def say_broken(self, why: str) -> None:
        """Whatever has been ordered meanwhile."""
        line = self._its_line()
        line.say(Broke(worker_id=line.worker_id, why=why, **self.standing))

    async def _join(self, order: Regroup) -> Came | None:
        """None if we have only handed over."""
        raise NotImplementedError

    async def _save(self, order: Leave) -> None:
        """What we have, if that is asked of us."""
        raise NotImplementedError

    async def _part(self) -> None:
        """Until every member has heard the last sum."""
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
        keeper: Keeper[Group],
        alone: Group,
        new: Callable[[Regroup], Group],
        *,
        wait_s: float,
        wall: Wall = WALL,
    ) -> None:
        super().__init__(line, wait_s)
        self.group = alone
        self._keeper, self._new, self._wall = keeper, new, wall
        self._carries = False  # whether we have a state that others may need

    @property
    def standing(self) -> Mapping[str, Any]:
        """As `Follower` says."""
        return {"generation": self.group.generation, "step": self._keeper.steps}

    @property
    def done(self) -> float:
        """As `Follower` says."""
        return self._keeper.done

    async def agree(self, *, batch: int, formed_s: float, generation: int | None) -> Entry:
        """Everybody has the state of the member with the most steps, or of the newest checkpoint, or of rank 0."""
        started_s = self._wall.monotonic()
        group, keeper = self.group, self._keeper
        steps = await group.numbers(keeper.ahead if self._carries else -1)
        source = "peer"
        if max(steps) < 0:
            loaded = False
            if group.rank == 0:
                keeper.open(generation)
                loaded = await keeper.load()
            source = "checkpoint" if await self._of_first(int(loaded)) else "fresh"
            steps = [0] + [-1] * (group.world - 1)
        elif group.rank == 0:
            keeper.open(generation)
        await keeper.share(group, [member for member in range(group.world) if steps[member] == max(steps)])
        self._carries = True
        batch = await self._of_first(batch)
        return Entry(source=source, batch=batch, formed_s=formed_s, state_s=self._wall.monotonic() - started_s)

    def drop(self) -> None:
        """Out of the group."""
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
        keeper = self._keeper
        if order.save and self._carries and (self.group.rank == 0 or order.broken):
            keeper.open(order.generation)
            await keeper.save()
        keeper.close()

    async def _part(self) -> None:
        if self.group.world > 1:
            await self.group.part()

    async def _of_first(self, number: int) -> int:
        return (await self.group.numbers(number))[0]


Answer = TypeVar("Answer")


def at_once(work: Coroutine[Any, Any, Answer]) -> Answer:
    """The outcome of what never suspends, because all that it waits for blocks."""
    try:
        work.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    work.close()
    raise RuntimeError("something suspended where nothing else could go on")
