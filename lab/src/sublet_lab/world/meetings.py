"""The meeting places of the workers of one world: torch, its store and its collectives in a real one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sublet.train.link.following import Broken
from sublet.wire.messages import FromWorkerMessage, Meet, Regroup
from sublet_lab.world.awaiting import until
from sublet_lab.world.heap import World
from sublet_lab.world.network import Network
from sublet_lab.world.shelf import SharedDisk
from sublet_lab.world.truth import JobTruth, Truth

COLLECTIVE_S = 0.02  # of one, mean
NOTICE_S = 0.5  # at most, until a member notices that another has hung up
LOOK_AGAIN_S = 1.0  # while packets do not pass, or a member hangs
SUM_S = 0.001  # of the gradients, per step
REPORT_S = 1.0  # between two reports of a group: many steps at one go
PORT = 1
END_S = 0.2  # of a process that is through
TORN = 0.5  # chance of each thing that may be half done in a step when a grid breaks


@dataclass(slots=True)
class Slow:
    """A machine that takes so many `times` as long for its part of a step; the first one of them tells `struck`."""

    times: float
    until_s: float
    struck: Callable[[], None]
    told: bool = False


class Meetings:
    """All tables of one world, by job and generation, and what its checkpoints are stored on."""

    def __init__(self, world: World, network: Network, truth: Truth) -> None:
        self.world, self.network, self.truth = world, network, truth
        self.storage = SharedDisk(world)
        self._tables: dict[tuple[str, int], Table] = {}
        self.slow: dict[str, Slow] = {}  # by host
        self.narrow: dict[str, tuple[float, Callable[[], None]]] = {}  # job -> no two meet until then; the listener

    def table(self, job_id: str, order: Regroup) -> Table:
        """The table of this generation."""
        key = (job_id, order.generation)
        if key not in self._tables:
            self._tables[key] = Table(self, job_id, order.generation, order.world)
        return self._tables[key]

    def slowness(self, host: str) -> float:
        """The slowness of its part of a step."""
        slow = self.slow.get(host)
        if slow is None or self.world.now_s >= slow.until_s:
            return 1.0
        if not slow.told:
            slow.told = True
            slow.struck()
        return slow.times

    def keeps_apart(self, job_id: str) -> bool:
        """Whether no group of it forms now; the caller is told, once."""
        until_s, struck = self.narrow.get(job_id, (0.0, _nobody))
        if self.world.now_s >= until_s:
            return False
        self.narrow[job_id] = (until_s, _nobody)
        struck()
        return True


def _nobody() -> None:
    pass


class Trainee(Protocol):
    """A worker at a table."""

    id: str
    host: str
    dead: bool
    hung: bool

    @property
    def steps(self) -> int:
        """Made so far."""

    @property
    def ordered(self) -> bool:
        """There is an order that all should know of."""

    def poke(self) -> None:
        """Look whether what it waits for has come."""

    def broke(self, why: str) -> None:
        """Its group is gone under it while it trains."""

    def step_made(self, step: int, step_s: float, *, comm_s: float, ordered: bool) -> None:
        """All have come that far together, after it has waited for `comm_s`; `ordered` = one of them has an order."""

    def end_well(self) -> None:
        """All is done."""

    def say(self, message: FromWorkerMessage) -> None:
        """To its agent."""


class Table:
    """The group of one generation: its rounds of numbers, and its steps once all members train."""

    def __init__(self, meetings: Meetings, job_id: str, generation: int, size: int) -> None:
        self._meetings, self.world, self.job_id, self.generation = meetings, meetings.world, job_id, generation
        self._size = self.trains = size  # of a grid fewer train than meet
        self.torn: dict[int, tuple[int, bool]] = {}  # by rank: steps more, and whether one is pending, at the break
        self.over, self.why = False, ""
        self._begun = False  # all members make steps
        self.heard: dict[int, list[int]] = {}  # what was said in rounds that are over, by rank
        self._open = False
        self._members: dict[int, Trainee] = {}
        self._training: set[int] = set()
        self._rounds: dict[int, dict[int, int]] = {}

    @property
    def truth(self) -> JobTruth:
        """The truth of its job."""
        return self._meetings.truth.jobs[self.job_id]

    # ------------------------------------------------------------------ as a group forms and agrees

    def sit_down(self, rank: int, member: Trainee) -> None:
        """A member comes."""
        self._members[rank] = member

    def open(self) -> None:
        """Its store is there."""
        self._open = True
        self._poke_all()

    def reaches(self, host: str) -> bool:
        """Whether its store answers."""
        leader = self._members.get(0)
        return self._open and not self.over and leader is not None and self._passes(leader.host, host)

    def say(self, turn: int, rank: int, number: int) -> None:
        """A member's part of a round."""
        said = self._rounds.setdefault(turn, {})
        said[rank] = number
        if len(said) == self._size:
            self.world.after(self._delay_s(), self._end_round, turn)

    def hang_up(self, why: str) -> None:
        """Each waiter here is told in a moment that it is over."""
        if self.over:
            return
        if self._training and self._begun and self.truth.blocks:
            self._tear()
        self.over, self.why = True, why
        for rank in sorted(self._members):
            delay_s = 0.001 + self.world.stream("workers").random() * NOTICE_S
            self.world.after(delay_s, self._tell_over, rank)

    def _tear(self) -> None:
        """Members of a grid are amid a step: its sums are with none, with some, or with all, and some applied it."""
        rng, ranks = self.world.stream("torn steps"), sorted(self._training)
        agreed, left = rng.random() < TORN, self.truth.steps - self._members[ranks[0]].steps
        for rank in ranks:
            applied = agreed and left > 0 and rng.random() < TORN
            self.torn[rank] = (1, False) if applied else (0, left > 0 and (agreed or rng.random() < TORN))

    def depart(self, rank: int) -> None:
        """A member that has given what it had: it is not missed."""
        self._members.pop(rank, None)

    def others(self, parts: int) -> Iterator[tuple[int, Trainee]]:
        """The members of the first copy, by part, without the first."""
        return ((rank, self._members[rank]) for rank in range(1, parts) if rank in self._members)

    def leave(self, rank: int) -> None:
        """A member's connections end."""
        self._members.pop(rank, None)
        self._training.discard(rank)
        self.hang_up(f"rank {rank} has left")

    def _end_round(self, turn: int) -> None:
        if self.over:
            return
        if self._stalled() or (turn == 0 and self._meetings.keeps_apart(self.job_id)):
            self._again(self._end_round, turn)
            return
        said = self._rounds.pop(turn)
        self.heard[turn] = [said[rank] for rank in range(self._size)]
        self._poke_all()

    def _tell_over(self, rank: int) -> None:
        member = self._members.get(rank)
        if member is not None and rank in self._training:
            self._training.discard(rank)
            member.broke(self.why)
        elif member is not None:
            member.poke()

    def _poke_all(self) -> None:
        for rank in sorted(self._members):
            self.world.after(self._delay_s(), self._members[rank].poke)

    # ------------------------------------------------------------------ as it trains

    def train(self, rank: int) -> None:
        """A member begins with its first step, which is made when all have begun."""
        self._training.add(rank)
        if self.over:  # it broke while this one came in
            self.world.after(self._delay_s(), self._tell_over, rank)
        elif len(self._training) == self.trains:
            self._begun = True
            self.world.after(REPORT_S, self._advance)

    def finish(self) -> None:
        """The last word is said: all end."""
        members, self._training, self.over = list(self._members.values()), set(), True
        for member in members:
            self.world.after(END_S + self._delay_s(), member.end_well)

    def _advance(self) -> None:
        if self.over:
            return
        if self._stalled():
            self._again(self._advance)
            return
        truth, members = self.truth, [self._members[rank] for rank in range(self.trains)]
        own_s = [truth.step_s / self.trains * self._meetings.slowness(member.host) for member in members]
        step_s = max(own_s) + SUM_S
        step = members[0].steps
        if step < truth.steps:
            self._meetings.truth.stepped(self.job_id, self.generation)
            step = min(truth.steps, step + max(1, round(REPORT_S / step_s)))
            truth.top, truth.reached = max(truth.top, step), step
        ordered = any(member.ordered for member in members)
        if ordered:
            self._training.clear()
        elif step < truth.steps:
            self.world.after(REPORT_S, self._advance)
        for member, part_s in zip(members, own_s, strict=True):
            member.step_made(step, step_s, comm_s=step_s - part_s, ordered=ordered)

    # ------------------------------------------------------------------ the network under it

    def _again(self, call: Callable[..., None], *args: Any) -> None:
        """Nothing passes now. If all are gone, none waits."""
        if any(not member.dead for member in self._members.values()):
            self.world.after(LOOK_AGAIN_S, call, *args)

    def _stalled(self) -> bool:
        """A member hangs or is gone without a word, or packets between two of them do not pass: collectives wait."""
        if any(member.dead or member.hung for member in self._members.values()):
            return True
        hosts = sorted({member.host for member in self._members.values()})
        return any(not self._passes(here, there) for here in hosts for there in hosts if here < there)

    def _passes(self, here: str, there: str) -> bool:
        return self._meetings.network.passes(here, there) and self._meetings.network.passes(there, here)

    def _delay_s(self) -> float:
        return self.world.stream("workers").expovariate(1 / COLLECTIVE_S)


class TableGroup:
    """A table as one member has it: a Collective of `sublet.train.link.following`. Without one it is a group of one."""

    def __init__(self, member: Trainee, table: Table | None = None, order: Regroup | None = None) -> None:
        self._member, self._table, self._turn = member, table, 0
        self.rank, self.world, self.generation = (order.rank, order.world, order.generation) if order else (0, 1, 0)
        if table is not None:
            table.sit_down(self.rank, member)

    @property
    def stands(self) -> bool:
        """Neither left nor broken."""
        return self._table is not None and not self._table.over

    @property
    def table(self) -> Table:
        """While it is not closed."""
        assert self._table is not None
        return self._table

    async def lead(self) -> tuple[str, int]:
        """Open the store."""
        self.table.open()
        return self._member.host, PORT

    async def find(self, meet: Meet, check: Callable[[], None]) -> None:
        """Knock until there is an answer, or none is wanted there any more."""
        del meet  # there is one table of a generation
        table = self.table

        def answers() -> bool:
            check()
            if table.reaches(self._member.host):
                return True
            table.world.after(LOOK_AGAIN_S, self._member.poke)
            return False

        await until(answers)

    async def form(self) -> None:
        """All are there."""
        await self.numbers(0)

    async def numbers(self, mine: int) -> list[int]:
        """The number of each member, by rank."""
        if self.world == 1:
            return [mine]
        table, turn = self.table, self._turn
        self._turn += 1
        table.say(turn, self.rank, mine)
        await until(lambda: turn in table.heard or table.over)
        if turn not in table.heard:
            raise Broken(table.why)
        return table.heard[turn]

    async def part(self) -> None:
        """No member hangs up before the last has heard the last sum."""
        with contextlib.suppress(Broken):
            await self.numbers(0)

    def hang_up(self) -> None:
        """For everybody at the table."""
        if self._table is not None:
            self._table.hang_up(f"{self._member.id} hangs up")

    def depart(self) -> None:
        """Out of it, and it goes on."""
        table, self._table = self._table, None
        if table is not None:
            table.depart(self.rank)

    def close(self) -> None:
        """Out of it."""
        table, self._table = self._table, None
        if table is not None:
            table.leave(self.rank)
