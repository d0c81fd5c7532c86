"""Detects ranks that have drifted apart, and raises RanksDiffer.

All members apply the same update to the same weights, so their weights are equal to the bit. A script can break that
without a sign: by a learning rate that one rank changes, or an update under `if rank == 0`. Every `EVERY` steps each
member adds a small digest of its position, its learning rates and one of its parameters, in turn, to the control
numbers that are summed with the gradients. Where the sum is not the own digest times the number of members, a member
says so with the next step. Then all compare everything and raise. Buffers are not compared: running means differ by
nature.

Members of a grid have no weights in common. In the agreement on every `EVERY`th step each says a digest of its rates,
with its square: all digests are equal if the sum of squares fits the sum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sublet.errors import RanksDiffer
from sublet.train.data.samples import mixed
from sublet.train.link.peers import PeerGroup
from sublet.train.numerics.gradients import Control
from sublet.train.state.state import Progress

EVERY = 20  # steps; a check takes about 40 us on a CPU, 140 us on an H200
RATE_WORDS = 3  # of a grid: members that say it, the sum of digests, and that of squares
RATE_BITS = 20  # the square of a sum over a thousand members is a whole number that a float64 has
EXACT_BITS = 24  # whole numbers below 2**24 are exact in float32, in which control numbers are summed
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element
POSITION, RATES, WEIGHTS = range(3)  # columns of what is compared in full
NAMES = ("position", "learning rate", "weights")
NEXT = {
    POSITION: "leave the loop of the session at the same step in every rank",
    RATES: "change learning rates alike in every rank: by scheduler=, or by a scheduler that s.keep() was given, and "
    "that every rank steps after the batches of each epoch of s.epochs()",
    WEIGHTS: "let s.step() alone change weights and gradients, or do the same in every rank",
}
TOGETHER = "call s.evaluate() in every rank, at the same step, and not under `if s.rank == 0`"


class Drift:
    """Watches one model and its optimizer."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self._parameters, self._optimizer = list(parameters), optimizer
        self._own: torch.Tensor | None = None  # digest of the step under way
        self._doubt: torch.Tensor | None = None  # whether the last check found a difference; still on its device

    def put(self, slots: Sequence[torch.Tensor], progress: Progress, world: int) -> None:
        """Before the sum: the result of the last check, and the digest if this step has one."""
        if self._doubt is not None:
            slots[Control.DOUBT].copy_(self._doubt)
        self._own = self._doubt = None
        if progress.steps % EVERY:
            return
        parameter = self._parameters[progress.steps // EVERY % len(self._parameters)]
        numbers = digest(_position(progress), numbers_of(self._optimizer))
        bits = EXACT_BITS - (world - 1).bit_length()
        own = (_sum_of_bits(parameter) + numbers).bitwise_and_((1 << bits) - 1)
        self._own = own.to(slots[Control.CHECK])
        slots[Control.CHECK].copy_(self._own)

    def compare(self, summed: torch.Tensor, world: int) -> None:
        """After the sum, while the control numbers are still there; the device is not waited for."""
        if self._own is not None:
            self._doubt, self._own = summed[Control.CHECK] != self._own * world, None

    def forget(self) -> None:
        """The group has changed."""
        self._own = self._doubt = None

    def require_equal(self, group: PeerGroup, progress: Progress) -> None:
        """All members call this at the same point: raises RanksDiffer if they are not equal in all that is compared."""
        own = [digest(_position(progress)), digest(numbers_of(self._optimizer)), self._weights()]
        table = group.rows(torch.tensor(own))
        rate = float(self._optimizer.param_groups[0].get("lr", 0.0))
        rates = group.rows(torch.tensor(rate, dtype=torch.float64))
        differs = table != table[0]
        if not differs.any():
            return
        columns = [column for column in range(len(NAMES)) if differs[:, column].any()]
        ranks = [rank for rank in range(group.world) if differs[rank].any()]
        values = ", ".join(f"{rate:.6g} at rank {rank}" for rank, rate in enumerate(rates.tolist()))
        names = [f"{NAMES[column]} ({values})" if column == RATES else NAMES[column] for column in columns]
        raise RanksDiffer(" and ".join(names), ranks=ranks, step=progress.steps, hint=NEXT[columns[0]])

    def require_together(self, group: PeerGroup, progress: Progress, numbers: Sequence[float]) -> None:
        """After a sum: RanksDiffer if only some of those in it have left their loop before its end, or evaluate."""
        told = "have left their loop, before the end of the training", "evaluate, and the others train on"
        counts = numbers[Control.LEFT], numbers[Control.EVALUATED]
        for count, what, hint in zip(counts, told, (NEXT[POSITION], TOGETHER), strict=True):
            if 0 < count < group.world:
                position = f"position ({int(count)} of {group.world} {what})"
                raise RanksDiffer(position, ranks=[], step=progress.steps, hint=hint)

    def _weights(self) -> int:
        total = torch.zeros((), dtype=torch.int64)
        for index, parameter in enumerate(self._parameters):
            total = total.to(parameter.device) * 3 + _sum_of_bits(parameter) * (mixed(index) | 1)
        return int(total)


def rates_said(optimizer: torch.optim.Optimizer, step: int, *, trains: bool) -> tuple[float, ...]:
    """Before the sum of a grid; zeros in most steps, and of a spare worker."""
    if step % EVERY or not trains:
        return (0.0,) * RATE_WORDS
    own = float(digest(numbers_of(optimizer)) & ((1 << RATE_BITS) - 1))
    return (1.0, own, own * own)


def rates_heard(summed: Sequence[float], step: int) -> None:
    """After it, in all members alike: RanksDiffer if their rates are not the same."""
    count, total, squares = summed
    if count * squares != total * total:
        raise RanksDiffer(NAMES[RATES], ranks=[], step=step, hint=NEXT[RATES])


def numbers_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Learning rate, weight decay, betas of each parameter group; a tensor would have to be waited for."""
    return [
        sorted((name, value) for name, value in group.items() if isinstance(value, int | float | tuple))
        for group in optimizer.param_groups
    ]


def _position(progress: Progress) -> tuple[int, ...]:
    return (progress.steps, progress.epoch, progress.offset, progress.batch)


def digest(*facts: object) -> int:
    """The same in every process."""
    return zlib.crc32(repr(facts).encode())


def _sum_of_bits(parameter: torch.Tensor) -> torch.Tensor:
    """A sum of integers: neither its order nor the number of threads matters."""
    return parameter.detach().view(WHOLE[parameter.element_size()]).sum(dtype=torch.int64)
