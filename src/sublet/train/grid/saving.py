"""Checkpoints of a grid: each unit is written by the first who holds it, and all of it committed once, by member 0.

    step s     member 0: one is due, and a folder is open; its token goes into the agreement of s
    applied    those who write copy their units, and write them behind the training
    later      each says in the agreements that it has written; where all have: digests to member 0, which commits

So what is committed is of one step, and no step waits for a disk. Where the grid changes meanwhile, it is given up and
begun again: the writers may be others. A node's own disk is seen by nobody else: there units go to member 0 first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from sublet.errors import CheckpointFailed
from sublet.machine.wall import WALL
from sublet.train.checkpoint.files import data_name
from sublet.train.checkpoint.joint import Joint, Share
from sublet.train.checkpoint.manifest import NamedFile
from sublet.train.checkpoint.saving import LAST_TRIES, Saver, find
from sublet.train.checkpoint.snapshot import HostCopy
from sublet.train.grid.holdings import Holdings
from sublet.train.grid.mesh import Mesh, spread
from sublet.train.grid.whole import Whole
from sublet.train.link.following import at_once
from sublet.train.link.link import ControllerLink
from sublet.train.numerics.seeds import own_dice
from sublet.train.state.state import Progress
from sublet.wire.saves import DISK, Saved, SaveFailed

__all__ = ["WORDS", "Restored", "Vault"]

WORDS = 3  # that are agreed on
TOKEN, WRITTEN, FAILED = range(WORDS)
THERE = -1.0  # in place of a token: this step is committed already
READS, GATHERS = 6 << 20, 7 << 20  # tags of messages, far from all others
DIGEST = struct.Struct(">4q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What one worker has got: its units as they lie in memory, and what is beside them."""

    step: int
    units: dict[int, torch.Tensor]
    beside: dict[str, Any]


class Vault:
    """Of one member; `point` is told where it is."""

    def __init__(
        self,
        saver: Saver,
        whole: Whole,
        holdings: Holdings,
        progress: Progress,
        link: ControllerLink,
        point: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.saver, self.whole = saver, whole
        self._holdings, self._progress, self._link, self._point = holdings, progress, link, point
        self._gathers = saver.tier == DISK
        self._share: Share | None = None
        self._generation: int | None = None
        self._is_open = False  # for this generation, at member 0
        self._holders: tuple[int, ...] = ()  # of each unit, who writes it
        self._joint: Joint | None = None  # at member 0, while not all have written
        self._files: Future[list[NamedFile]] | None = None  # of ours
        self._hosts: dict[int, HostCopy] = {}
        self._under_way: int | None = None  # step of what not all have written yet
        self._asked = False  # for one, and none has begun since
        self._begun_s = self._blocked_s = 0.0

    # ------------------------------------------------------------------------------------------ where grids change

    def enter(self, generation: int | None) -> None:
        """Another grid is to be formed: what is being written will not be counted there."""
        self._give_up(None)
        self._generation, self._is_open, self._holders = generation, False, ()

    def open(self, mesh: Mesh, holders: Sequence[int]) -> None:
        """In it: units are written by these, and committed by member 0, which fences off those before."""
        self._holders = tuple(holders)
        if mesh.rank == 0 and not self._is_open:
            self._is_open = True
            self.saver.opened(self._generation)

    def restore(self, mesh: Mesh, wanted: Sequence[AbstractSet[int]]) -> Restored | None:
        """The newest checkpoint: what each of the mesh wants, at all of them; None if there is none.

        Member 0 reads it, so that one says which can be trusted, and what lies on the disk of one node serves all.
        Nothing of what is held is touched: it may break at any point.
        """
        loaded = None
        if mesh.rank == 0:
            self.open(mesh, ())
            loaded = at_once(find(self.saver, self._link.line, self._generation))
        found = None if loaded is None else {"step": loaded.step, "beside": self.whole.beside(loaded.state)}
        head = spread(mesh, 0, {"found": found} if mesh.rank == 0 else None)["found"]
        if head is None:
            return None
        holdings, step, came = self._holdings, int(head["step"]), dict[int, torch.Tensor]()
        for unit in sorted({each for units in wanted for each in units}):
            takers = [rank for rank, units in enumerate(wanted) if unit in units]
            if mesh.rank in takers:
                came[unit] = holdings.expect(unit, stepped=step > 0)
            if loaded is not None:
                memory = torch.empty(holdings.size_bytes(unit, stepped=step > 0), dtype=torch.uint8)
                self.whole.fill(memory, unit, loaded.state, stepped=step > 0)
                for taker in takers:
                    if taker == mesh.rank:
                        came[unit].copy_(memory)
                    else:
                        mesh.send(memory, taker, READS + unit)
                mesh.settle()  # one at a time: the memory of one
            elif mesh.rank in takers:
                mesh.receive(came[unit], 0, READS + unit)
        mesh.sum(torch.zeros(1), range(mesh.world))
        return Restored(step=step, units=came, beside=head["beside"])

    def close(self) -> None:
        """Nothing is written any more when this returns."""
        self._give_up(None)
        self.saver.close()
        if self._share is not None:
            self._share.close()

    # ------------------------------------------------------------------------------------------ beside the steps

    def say(self, mesh: Mesh, step: int) -> list[float]:
        """In the agreement after which `step` steps are applied."""
        words, asked = [0.0] * WORDS, self._link.take_save_request()
        self._asked = mesh.rank == 0 and (self._asked or asked)
        # Not while all have yet to hear what became of the last one: by that word, its folder is closed.
        if mesh.rank == 0 and self._under_way is None and self.saver.is_due(WALL.monotonic(), asked=self._asked):
            self._asked, self._joint = False, self.saver.open_joint(step)
            words[TOKEN] = 0.0 if self._joint is None else float(int(self._joint.token, 16))
        if self._files is not None and self._files.done():
            words[WRITTEN if self._files.exception() is None else FAILED] = 1.0
        return words

    def hear(self, mesh: Mesh, among: Sequence[int], words: Sequence[float]) -> None:
        """What was agreed on; the step has been applied. Broken."""
        if self._under_way is not None and words[FAILED]:
            self._fail()
        elif self._under_way is not None and int(words[WRITTEN]) == len(set(self._writers)):
            self._point("written")
            self._count(mesh, among)
        if words[TOKEN]:
            self._begin(mesh, among, int(words[TOKEN]))

    def until_written(self) -> None:
        """Wait for what of ours is being written: for who wants to know when it is."""
        if self._files is not None:
            self._files.exception()
        elif self._joint is None:
            self.saver.settle()

    def save(self, mesh: Mesh, among: Sequence[int]) -> bool:
        """Now, by all of these, and wait until it is committed; whether it is. Broken."""
        self._give_up(None)
        if len(self._holders) < len(self._holdings.parameters):
            return False  # of some unit nobody has anything
        word = torch.zeros(1, dtype=torch.float64)
        step = self._progress.steps
        if mesh.rank == 0:
            self.saver.settle()
            if self.saver.has(step):
                word[0] = THERE
            else:
                self._joint = self.saver.open_joint(step)
                word[0] = 0.0 if self._joint is None else float(int(self._joint.token, 16))
        mesh.sum(word, among)
        if float(word) <= 0.0:
            return float(word) == THERE
        self._begin(mesh, among, int(word))
        words = torch.zeros(WORDS, dtype=torch.float64)
        if self._files is not None:
            words[WRITTEN if self._files.exception() is None else FAILED] = 1.0  # waits
        mesh.sum(words, among)
        if words[FAILED]:
            self._fail()
        else:
            self._point("written")
            self._count(mesh, among)
        there = torch.zeros(1)
        if mesh.rank == 0:
            self.saver.settle()
            there[0] = float(self.saver.has(step))
        mesh.sum(there, among)
        return bool(there)

    def save_last(self, mesh: Mesh, among: Sequence[int]) -> None:
        """Of all that was done, as the plain session does: member 0 tries again for a while, and the others with it."""
        if mesh.rank == 0:
            self.saver.insist(lambda: self._try(mesh, among), self._progress)
            return
        for _ in range(LAST_TRIES):
            if self.save(mesh, among):
                return

    # ------------------------------------------------------------------------------------------ one checkpoint

    @property
    def _writers(self) -> tuple[int, ...]:
        return tuple(0 for _ in self._holders) if self._gathers else self._holders

    def _try(self, mesh: Mesh, among: Sequence[int]) -> None:
        self.save(mesh, among)

    def _begin(self, mesh: Mesh, among: Sequence[int], token: int) -> None:
        """Copy what is ours to write, and have it written."""
        step, stepped = self._progress.steps, self._progress.steps > 0
        self._under_way, self._begun_s = step, WALL.monotonic()
        segments, counted, dice = self._copied(mesh), self._counted(mesh, among), own_dice()
        table = torch.zeros(mesh.world, len(dice), dtype=dice.dtype)
        table[mesh.rank] = dice
        mesh.sum(table, among)
        if self._joint is not None:
            joint = self._joint
            joint.begin(segments, self.whole.places(stepped=stepped))
            self._files = joint.own
            tree = {**self.whole.tree(counted, stepped=stepped), "dice": table}
            if not self.saver.begin(tree, self._progress, mesh.world, joint):
                joint.own.set_exception(
                    CheckpointFailed(self.saver.directory, "it cannot be written", hint="see above")
                )
        elif segments:
            self._share = self._share or Share(self.saver.store)
            name = f"{token:012x}"
            self._files = self._share.begin(step, name, self._generation or 0, segments)
        self._blocked_s = WALL.monotonic() - self._begun_s
        self._point("saving")

    def _copied(self, mesh: Mesh) -> dict[int, memoryview]:
        found: dict[int, memoryview] = {}
        for unit, holder in enumerate(self._holders):
            if mesh.rank == holder and self._writers[unit] == holder:
                host = self._hosts.setdefault(unit, HostCopy())
                [found[unit]] = host.take({"unit": self._holdings.sent(unit)}).segments
            elif mesh.rank == holder:
                mesh.send(self._holdings.sent(unit), 0, GATHERS + unit)
            elif mesh.rank == self._writers[unit]:
                size = self._holdings.size_bytes(unit, stepped=self._progress.steps > 0)
                memory = torch.empty(size, dtype=torch.uint8)
                mesh.receive(memory, holder, GATHERS + unit)
                found[unit] = memory.numpy().data
        mesh.settle()
        return found

    def _counted(self, mesh: Mesh, among: Sequence[int]) -> list[torch.Tensor]:
        """Of each unit what the optimizer has counted, at all: who commits may hold none of it."""
        stepped, found, end = self._progress.steps > 0, list[torch.Tensor](), 0
        places = [self._holdings.layout(unit, stepped=stepped).counted for unit in range(len(self._holders))]
        said = torch.zeros(sum(each.shape.numel() for each in places), dtype=torch.float64)
        for unit, (place, holder) in enumerate(zip(places, self._holders, strict=True)):
            start, end = end, end + place.shape.numel()
            found.append(said[start:end].view(place.shape))
            if holder == mesh.rank:
                found[unit].copy_(self._holdings.counted(unit))
        if end:
            mesh.sum(said, among)
        return found

    def _count(self, mesh: Mesh, among: Sequence[int]) -> None:
        """All have written: what, to member 0, which commits it."""
        table = torch.zeros(len(self._holders), 1 + 4, dtype=torch.int64)
        files = [] if self._files is None else self._files.result()
        numbers = {data_name(unit): unit for unit in range(len(self._holders))}
        for file in files:
            row = table[numbers[file.name]]
            row[0], row[1:] = file.size, torch.tensor(DIGEST.unpack(bytes.fromhex(file.sha256)))
        mesh.sum(table, among)
        if self._joint is not None:
            rows = enumerate(table.tolist())
            self._joint.count(
                [NamedFile(name=data_name(unit), size=row[0], sha256=DIGEST.pack(*row[1:]).hex()) for unit, row in rows]
            )
        elif files:
            self._tell_written(mesh, files)
        self._joint = self._files = self._under_way = None

    def _tell_written(self, mesh: Mesh, files: Sequence[NamedFile]) -> None:
        self._link.say(
            Saved(
                worker_id=self._link.worker_id,
                step=self._under_way or 0,
                done=float(self._progress.done),
                seconds=WALL.monotonic() - self._begun_s,
                blocked_s=self._blocked_s,
                size_bytes=sum(file.size for file in files),
                tier=self.saver.tier,
                part=mesh.rank,
            )
        )

    def _fail(self) -> None:
        """One could not write, and says so; member 0 says of itself what it came to.

        Whose folder is gone has nothing to say: member 0 has closed it, and says why.
        """
        error = None if self._files is None or not self._files.done() else self._files.exception()
        if error is not None and self._joint is None and not isinstance(error, FileNotFoundError):
            self._link.say(SaveFailed(worker_id=self._link.worker_id, step=self._under_way or 0, why=str(error)))
        hint = "see what the worker that has it says; the next save tries again"
        self._give_up(CheckpointFailed(self.saver.directory, "a part of it was not written", hint=hint))

    def _give_up(self, error: CheckpointFailed | None) -> None:
        if self._joint is not None:
            self._joint.abandon(error)
        if self._files is not None and not self._files.done():
            self._hosts = {}  # what is being written is left its memory
        self._joint = self._files = self._under_way = None
