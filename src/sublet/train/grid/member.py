"""A member of a grid: it meets, takes what its seat needs, and makes steps that are applied by all or by none.

    step     passes over its atoms (1F1B); sums over the copies of its part, and hands the sum to who keeps the part:
             the step is *pending*; agreement: one small sum over all of norms, loss and orders; then all apply
    meet     one table of who has what; roll forward, move, begin

Norms are of units, in double precision, added in the order of the units, so that what is clipped does not depend on the
cut. Weights that the first and the last part share (tied) are the one exception: each adds up its atoms first, so that
they agree within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any

import torch

from sublet.machine.wall import WALL
from sublet.train.following import Broken
from sublet.train.grid import alike
from sublet.train.grid.atoms import Atom, atoms, share
from sublet.train.grid.attendance import Attendance, attend, heard
from sublet.train.grid.cutting import Cut, holders
from sublet.train.grid.dice import Dice
from sublet.train.grid.guard import Guard
from sublet.train.grid.holdings import Holdings
from sublet.train.grid.keeping import Keeping
from sublet.train.grid.losses import Losses
from sublet.train.grid.meeting import NOTHING, Meeting, Standing, meet
from sublet.train.grid.mesh import Mesh, spread
from sublet.train.grid.outcome import Beside, Lost, Met, Stepped
from sublet.train.grid.pipeline import Pipeline
from sublet.train.grid.remembering import Remembering, gathered
from sublet.train.grid.restoring import Restored, met_by_going_back, restore
from sublet.train.grid.saving import WORDS, Vault
from sublet.train.grid.seat import Seat
from sublet.train.grid.unkept import Unkept

__all__ = ["Beside", "Lost", "Member", "Met", "Stepped"]

LOSS, ORDERS, KEEPS, RATES, SAVES = 0, 1, 2, 3, 3 + alike.WORDS  # of what is agreed on, beside the norms
EXTRA = SAVES + WORDS
MOVES = 4 << 20  # tag of messages, far from those of a pipeline


class Member:
    """One worker. `point` is told where it is, for those who want to know, or to end it there."""

    def __init__(
        self,
        model: torch.nn.Module,
        cut: Cut,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        clip_norm: float | None = None,
        beside: Beside | None = None,
        guard: Guard | None = None,
        point: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.vault: Vault | None = None  # of checkpoints, if there are any
        self.first: Callable[[Mesh, Dice, str], str] = lambda *_: ""  # before anything is trained, by all: the proof
        self.model, self.cut, self.clip_norm, self._beside, self.point = model, cut, clip_norm, beside, point
        self._guard = guard or Guard(model, optimizer)
        self.holdings = Holdings(model, optimizer, cut.units, self._guard.frozen)
        self._pipeline = Pipeline(cut, seed, next(model.parameters()).device, point)
        self.applied, self.pending = NOTHING, NOTHING
        self.judged: list[float] = []  # what evaluations since the last step came to
        self.went_back = False  # all of us, to a checkpoint: those who have come to where it was taken are at one place
        self.closed = False  # no more of them before the next step: the grid has changed, and newcomers know of none
        self._agreed, self.losses = torch.zeros(len(cut.units) + EXTRA, dtype=torch.float64), Losses()  # of a step
        self._own, self._ran = tuple[int, ...](), (0, 0)  # units of our place; blocks that we run, from, and up to
        self._keeping, self._unkept, self.alike = Keeping(self.holdings), Unkept(), alike.Alike(optimizer)

    # ------------------------------------------------------------------------------------------ meetings

    @property
    def loss(self) -> float:
        """Of the last step that was applied, here or by those whose state we have."""
        return self.losses.total()

    def meet(self, mesh: Mesh, seat: Seat | None, *, generation: int | None = None, leaving: bool = False) -> Met:
        """With all of the mesh; the seat is that of the grid to come, None for one who only gives. Lost, or Broken.

        Those who are `leaving`, all of them, stay with what they have, for as long as it takes to save it.
        """
        units = len(self.cut.units)
        own = () if seat is None or not seat.trains else self._units_of(seat, (seat.part,))
        own = tuple(self.holdings.arenas) if leaving else own
        coming = self._ran if seat is None else seat.blocks
        if self.vault is not None:
            self.vault.enter(generation)
        kept = () if seat is None else tuple(each for each in self._units_of(seat, seat.keeps) if each not in own)
        self.point("meeting")
        standing = Standing(applied=self.applied, pending=self.pending, units=self.holdings.arenas.keys())
        here = attend(mesh, standing, len(self.judged), self._ran, coming, own, kept, units)
        standings, owned, keeps = here.standings, here.owned, here.keeps
        sizes = {unit: self.holdings.size_bytes(unit, stepped=here.top > 0) for unit in range(units)}
        have = keeps if here.anew else [a & b.units for a, b in zip(keeps, standings, strict=True)]  # the rest later
        met = meet(standings, [a | b for a, b in zip(owned, have, strict=True)], sizes)
        if met is None and leaving:
            raise Lost
        self.point("met")
        restored = None
        if self.vault is not None and not leaving and (met is None or met.anew):
            wanted = [a | b for a, b in zip(owned, keeps, strict=True)]
            prove = partial(self.first, mesh, self._pipeline.dice) if met is not None else _as_it_was
            restored = restore(mesh, self.vault.find, self.vault.whole, self.holdings, wanted, prove)
        if restored is not None:
            self._go_back(restored)
            have = keeps
        elif met is None:
            raise Lost
        else:
            self._settle(mesh, met, owned[mesh.rank] | have[mesh.rank], here)
            counts = zip(here.judged, standings, strict=True)
            same = [judged if each.applied == met.applied else 0 for judged, each in counts]
            self.judged = heard(mesh, same, self.judged)
        self.closed = restored is None or met is None  # but for those who all begin with a checkpoint: at one place
        self.went_back = restored is not None and met is None
        self._own, self._ran = own, coming
        self._unkept.begin()
        self._keeping.begin(owned, keeps, have)
        if seat is not None and seat.trains:
            self.cut.become(seat.parts[seat.part])
        elif seat is not None:
            self.cut.sit_out()
        if seat is not None:
            self.holdings.loosen(self._for_nobody_else(seat))
        self._open_vault(mesh, [a | b for a, b in zip(owned, have, strict=True)])
        if met is None or restored is not None:
            assert restored is not None  # noqa: S101 - otherwise it is Lost
            return met_by_going_back(restored, here.top, lost=met is None)
        came = sum(sizes[move.unit] for move in met.moves if move.taker == mesh.rank)
        gave = sum(sizes[move.unit] for move in met.moves if move.giver == mesh.rank)
        source = "fresh" if met.anew else "peer"
        return Met(meeting=met, moved_bytes=came, gave_bytes=gave, rolled=mesh.rank in met.roll, source=source)

    def _open_vault(self, mesh: Mesh, held: list[frozenset[int]]) -> None:
        """The first who holds a unit saves it."""
        if self.vault is not None:
            everything = range(len(self.cut.units))
            first = [next((each for each, has in enumerate(held) if unit in has), None) for unit in everything]
            self.vault.open(mesh, [each for each in first if each is not None], self._ran)

    def _go_back(self, restored: Restored) -> None:
        """To a checkpoint, and nothing of what was is left."""
        assert self.vault is not None  # noqa: S101 - it comes from there
        self._agreed, self.losses = torch.zeros_like(self._agreed), Losses(restored.beside["loss"])
        self.judged = []
        self.holdings.take(restored.units, restored.units.keys(), stepped=restored.step > 0)
        self.holdings.clear_gradients()
        self.vault.whole.take_buffers(restored.beside["buffers"])
        if self._beside is not None:
            self._beside.take(restored.beside)
        self.applied, self.pending = restored.step, NOTHING

    def _settle(self, mesh: Mesh, met: Meeting, wanted: frozenset[int], here: Attendance) -> None:
        """Nobody lets go of a unit before all have said that they have what they want."""
        if met.anew:
            self.first(mesh, self._pipeline.dice, "")
            self.holdings.make(wanted - {move.unit for move in met.moves if move.taker == mesh.rank})
            came = self._move(mesh, met)
            mesh.sum(torch.zeros(1), range(mesh.world))  # who is not in the grid to come leaves now
            self.holdings.take(came, wanted, stepped=False)
            self.applied = 0
            return
        behind = {
            each
            for each, standing in enumerate(here.standings)
            if standing.applied != met.applied and each not in met.roll
        }
        agreed, tree = self._hear_agreed(mesh, met, anybody_behind=bool(behind))
        values = self._hear_values(mesh, met, here, behind)
        if mesh.rank in met.roll:
            self._hear(agreed)
            self._apply()
        came = self._move(mesh, met)
        kept = wanted
        try:
            mesh.sum(torch.zeros(1), range(mesh.world))
            self.point("moved")
        except Broken:  # others may have let go of what we have just received, or not have received what we have
            kept = wanted | ({*self.holdings.arenas} if self.applied == met.applied else set())
            raise
        finally:
            if mesh.rank in behind:
                self._hear(agreed)
                if self._beside is not None:
                    self._beside.take({**tree, "values": values})
            elif values is not None and self._remembers is not None:
                self._remembers.lay(values, {*range(*here.runs[mesh.rank])} - {*range(*self._ran)})
            self.holdings.take(came, kept, stepped=met.applied > 0)
            self.holdings.clear_gradients()
            self.applied, self.pending = met.applied, NOTHING

    def _move(self, mesh: Mesh, met: Meeting) -> dict[int, torch.Tensor]:
        """What came, by unit. Rounds follow one another: who hands on what it took has it by then."""
        came: dict[int, torch.Tensor] = {}
        for _, moves in groupby(met.moves, key=lambda move: move.round):
            for move in moves:
                if move.giver == mesh.rank:
                    held = came[move.unit] if move.unit in came else self.holdings.sent(move.unit)
                    mesh.hand(held, move.taker, MOVES + move.unit)
                elif move.taker == mesh.rank:
                    came[move.unit] = self.holdings.expect(move.unit, stepped=met.applied > 0)
                    mesh.take(came[move.unit], move.giver, MOVES + move.unit)
                    self.point("moving")
            mesh.settle()
        return came

    def _hear_agreed(self, mesh: Mesh, met: Meeting, *, anybody_behind: bool) -> tuple[torch.Tensor, Any]:
        """What the last step came to, and what is beside it, from one who was there."""
        assert met.speaker is not None  # noqa: S101 - it is not anew
        said = torch.zeros_like(self._agreed)
        if mesh.rank == met.speaker:
            said.copy_(self._agreed)
            said[len(self.cut.units) + LOSS] = self.loss
        mesh.sum(said, range(mesh.world))
        tree = None
        if self._beside is not None and anybody_behind:
            tree = spread(mesh, met.speaker, self._beside.tree() if mesh.rank == met.speaker else None)
        return said, tree

    @property
    def _remembers(self) -> Remembering | None:
        return None if self._beside is None else self._beside.remembers

    def _hear_values(self, mesh: Mesh, met: Meeting, here: Attendance, behind: set[int]) -> dict[str, Any] | None:
        """What modules remember, at those who run them, if somebody is to run what it has not; None otherwise."""
        if self._remembers is None or not (behind or here.changes):
            return None
        there = [each for each in range(mesh.world) if each not in behind]
        return gathered(mesh, self._remembers, here.ran, there, met.roll)

    def _hear(self, agreed: torch.Tensor) -> None:
        self._agreed, self.losses = agreed, Losses(float(agreed[len(self.cut.units) + LOSS]))

    def _units_of(self, seat: Seat, parts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            number
            for number, unit in enumerate(self.cut.units)
            if any(part in parts for part in holders(unit, seat.parts))
        )

    def _for_nobody_else(self, seat: Seat) -> list[int]:
        """Units of which only we need the gradient."""
        if self.clip_norm is not None or seat.copies > 1:
            return []
        streamed = self._keeping.units
        return [
            unit for unit in self._own if unit not in streamed and len(holders(self.cut.units[unit], seat.parts)) == 1
        ]

    def sums_of(self, seat: Seat) -> list[tuple[int, ...]]:
        """Over whom this seat will add, in an order in which nobody waits for ever: for a mesh that forms ahead."""
        found: list[tuple[int, ...]] = []  # what all agree on is small: no group is needed for it
        if seat.trains:
            shared = {holders(self.cut.units[unit], seat.parts) for unit in self._units_of(seat, (seat.part,))}
            found += [seat.same_copy(among) for among in sorted(shared) if len(among) > 1]
            found += [seat.same_part()]
        return found

    # ------------------------------------------------------------------------------------------ steps

    def step(
        self,
        mesh: Mesh,
        seat: Seat,
        loss_of: Callable[[Atom], torch.Tensor],
        *,
        offset: int,
        size: int,
        micro_batch: int,
        orders: bool = False,
    ) -> Stepped:
        """Of `size` samples from `offset` on; `loss_of` loads an atom and returns the mean loss of it. Or Broken."""
        losses, units, alone = Losses(), len(self.cut.units), len(seat.everyone()) == 1
        fills_s = WALL.monotonic()
        if self._keeping.fill(mesh, self.applied):
            self.holdings.loosen(self._for_nobody_else(seat))
        fills_s = WALL.monotonic() - fills_s
        self.holdings.begin_step()
        if seat.trains:
            work = share(atoms(offset, size, micro_batch), seat.copy, seat.copies)
            with self._unkept.watched(
                self._remembers, range(*self._ran), kept=not self._keeping.units.isdisjoint(self._own)
            ):
                losses = self._pipeline.train(mesh, seat, self.applied, work, size, loss_of)
        self.point("before sum")
        began_s = WALL.monotonic()
        self._sum(mesh, seat)
        summed_s = WALL.monotonic()
        self._keeping.stream(mesh)
        kept_s = WALL.monotonic()
        self.pending = self.applied
        self.point("pending")
        words = [0.0] * len(self._agreed)
        if self.clip_norm is not None and seat.copy == 0:
            for number, square in self._squares(seat):
                words[number] += square
        words[units + LOSS], words[units + ORDERS], words[units + KEEPS] = (
            0.0 if alone else losses.total(),  # nobody else wants to know it now
            float(orders),
            float(self._keeping.asks),
        )
        words[units + RATES : units + SAVES] = self.alike.say(self.applied, trains=seat.trains)
        if self.vault is not None:
            words[units + SAVES :] = self.vault.say(mesh, self.applied + 1)
        said = torch.tensor(words, dtype=torch.float64)
        mesh.sum(said, seat.everyone())
        words = said.tolist()
        self.alike.hear(words[units + RATES : units + SAVES], self.applied)
        agreed_s = WALL.monotonic()
        self.point("agreed")
        self._agreed, self.losses = said, losses if alone else Losses(words[units + LOSS])
        norm = self._apply()
        self.point("applied")
        if words[units + KEEPS]:
            self._keeping.agree(mesh, seat.everyone(), units)
            self.holdings.loosen(self._for_nobody_else(seat))
        if self.vault is not None:
            self.vault.hear(mesh, seat.everyone(), words[units + SAVES :])
        return Stepped(
            step=self.applied - 1,
            losses=self.losses,
            norm=norm,
            orders=bool(words[units + ORDERS]),
            idle_s=self._pipeline.idle_s,
            sum_s=summed_s - began_s,
            keep_s=fills_s + kept_s - summed_s,
            agree_s=agreed_s - kept_s,
            units=self._pipeline.unit_s(seat.parts[seat.part]) if seat.trains else (),
        )

    def _squares(self, seat: Seat) -> Iterator[tuple[int, float]]:
        """Of the gradients of our units, each counted by one part; looked at once, for all of them together."""
        ours = [each for each in self._own if seat.part == holders(self.cut.units[each], seat.parts)[0]]
        found = [(unit, _square(each)) for unit in ours for each in self.holdings.arenas[unit].only_numbers()]
        squares = torch.stack([square for _, square in found]).tolist() if found else []
        yield from zip((unit for unit, _ in found), squares, strict=True)

    def keep(self, seat: Seat, parts: tuple[int, ...]) -> None:
        """Hold these parts too: from a boundary soon on, the others know at the end of the next step."""
        self._keeping.ask(self._units_of(seat, parts))

    def judge(
        self, mesh: Mesh, seat: Seat, loss_of: Callable[[Atom], torch.Tensor], *, size: int, micro_batch: int
    ) -> float:
        """The mean loss over `size` samples, which is `judged` then: forward alone, by all copies. Or Broken."""
        loss = torch.zeros(1, dtype=torch.float64)
        if seat.trains:
            work = share(atoms(0, size, micro_batch), seat.copy, seat.copies)
            loss[0] = self._pipeline.judge(mesh, seat, self.applied, work, size, loss_of)
        mesh.sum(loss, seat.everyone())
        self.judged.append(float(loss))
        return self.judged[-1]

    def _apply(self) -> float:
        norm = math.sqrt(math.fsum(self._agreed[: len(self.cut.units)].tolist()))
        if self.clip_norm is not None and norm > self.clip_norm:
            for arena in self.holdings.arenas.values():
                for gradient in arena.only_numbers():
                    gradient.mul_(self.clip_norm / norm)
        with self._guard.updates():
            self.holdings.step(self._own)
        self.judged, self.closed = [], False
        self.holdings.clear_gradients()
        self.applied, self.pending = self.applied + 1, NOTHING
        if self._beside is not None:
            self._beside.stepped()
        return norm

    def _sum(self, mesh: Mesh, seat: Seat) -> None:
        """Within the copy first, where several parts hold a unit: what a copy adds up is what a whole model does."""
        for number in self._own:
            self.holdings.arenas[number].tell_which_came()
        if seat.copies == len(seat.parts) == 1:
            return  # nobody else has any of it
        for number in self._own:
            among = holders(self.cut.units[number], seat.parts)
            for gradient in self.holdings.arenas[number].sums():
                if len(among) > 1:
                    mesh.sum(gradient, seat.same_copy(among))
                if seat.copies > 1:
                    mesh.sum(gradient, seat.same_part())


def _square(gradient: torch.Tensor) -> torch.Tensor:
    flat = gradient.double().flatten()
    return torch.dot(flat, flat)


def _as_it_was(proved: str) -> str:
    """All have trained it here: there is nothing to prove."""
    return proved
