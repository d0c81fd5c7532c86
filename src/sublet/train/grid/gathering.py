"""How a member of a grid follows orders: into the mesh of the newest one, with the state that its seat needs.

    Regroup  ->  all of the old grid and the new one form a mesh  ->  meet: roll forward, move  ->  Joined
       ^              |  a member is lost, or a newer order comes: give up and follow the newest
       `--------------'  a member that does not stay hands over, says Left, and waits

Nothing is dropped before all have what they want (`member`), so it is safe to give up at any point.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sublet.machine.wall import WALL
from sublet.train.grid.gloo import GlooMesh, Lines, Sharing
from sublet.train.grid.meeting import Met, PartLost
from sublet.train.grid.member import Member
from sublet.train.grid.stages import Seat, parts_of
from sublet.train.link.agent_line import AgentLine, LineLost
from sublet.train.link.following import MEET_S, Follower, at_once, lost, order_wait_s
from sublet.wire.messages import Leading, Leave, Regroup

LONGEST = 2000  # characters of an error: the last of them say most


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The outcome of a meeting, and its times."""

    order: Regroup
    mesh: GlooMesh
    seat: Seat
    met: Met
    kind: str  # of the change: within | between | depth | restored; "" for the first
    met_s: float
    state_s: float
    formed_s: float


class Gathering(Follower[Gathered]):
    """One worker, whose orders come over `line`; `samples` counts the samples done."""

    def __init__(
        self, line: AgentLine, member: Member, *, samples: Callable[[], float], wait_s: float | None = None
    ) -> None:
        super().__init__(line, order_wait_s() if wait_s is None else wait_s)
        self.member, self._samples = member, samples
        self.mesh: GlooMesh | None = None
        self.generation = 0
        self._lines: Lines | None = None
        self._seat: Seat | None = None

    @property
    def standing(self) -> Mapping[str, Any]:
        member = self.member
        return {"generation": self.generation, "step": max(member.applied, 0), "pending": member.pending}

    @property
    def done(self) -> float:
        return self._samples()

    async def _part(self) -> None:
        if self.mesh is not None and self._seat is not None:
            self.mesh.part(self._seat.everyone())

    def fail(self, error: BaseException) -> None:
        """The script ends by an error of its own: say so before the others see closed connections."""
        self.say_broken("".join(traceback.format_exception_only(error)).strip()[-LONGEST:])
        self.drop()

    def drop(self) -> None:
        if self._lines is not None:
            self._lines.close()
        self._lines = self.mesh = None
        self._its_line().release()

    async def _join(self, order: Regroup) -> Gathered | None:
        line, self.generation, began_s = self._its_line(), order.generation, WALL.monotonic()
        self._lines = lines = Lines(sharing=Sharing(self.member.holdings.device))
        with line.holds(lines.hang_up):
            self.mesh = mesh = await self._meeting(lines, order)
            met_s = WALL.monotonic()
            seat = self._seat_of(order) if order.stays else None
            sums, neighbours = ([], []) if seat is None else (self.member.sums_of(seat), seat.neighbours())
            forming = lines.begin(mesh, sums, neighbours)
            met = self.member.meet(mesh, seat, generation=order.generation)
            state_s = WALL.monotonic()
            lines.until(forming)
            lines.seal()
        formed_s = WALL.monotonic()
        before, self._seat = self._seat, seat
        if seat is None:
            self.drop()
            self._say_left(order, met.gave_bytes)
            return None
        return Gathered(
            order=order,
            mesh=mesh,
            seat=seat,
            met=met,
            kind=_kind(before, seat, met),
            met_s=met_s - began_s,
            state_s=state_s - met_s,
            formed_s=formed_s - state_s,
        )

    async def _meeting(self, lines: Lines, order: Regroup | Leave) -> GlooMesh:
        """The mesh of all members that the order names."""
        line = self._its_line()
        if order.meets > 1 and order.meeting == 0:
            host, port = lines.open_store()
            line.say(Leading(worker_id=line.worker_id, generation=order.generation, host=host, port=port))
        elif order.meets > 1:
            meet = await line.meeting(order.generation, MEET_S)
            lines.find_store(meet.host, meet.port, line.check)
        self.member.point("forming")
        return lines.mesh("all", order.meeting, order.meets)

    def _seat_of(self, order: Regroup) -> Seat:
        return Seat(
            copy=order.copy,
            part=order.part,
            copies=order.copies,
            parts=parts_of(len(self.member.staged.blocks), order.parts, order.ends),
            keeps=order.keeps,
            world=order.world,
        )

    async def _save(self, order: Leave) -> None:
        """With all that leave: save their state together, at one step. Broken, Superseded."""
        vault, self.generation = self.member.vault, order.generation
        if vault is None or not order.save or not order.meets:
            return
        self._lines = lines = Lines(sharing=Sharing(self.member.holdings.device))
        with self._its_line().holds(lines.hang_up):
            self.mesh = mesh = await self._meeting(lines, order)
            with suppress(PartLost):  # a part is lost: the last checkpoint counts
                self.member.meet(mesh, None, generation=order.generation, leaving=True)
                vault.save(mesh, range(mesh.world))
                mesh.part(range(mesh.world))
        self.drop()


def _kind(before: Seat | None, seat: Seat, met: Met) -> str:
    """The kind of change, as this worker sees it."""
    if met.lost:
        return "restored"
    if met.meeting.anew:
        return ""
    if before is not None and before.parts != seat.parts:
        return "depth"
    return "between" if met.moved_bytes or met.gave_bytes else "within"


def gathered(coming: Coroutine[Any, Any, Gathered]) -> Gathered:
    """The outcome; this process ends if no order comes, or a part of the model is lost."""
    try:
        return at_once(coming)
    except LineLost as error:
        lost(str(error))
    except PartLost:
        lost("a part of the model is lost with its workers")
