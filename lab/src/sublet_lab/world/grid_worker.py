"""Members of a grid in the world: what they hold, have applied and have pending are numbers, and they meet by these.

The logic of a meeting is the shipped code's (`sublet.train.grid.meeting`), as are the line, the orders and the commit
of a checkpoint. A step under way when a grid breaks is torn as a real one may be: none has its sums, some have, or some
have applied it and all others have its sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.domain.seats import borders
from sublet.train.grid.meeting import NOTHING, Standing, meet
from sublet.train.link.agent_line import AgentLine, LineLost
from sublet.train.link.following import MEET_S, ORDER_S, Broken, Entry, Follower
from sublet.wire.files import ANCHOR
from sublet.wire.messages import Leading, Leave, Ready, Regroup, Saved
from sublet_lab.world.meetings import TableGroup
from sublet_lab.world.truth import JobTruth
from sublet_lab.world.worker import SHARE_S, SdkWorker

BITS = 20  # more than any job of the world has blocks or thousands of steps
PARTS_AT = 0.8  # of the time that a checkpoint takes, all parts but the first have written theirs


class GridWorker(SdkWorker):
    """A process of a job whose model is cut."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.follows = GridFollowing(self)
        self._following = self.follows  # type: ignore[assignment]  # it is asked for the same
        self._greeting = Ready(worker_id=self.id, version=2, blocks=(1000,) * self._truth.blocks)
        self._saves_in: TableGroup | None = None
        self._tier = named["order"].env.get("SUBLET_CHECKPOINT_TIER", ANCHOR)

    @property
    def truth(self) -> JobTruth:
        """The truth of its job."""
        return self._truth

    async def sleep(self, seconds: float) -> None:
        """So much of the world's time."""
        await self._task.sleep(seconds)

    def seated(self, generation: int, source: str) -> None:
        """In a grid: all of it have applied the same steps, and none is made twice but after a restore."""
        truth = self._truth
        if truth.seated.setdefault(generation, self.steps) != self.steps:
            self.complain("G", f"generation {generation}: {self.steps} steps here, {truth.seated[generation]} there")
        if source != "peer":
            truth.reached = self.steps
        elif self.steps < truth.reached:
            self.complain("G", f"generation {generation}: goes on from step {self.steps}, {truth.reached} were made")
        truth.held.setdefault(generation, set()).update(self.follows.units)

    def step_made(self, step: int, step_s: float, *, comm_s: float, ordered: bool) -> None:
        """By all of them: every part has a holder."""
        held = self._truth.held.get(self.follows.group.generation, set())
        if held != set(range(self._truth.blocks)):
            self.complain("G", f"step {step} is made by the holders {sorted(held)} of {self._truth.blocks}")
        super().step_made(step, step_s, comm_s=comm_s, ordered=ordered)

    def broke(self, why: str) -> None:
        """Its grid is gone under it, amid a step."""
        table = self.follows.group.table
        self.follows.tear(table.torn.get(self.follows.group.rank, (0, False)))
        super().broke(why)

    def _save_if_due(self, step: int) -> None:
        before = self._saving
        super()._save_if_due(step)
        if self._saving is not None and self._saving != before:
            self._saves_in = self.follows.group
            self._world.after(PARTS_AT * self._truth.write_s, self._tell_parts, self._saving, self._saves_in)

    def _tell_parts(self, step: int, group: TableGroup) -> None:
        """Report parts that are worth nothing until they are committed."""
        if self.dead or not group.stands or self.follows.group is not group:
            return
        for part, member in group.table.others(self.follows.parts):
            member.say(
                Saved(
                    worker_id=member.id,
                    step=step,
                    done=float(step),
                    seconds=0.1,
                    blocked_s=0.0,
                    size_bytes=1,
                    tier=self._tier,
                    part=part,
                )
            )

    def _commit(self, step: int) -> None:
        """Only if all its writers are still at it; else it is begun again."""
        group = self._saves_in
        if self._saving == step and (group is None or not group.stands or self.follows.group is not group):
            self._saving = None
            self._line.save_now = True
            return
        super()._commit(step)

    def settle(self) -> None:
        """Give up checkpoints that others were to write with us."""
        self._saving = None


class GridFollowing(Follower[Entry]):
    """As `sublet.train.grid.gathering`, in the world's time."""

    line: AgentLine

    def __init__(self, worker: GridWorker) -> None:
        super().__init__(worker._line, ORDER_S)  # noqa: SLF001 - a part of it
        self._worker, self._keeper = worker, worker.keeper
        self.group = TableGroup(worker)
        self.units: frozenset[int] = frozenset()
        self.pending, self.parts = NOTHING, 1
        self._carries = False

    @property
    def applied(self) -> int:
        """Steps; NOTHING if it has no state."""
        return self._keeper.steps if self._carries else NOTHING

    def tear(self, torn: tuple[int, bool]) -> None:
        """The step under way, as the break left it here: applied by some, or pending."""
        more, pending = torn
        self._keeper.steps += more
        self.pending = self._keeper.steps if pending else NOTHING

    @property
    def standing(self) -> Mapping[str, Any]:
        """As `Follower` says."""
        return {"generation": self.group.generation, "step": self._keeper.steps, "pending": self.pending}

    @property
    def done(self) -> float:
        """As `Follower` says."""
        return self._keeper.done

    async def _part(self) -> None:
        await self.group.part()

    def _hang_up(self) -> None:
        self.group.hang_up()

    def drop(self) -> None:
        """Out of it."""
        self.group.close()
        self.line.release()

    async def _sit_down(self, order: Regroup | Leave, trains: int) -> TableGroup:
        facts = {"worker_id": order.worker_id, "generation": order.generation}
        seat = Regroup(rank=order.meeting, world=order.meets, **facts)  # type: ignore[arg-type] # of the members that meet
        worker = self._worker
        table = worker.meetings.table(worker.job_id, seat)
        table.trains = trains
        self.group = group = TableGroup(worker, table, seat)
        if order.meets > 1 and order.meeting == 0:
            host, port = await group.lead()
            self.line.say(Leading(host=host, port=port, **facts))  # type: ignore[arg-type]  # as above
        elif order.meets > 1:
            await group.find(await self.line.meeting(order.generation, MEET_S), self.line.check)
        await group.form()
        return group

    async def _join(self, order: Regroup) -> Entry | None:
        assert order.copies, "a job that is cut has a grid"
        ends, blocks = borders(self._worker.truth.blocks, order.parts, order.ends), self._worker.truth.blocks
        mine = {order.part, *order.keeps} if order.stays else set()
        want = frozenset(unit for unit in range(blocks) if _part_of(unit, ends) in mine)
        with self.line.holds(self._hang_up):
            group = await self._sit_down(order, order.world)
            source = await self._meet(group, want, order.generation)
            await group.numbers(0)  # with those that leave
        self.parts = order.parts
        if not order.stays:
            group.depart()
            self.line.release()
            self._say_left(order)
            return None
        if group.rank == 0:
            self._keeper.open(order.generation)
        self._worker.seated(order.generation, source)
        return Entry(source=source, micro_batch=order.micro_batch)

    async def _meet(self, group: TableGroup, want: frozenset[int], generation: int, *, leaving: bool = False) -> str:
        """The source of the state. LineLost."""
        units = range(self._worker.truth.blocks)
        said = ((self.applied + 1) << (3 * BITS)) | ((self.pending + 1) << (2 * BITS))
        heard = await group.numbers(said | (_mask(self.units) << BITS) | _mask(want))
        rows = [[(each >> (at * BITS)) & ((1 << BITS) - 1) for at in (3, 2, 1, 0)] for each in heard]
        standings = [Standing(applied=a - 1, pending=p - 1, units=_set(h)) for a, p, h, _ in rows]
        met = meet(standings, [_set(row[3]) for row in rows], dict.fromkeys(units, 1))
        if leaving and (met is None or met.anew):
            raise LineLost("a part has no holder")
        if met is None or met.anew:
            step = await self._load(group, generation)
            if step < 0 and met is None:
                raise LineLost("a part has no holder, and nothing was saved")
            self._take(max(step, 0), want)
            return "checkpoint" if step >= 0 else "fresh"
        if group.rank in met.roll:
            self._keeper.steps, self.pending = self._keeper.steps + 1, NOTHING
        await self._worker.sleep(SHARE_S)
        if not group.stands and group.world > 1:
            raise Broken("while state moved")
        kept = want
        try:
            await group.numbers(0)
        except Broken:
            kept = want | (self.units if self.applied == met.applied else frozenset())
            raise
        finally:
            self._take(met.applied, kept)
        return "peer"

    async def _load(self, group: TableGroup, generation: int) -> int:
        found = -1
        if group.rank == 0:
            self._keeper.open(generation)
            steps = self._keeper.steps
            found = self._keeper.steps if await self._keeper.load() else -1
            self._keeper.steps = steps  # until all have heard
        return (await group.numbers(found))[0]

    def _take(self, step: int, units: frozenset[int]) -> None:
        self.units, self.pending, self._carries = units, NOTHING, bool(units)
        self._keeper.steps = step

    async def _save(self, order: Leave) -> None:
        if order.save and order.meets:
            await self._save_with_all(order)
        self._keeper.close()

    async def _save_with_all(self, order: Leave) -> None:
        with self.line.holds(self._hang_up):
            group = await self._sit_down(order, order.meets)
            try:
                await self._meet(group, self.units, order.generation, leaving=True)
            except LineLost:
                return
            masks = await group.numbers(_mask(self.units))
            if frozenset().union(*map(_set, masks)) == frozenset(range(self._worker.truth.blocks)):
                if group.rank == 0:
                    self._keeper.open(order.generation)
                    await self._keeper.save()
                await group.numbers(0)
                await group.part()
        self.drop()


def _part_of(unit: int, ends: tuple[int, ...]) -> int:
    return next(part for part in range(len(ends) - 1) if ends[part] <= unit < ends[part + 1])


def _mask(units: frozenset[int]) -> int:
    return sum(1 << unit for unit in units)


def _set(mask: int) -> frozenset[int]:
    return frozenset(unit for unit in range(BITS) if mask >> unit & 1)
