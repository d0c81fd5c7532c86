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
from itertools import groupby
from typing import Any

import torch

from sublet.machine.wall import WALL
from sublet.train.data.samples import mixed
from sublet.train.grid import alike
from sublet.train.grid.atoms import Atom, atoms, share
from sublet.train.grid.attendance import Attendance, attend
from sublet.train.grid.guard import Guard
from sublet.train.grid.holdings import Holdings
from sublet.train.grid.keeping import Keeping
from sublet.train.grid.losses import Losses
from sublet.train.grid.meeting import NOTHING, Meeting, Standing, meet
from sublet.train.grid.mesh import Mesh, spread
from sublet.train.grid.outcome import Beside, Lost, Met, Stepped
from sublet.train.grid.pipeline import Pipeline, Work
from sublet.train.grid.restoring import Restored, met_by_going_back, restore
from sublet.train.grid.saving import WORDS, Vault
from sublet.train.grid.seat import Seat
from sublet.train.grid.stages import Staged, holders
from sublet.train.link.following import Broken
from sublet.train.numerics.seeds import restore_dice, restore_random

__all__ = ["Beside", "Lost", "Member", "Met", "Stepped"]

LOSS, ORDERS, KEEPS, RATES, SAVES = 0, 1, 2, 3, 3 + alike.WORDS  # of what is agreed on, beside the norms
EXTRA = SAVES + WORDS
MOVES = 4 << 20  # tag of messages, far from those of a pipeline


class Member:
    """One worker. `point` is told where it is, for those who want to know, or to end it there."""

    def __init__(
        self,
        staged: Staged,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        clip_norm: float | None = None,
        beside: Beside | None = None,
        guard: Guard | None = None,
        point: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.vault: Vault | None = None  # of checkpoints, if there are any
        self.staged, self.clip_norm, self._beside, self.point, self._seed = staged, clip_norm, beside, point, seed
        self._guard = guard or Guard(staged.model, optimizer)
        self.holdings = Holdings(staged.model, optimizer, staged.units, self._guard.frozen)
        self._pipeline = Pipeline(staged, point)
        self.applied, self.pending = NOTHING, NOTHING
        self.new = False  # our state is of others, and our script is not yet where theirs are
        self.speaker: int | None = None  # where somebody is new: who tells it what the others come to
        self._agreed, self.losses = torch.zeros(len(staged.units) + EXTRA, dtype=torch.float64), Losses()  # of a step
        self._own = tuple[int, ...]()  # units of our place
        self._keeping, self.alike = Keeping(self.holdings), alike.Alike(optimizer)

    # ------------------------------------------------------------------------------------------ meetings

    @property
    def loss(self) -> float:
        """Of the last step that was applied, here or by those whose state we have."""
        return self.losses.total()

    def meet(self, mesh: Mesh, seat: Seat | None, *, generation: int | None = None, leaving: bool = False) -> Met:
        """With all of the mesh; the seat is that of the grid to come, None for one who only gives. Lost, or Broken.

        Those who are `leaving`, all of them, stay with what they have, for as long as it takes to save it.
        """
        units = len(self.staged.units)
        own = () if seat is None or not seat.trains else self._units_of(seat, (seat.part,))
        own = tuple(self.holdings.arenas) if leaving else own
        if self.vault is not None:
            self.vault.enter(generation)
        kept = () if seat is None else tuple(each for each in self._units_of(seat, seat.keeps) if each not in own)
        self.point("meeting")
        standing = Standing(applied=self.applied, pending=self.pending, units=self.holdings.arenas.keys())
        here = attend(mesh, standing, own, kept, units, new=self.new)
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
            restored = restore(mesh, self.vault.find, self.vault.whole, self.holdings, wanted)
        if restored is not None:
            self._go_back(restored)
            dice = restored.beside["dice"]
            if dice is not None and mesh.rank < len(dice):
                restore_dice(dice[mesh.rank])
            elif mesh.world == 1:
                restore_random(restored.beside["random"])
            else:
                self._throw(mesh, restored.step)
            have = keeps
        elif met is None:
            raise Lost
        else:
            self._settle(mesh, met, owned[mesh.rank] | have[mesh.rank], here)
        if not leaving:
            self._look_who_is_new(mesh, met, here, seat, restored)
        self._own = own
        self._keeping.begin(owned, keeps, have)
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

    def _look_who_is_new(
        self, mesh: Mesh, met: Meeting | None, here: Attendance, seat: Seat | None, restored: Restored | None
    ) -> None:
        """Whose script is elsewhere in its loop than those of the others; where all are new, there is no other place.

        Where all begin, with a checkpoint or without, nobody is.
        """
        if met is None or met.anew:
            self.new, self.speaker = met is None and restored is not None, None
            return
        came = [each.applied != met.applied and at not in met.roll for at, each in enumerate(here.standings)]
        new = [before or taken for before, taken in zip(here.new, came, strict=True)]
        members = range(mesh.world) if seat is None else seat.everyone()
        there = [each for each in members if not new[each]]
        self.new = new[mesh.rank]
        self.speaker = there[0] if 0 < len(there) < len(members) else None

    def _open_vault(self, mesh: Mesh, held: list[frozenset[int]]) -> None:
        """The first who holds a unit saves it."""
        if self.vault is not None:
            everything = range(len(self.staged.units))
            first = [next((each for each, has in enumerate(held) if unit in has), None) for unit in everything]
            self.vault.open(mesh, [each for each in first if each is not None])

    def _go_back(self, restored: Restored) -> None:
        """To a checkpoint, and nothing of what was is left."""
        self._agreed, self.losses = torch.zeros_like(self._agreed), Losses(restored.beside["loss"])
        self.holdings.take(restored.units, restored.units.keys(), stepped=restored.step > 0)
        self.holdings.clear_gradients()
        if self._beside is not None:
            self._beside.take(restored.beside)
        self.applied, self.pending = restored.step, NOTHING

    def _settle(self, mesh: Mesh, met: Meeting, wanted: frozenset[int], here: Attendance) -> None:
        """Nobody lets go of a unit before all have said that they have what they want."""
        if met.anew:
            if mesh.rank:  # copies are to draw other numbers, though all scripts have begun with the same seed
                self._throw(mesh, 0)
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
                self.new = True
                self._throw(mesh, met.applied)
                self._hear(agreed)
                if self._beside is not None:
                    self._beside.take(tree)
            self.holdings.take(came, kept, stepped=met.applied > 0)
            self.holdings.clear_gradients()
            self.applied, self.pending = met.applied, NOTHING

    def _throw(self, mesh: Mesh, step: int) -> None:
        """Torch's random numbers of who begins here: no two workers draw the same."""
        torch.manual_seed(mixed(self._seed, step, mesh.rank))

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
            said[len(self.staged.units) + LOSS] = self.loss
        mesh.sum(said, range(mesh.world))
        tree = None
        if self._beside is not None and anybody_behind:
            tree = spread(mesh, met.speaker, self._beside.tree() if mesh.rank == met.speaker else None)
        return said, tree

    def _hear(self, agreed: torch.Tensor) -> None:
        self._agreed, self.losses = agreed, Losses(float(agreed[len(self.staged.units) + LOSS]))

    def _units_of(self, seat: Seat, parts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            number
            for number, unit in enumerate(self.staged.units)
            if any(part in parts for part in holders(unit, seat.parts))
        )

    def _for_nobody_else(self, seat: Seat) -> list[int]:
        """Units of which only we need the gradient."""
        if self.clip_norm is not None or seat.copies > 1:
            return []
        streamed, units = self._keeping.units, self.staged.units
        return [each for each in self._own if each not in streamed and len(holders(units[each], seat.parts)) == 1]

    def sums_of(self, seat: Seat) -> list[tuple[int, ...]]:
        """Over whom this seat will add, in an order in which nobody waits for ever: for a mesh that forms ahead."""
        found: list[tuple[int, ...]] = []  # what all agree on is small: no group is needed for it
        if seat.trains:
            shared = {holders(self.staged.units[unit], seat.parts) for unit in self._units_of(seat, (seat.part,))}
            found += [seat.same_copy(among) for among in sorted(shared) if len(among) > 1]
            found += [seat.same_part()]
        return found

    # ------------------------------------------------------------------------------------------ steps

    def step(
        self,
        mesh: Mesh,
        seat: Seat,
        work: Work,
        *,
        offset: int,
        size: int,
        micro_batch: int,
        orders: bool = False,
    ) -> Stepped:
        """Of `size` samples from `offset` on; `work` is done on each atom. Or Broken."""
        losses, units, alone = Losses(), len(self.staged.units), len(seat.everyone()) == 1
        fills_s = WALL.monotonic()
        if self._keeping.fill(mesh, self.applied):
            self.holdings.loosen(self._for_nobody_else(seat))
        fills_s = WALL.monotonic() - fills_s
        self.holdings.begin_step()
        if seat.trains:
            ours = share(atoms(offset, size, micro_batch), seat.copy, seat.copies)
            losses = self._pipeline.train(mesh, seat, ours, size, work)
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
        ours = [each for each in self._own if seat.part == holders(self.staged.units[each], seat.parts)[0]]
        found = [(unit, _square(each)) for unit in ours for each in self.holdings.arenas[unit].only_numbers()]
        squares = torch.stack([square for _, square in found]).tolist() if found else []
        yield from zip((unit for unit, _ in found), squares, strict=True)

    def keep(self, seat: Seat, parts: tuple[int, ...]) -> None:
        """Hold these parts too: from a boundary soon on, the others know at the end of the next step."""
        self._keeping.ask(self._units_of(seat, parts))

    def judge(self, mesh: Mesh, seat: Seat, work: Work, ours: tuple[Atom, ...], size: int) -> float:
        """Our part of the mean loss over `size` samples: forward alone, of these atoms, with our copy. Broken."""
        return self._pipeline.judge(mesh, seat, ours, size, work) if seat.trains else 0.0

    def _apply(self) -> float:
        norm = math.sqrt(math.fsum(self._agreed[: len(self.staged.units)].tolist()))
        if self.clip_norm is not None and norm > self.clip_norm:
            for arena in self.holdings.arenas.values():
                for gradient in arena.only_numbers():
                    gradient.mul_(self.clip_norm / norm)
        with self._guard.updates():
            self.holdings.step()
        torch.clear_autocast_cache()  # of weights as they were: a script may have autocast around its loop
        self.new, self.speaker = False, None
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
            among = holders(self.staged.units[number], seat.parts)
            for gradient in self.holdings.arenas[number].sums():
                if len(among) > 1:
                    mesh.sum(gradient, seat.same_copy(among))
                if seat.copies > 1:
                    mesh.sum(gradient, seat.same_part())


def _square(gradient: torch.Tensor) -> torch.Tensor:
    flat = gradient.double().flatten()
    return torch.dot(flat, flat)
