"""A member of a grid: it meets, takes what its seat needs, and makes steps that are applied by all or by none.

    step     passes over its micro-batches (1F1B); sums over the copies of its part, and sends sums to replicas:
             the step is *pending*; agreement: one small sum over all of norms, loss and orders; then all apply
    meet     one table of all units and their holders; roll forward, move, begin

Norms are of units, in double precision, added in the order of the units, so that clipping does not depend on the cut.
Weights that the first and the last part share (tied) are the one exception: each adds up its micro-batches first, so
they agree within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from sublet.machine.wall import WALL
from sublet.train.data.samples import mixed
from sublet.train.grid.gloo import GlooMesh, spread
from sublet.train.grid.holdings import Holdings
from sublet.train.grid.meeting import NOTHING, Meeting, Met, PartLost, Standing, meet
from sublet.train.grid.pipeline import Atom, Losses, Pipeline, Stepped, Work, atoms, share
from sublet.train.grid.replicas import Replicas
from sublet.train.grid.saving import WORDS, Course, Restored, Vault
from sublet.train.grid.stages import Seat, Staged, holders
from sublet.train.link.following import Broken
from sublet.train.numerics.drift import RATE_WORDS, rates_heard, rates_said
from sublet.train.numerics.seeds import restore_rng
from sublet.train.numerics.updates import Guard

LOSS, ORDERS, KEEPS, RATES, SAVES = 0, 1, 2, 3, 3 + RATE_WORDS  # of what is agreed on, beside the norms
EXTRA = SAVES + WORDS
MOVES = 4 << 20  # tag of messages, far from those of a pipeline


class Member:
    """One worker. `point` is called at each stage, for tests that end it there."""

    def __init__(
        self,
        staged: Staged,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        clip_norm: float | None = None,
        beside: Course | None = None,
        guard: Guard | None = None,
        point: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.vault: Vault | None = None  # of checkpoints, if there are any
        self.staged, self.clip_norm, self._beside, self.point, self._seed = staged, clip_norm, beside, point, seed
        self._guard = guard or Guard([optimizer])
        self.frozen = [each for each in staged.model.parameters() if not each.requires_grad]  # to the end
        self.holdings = Holdings(staged.model, optimizer, staged.units, self.frozen)
        self._pipeline = Pipeline(staged, point)
        self.applied, self.pending = NOTHING, NOTHING
        self.new = False  # our state is of others, and our script is not yet where theirs are
        self.speaker: int | None = None  # where there are newcomers: the worker that speaks to them
        self._agreed, self.losses = torch.zeros(len(staged.units) + EXTRA, dtype=torch.float64), Losses()  # of a step
        self._own = tuple[int, ...]()  # units of our place
        self._replicas = Replicas(self.holdings)

    # ------------------------------------------------------------------------------------------ meetings

    @property
    def loss(self) -> float:
        """The loss of the last applied step, here or at those whose state we have."""
        return self.losses.total()

    def meet(self, mesh: GlooMesh, seat: Seat | None, *, generation: int | None = None, leaving: bool = False) -> Met:
        """Meet all of the mesh; the seat of the new grid is None for a worker that only gives. PartLost, or Broken.

        Workers that all are `leaving` keep their units for as long as it takes to save them.
        """
        units = len(self.staged.units)
        own, kept = tuple(self.holdings.arenas) if leaving else (), tuple[int, ...]()
        if seat is not None:
            own = self._units_of(seat, (seat.part,) if seat.trains else ())
            kept = tuple(each for each in self._units_of(seat, seat.keeps) if each not in own)
        if self.vault is not None:
            self.vault.enter(generation)
        self.point("meeting")
        standings, owned, keeps, were_new = self._attend(mesh, own, kept)
        top = max(each.applied for each in standings)
        sizes = {unit: self.holdings.size_bytes(unit, stepped=top > 0) for unit in range(units)}
        # replicas are made at the very beginning; later they are filled between steps
        have = keeps if top == NOTHING else [a & b.units for a, b in zip(keeps, standings, strict=True)]
        met = meet(standings, [a | b for a, b in zip(owned, have, strict=True)], sizes)
        if met is None and leaving:
            raise PartLost
        self.point("met")
        restored = None
        if self.vault is not None and not leaving and (met is None or met.anew):
            restored = self.vault.restore(mesh, [a | b for a, b in zip(owned, keeps, strict=True)])
        if restored is not None:
            self._go_back(mesh, restored)
            have = keeps
        elif met is None:
            raise PartLost
        else:
            self._settle(mesh, met, owned[mesh.rank] | have[mesh.rank], standings)
        if met is None or met.anew:  # where all begin, or go back, none is ahead of another
            self.new, self.speaker = met is None, None
        elif seat is not None:  # a worker that took its state, and has made no step since, is elsewhere in its loop
            came = [each.applied != met.applied and at not in met.roll for at, each in enumerate(standings)]
            there = [each for each in seat.everyone() if not came[each] and not were_new[each]]
            self.new = mesh.rank not in there
            self.speaker = there[0] if 0 < len(there) < len(seat.everyone()) else None
        self._own = own
        self._replicas.begin(owned, keeps, have)
        if seat is not None:
            self.holdings.loosen(self._ours_alone(seat))
        if self.vault is not None:  # the first holder of a unit saves it
            held = [a | b for a, b in zip(owned, have, strict=True)]
            first = [next((each for each, has in enumerate(held) if unit in has), None) for unit in range(units)]
            self.vault.open(mesh, [each for each in first if each is not None])
        if restored is not None:
            return Met(
                meeting=Meeting(applied=restored.step, speaker=None, roll=(), empty=(), moves=()),
                moved_bytes=sum(memory.numel() for memory in restored.units.values()),
                gave_bytes=0,
                rolled=False,
                source="checkpoint",
                lost=met is None,
                redone=max(0, top - restored.step),
            )
        assert met is not None  # noqa: S101 - or it is PartLost
        return Met(
            meeting=met,
            moved_bytes=sum(sizes[move.unit] for move in met.moves if move.taker == mesh.rank),
            gave_bytes=sum(sizes[move.unit] for move in met.moves if move.giver == mesh.rank),
            rolled=mesh.rank in met.roll,
            source="fresh" if met.anew else "peer",
        )

    def _attend(
        self, mesh: GlooMesh, own: Collection[int], kept: Collection[int]
    ) -> tuple[list[Standing], list[frozenset[int]], list[frozenset[int]], list[bool]]:
        """One summed table: units that each has, is to have and is to replicate, and whether it is new. Broken."""
        units, facts = range(len(self.staged.units)), [self.applied, self.pending, int(self.new)]
        row = [*facts, *(int(unit in each) for each in (self.holdings.arenas, own, kept) for unit in units)]
        table = torch.zeros(mesh.world, len(row), dtype=torch.int64)
        table[mesh.rank] = torch.tensor(row)
        mesh.sum(table, range(mesh.world))
        rows = table.tolist()
        held, owned, keeps = (
            [frozenset(unit for unit in units if each[start + unit]) for each in rows]
            for start in range(len(facts), len(row), len(units))
        )
        standings = [Standing(applied=r[0], pending=r[1], units=has) for r, has in zip(rows, held, strict=True)]
        return standings, owned, keeps, [bool(each[2]) for each in rows]

    def _go_back(self, mesh: GlooMesh, restored: Restored) -> None:
        """Back to a checkpoint."""
        self._agreed, self.losses = torch.zeros_like(self._agreed), Losses(restored.beside["loss"])
        self.holdings.take(restored.units, restored.units.keys(), stepped=restored.step > 0)
        self.holdings.clear_gradients()
        if self._beside is not None:
            self._beside.take(restored.beside)
        self.applied, self.pending = restored.step, NOTHING
        rng = restored.beside["rng"]
        if mesh.rank < len(rng):
            restore_rng(rng[mesh.rank])
        else:
            self._seed_rng(mesh, restored.step)

    def _settle(self, mesh: GlooMesh, met: Meeting, wanted: frozenset[int], standings: Sequence[Standing]) -> None:
        """No worker drops a unit before all have what they want."""
        if met.anew:
            if mesh.rank:  # copies are to draw other numbers, though all scripts have begun with the same seed
                self._seed_rng(mesh, 0)
            self.holdings.make(wanted - {move.unit for move in met.moves if move.taker == mesh.rank})
            came = self._move(mesh, met)
            mesh.sum(torch.zeros(1), range(mesh.world))  # workers without a seat leave now
            self.holdings.take(came, wanted, stepped=False)
            self.applied = 0
            return
        behind = {
            each for each, standing in enumerate(standings) if standing.applied != met.applied and each not in met.roll
        }
        heard = self._hear_agreed(mesh, met, anybody_behind=bool(behind))
        if mesh.rank in met.roll:
            self._hear(heard["agreed"])
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
                self._seed_rng(mesh, met.applied)
                self._hear(heard["agreed"])
                if self._beside is not None:
                    self._beside.take(heard["beside"])
            self.holdings.take(came, kept, stepped=met.applied > 0)
            self.holdings.clear_gradients()
            self.applied, self.pending = met.applied, NOTHING

    def _seed_rng(self, mesh: GlooMesh, step: int) -> None:
        """Seed torch's RNG of a worker that begins here: no two workers draw the same."""
        torch.manual_seed(mixed(self._seed, step, mesh.rank))

    def _move(self, mesh: GlooMesh, met: Meeting) -> dict[int, torch.Tensor]:
        """Units that came. Rounds follow one another, so that a taker can pass a unit on."""
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

    def _hear_agreed(self, mesh: GlooMesh, met: Meeting, *, anybody_behind: bool) -> Any:
        """The agreed numbers of the last step, and the state beside units, from the speaker."""
        assert met.speaker is not None  # noqa: S101 - it is not anew
        said = None
        if mesh.rank == met.speaker:
            self._agreed[len(self.staged.units) + LOSS] = self.loss
            tells = self._beside is not None and anybody_behind
            said = {"agreed": self._agreed, "beside": self._beside.tree() if tells and self._beside else None}
        return spread(mesh, met.speaker, said)

    def _hear(self, agreed: torch.Tensor) -> None:
        self._agreed, self.losses = agreed, Losses(float(agreed[len(self.staged.units) + LOSS]))

    def _units_of(self, seat: Seat, parts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            number
            for number, unit in enumerate(self.staged.units)
            if any(part in parts for part in holders(unit, seat.parts))
        )

    def _ours_alone(self, seat: Seat) -> list[int]:
        """Units whose gradient no other worker needs."""
        if self.clip_norm is not None or seat.copies > 1:
            return []
        streamed, units = self._replicas.units, self.staged.units
        return [each for each in self._own if each not in streamed and len(holders(units[each], seat.parts)) == 1]

    def sums_of(self, seat: Seat) -> list[tuple[int, ...]]:
        """The groups of this seat's sums, in an order without deadlocks: for a mesh that forms ahead."""
        found: list[tuple[int, ...]] = []  # what all agree on is small: no group is needed for it
        if seat.trains:
            shared = {holders(self.staged.units[unit], seat.parts) for unit in self._units_of(seat, (seat.part,))}
            found += [seat.same_copy(among) for among in sorted(shared) if len(among) > 1]
            found += [seat.same_part()]
        return found

    # ------------------------------------------------------------------------------------------ steps

    def step(
        self, mesh: GlooMesh, seat: Seat, work: Work, *, offset: int, size: int, micro_batch: int, orders: bool = False
    ) -> Stepped:
        """A step of `size` samples from `offset` on; `work` is done on each micro-batch. Or Broken."""
        losses, units, alone = Losses(), len(self.staged.units), len(seat.everyone()) == 1
        fills_s = WALL.monotonic()
        if self._replicas.fill(mesh, self.applied):
            self.holdings.loosen(self._ours_alone(seat))
        fills_s = WALL.monotonic() - fills_s
        self.holdings.begin_step()
        if seat.trains:
            ours = share(atoms(offset, size, micro_batch), seat.copy, seat.copies)
            losses = self._pipeline.train(mesh, seat, ours, size, work)
        self.point("before sum")
        began_s = WALL.monotonic()
        self._sum(mesh, seat)
        summed_s = WALL.monotonic()
        self._replicas.stream(mesh)
        kept_s = WALL.monotonic()
        self.pending = self.applied
        self.point("pending")
        words = [0.0] * len(self._agreed)
        if self.clip_norm is not None and seat.copy == 0:
            for number, square in self._squares(seat):
                words[number] += square
        words[units + LOSS] = 0.0 if alone else losses.total()  # read when it is asked for
        words[units + ORDERS], words[units + KEEPS] = float(orders), float(self._replicas.asks)
        words[units + RATES : units + SAVES] = rates_said(self.holdings.optimizer, self.applied, trains=seat.trains)
        if self.vault is not None:
            words[units + SAVES :] = self.vault.say(mesh, self.applied + 1)
        said = torch.tensor(words, dtype=torch.float64)
        mesh.sum(said, seat.everyone())
        words = said.tolist()
        rates_heard(words[units + RATES : units + SAVES], self.applied)
        agreed_s = WALL.monotonic()
        self.point("agreed")
        self._agreed, self.losses = said, losses if alone else Losses(words[units + LOSS])
        norm = self._apply()
        self.point("applied")
        if words[units + KEEPS]:
            self._replicas.agree(mesh, seat.everyone(), units)
            self.holdings.loosen(self._ours_alone(seat))
        if self.vault is not None:
            self.vault.hear(mesh, seat.everyone(), words[units + SAVES :])
        return Stepped(
            step=self.applied - 1,
            losses=self.losses,
            norm=norm,
            orders=bool(words[units + ORDERS]),
            idle_s=self._pipeline.borders.idle_s,
            sum_s=summed_s - began_s,
            keep_s=fills_s + kept_s - summed_s,
            agree_s=agreed_s - kept_s,
            units=self._pipeline.times.of_an_atom() if seat.trains and self.holdings.device.type == "cpu" else (),
        )

    def _squares(self, seat: Seat) -> Iterator[tuple[int, float]]:
        """Squared norms of our units' gradients, each counted by one part; one wait for all of them."""
        ours = [each for each in self._own if seat.part == holders(self.staged.units[each], seat.parts)[0]]
        found = [(unit, _square(each)) for unit in ours for each in self.holdings.arenas[unit].only_numbers()]
        squares = torch.stack([square for _, square in found]).tolist() if found else []
        yield from zip((unit for unit, _ in found), squares, strict=True)

    def keep(self, seat: Seat, parts: tuple[int, ...]) -> None:
        """Replicate these parts too, from a boundary soon on; the others know at the end of the next step."""
        self._replicas.ask(self._units_of(seat, parts))

    def judge(self, mesh: GlooMesh, seat: Seat, work: Work, ours: tuple[Atom, ...], size: int) -> float:
        """Our part of the mean loss over `size` samples: forward alone, of these micro-batches, in our copy. Broken."""
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

    def _sum(self, mesh: GlooMesh, seat: Seat) -> None:
        """Within the copy first, where several parts hold a unit, as a whole model adds up."""
        for number in self._own:
            self.holdings.arenas[number].tell_which_came()
        if seat.copies == len(seat.parts) == 1:
            return  # there are no other holders
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
