"""A DataLoader in place of a dataset: its workers load what the session will give next.

The session decides which samples a step takes (`samples`), in the order that the loader says: that of the dataset,
shuffled, or as a sampler of its own draws it (`drawing`). Everything else that it has is taken over too: dataset,
collate, workers, prefetching, pinned memory, `worker_init_fn`, `drop_last`. The loader is fed with a plan: the
micro-batches that this worker will have if nothing changes. Where something does (another width, another batch, a step
that is taken again) what was loaded ahead is thrown away and a new plan is made, so that what the script gets is what
it would have got from the dataset itself.

Random numbers that a dataset draws in a loader's worker (crops, flips) follow from the seed, the epoch and the place of
the sample in it: they are the same at any width, with any number of loader workers, and after a restart. Workers
begin anew with each epoch, with the dataset as the script has it then, unless the loader says persistent_workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from sublet.errors import InvalidValue
from sublet.train.data.drawing import Drawn, order_of
from sublet.train.data.samples import Piece, Samples, moved
from sublet.train.numerics.seeds import reseed_host
from sublet.train.streams.drawn import DrawnSamples, Draws

__all__ = ["Loaded", "batch_of", "fed", "samples_of"]

Chosen = tuple[int, int, list[int]]  # epoch, place of a micro-batch in it, and its samples: few objects, to be sent


def samples_of(data: Any, seed: int, collate: Any, device: torch.device | None, batch: int) -> Samples:
    """The samples of a dataset, or of a loader; `batch`: of one step, for loaders that drop what does not fill one."""
    if isinstance(data, Draws):
        return DrawnSamples(data, seed, device)
    if not isinstance(data, DataLoader):
        return Samples(data, seed, collate, device)
    dataset: Any = data.dataset
    order = order_of(data, seed)
    kept = order.count if isinstance(order, Drawn) else len(dataset)
    if data.drop_last or getattr(data.batch_sampler, "drop_last", False):
        kept -= kept % batch
    if not kept:
        raise InvalidValue("loader", f"{len(dataset)} samples, drop_last", f"at least one batch of {batch} long")
    if collate is None and data.collate_fn is not default_collate:
        collate = data.collate_fn
    return Loaded(data, seed, collate, device, order=order, kept=kept)


def batch_of(data: Any) -> int | None:
    """Samples per step, if the loader says it."""
    return data.batch_size if isinstance(data, DataLoader | Draws) else None


class Loaded(Samples):
    """The samples of a loader, by its own workers."""

    def __init__(
        self,
        loader: DataLoader[Any],
        seed: int,
        collate: Any,
        device: torch.device | None,
        *,
        order: bool | Drawn,
        kept: int,
    ) -> None:
        super().__init__(loader.dataset, seed, collate, device, shuffled=order is True)
        self.draws_here = self.draws_here and not loader.num_workers
        self.drawn = order if isinstance(order, Drawn) else None
        self.count = kept
        self._next: Iterator[Any] = iter(())
        self._ahead: Iterator[tuple[int, Piece]] = iter(())
        # Offset, size, rank, world and micro-batch of the present one.
        self._step: tuple[int, int, int, int, int | None] = (0, 0, 0, 1, None)
        self._asked = deque[tuple[int, Piece]]()  # what the loader was asked for, and has not given yet
        self._of = loader
        self._loader: DataLoader[Any] | None = None  # with workers of its own, once there is something to load
        self._loads = -1  # the epoch under way

    def _order(self, epoch: int) -> torch.Tensor:
        if self.drawn is not None:
            return self.drawn.order(epoch)[: self.count]
        return super()._order(epoch)

    def pieces(self, offset: int, size: int, rank: int, world: int, micro_batch: int | None) -> Iterator[Piece]:
        """As of any samples; remembered, for what comes after it."""
        self._step = (offset, size, rank, world, micro_batch)
        return super().pieces(offset, size, rank, world, micro_batch)

    def load(self, epoch: int, piece: Piece) -> Any:
        """By the workers of the loader, which are ahead of us as long as nothing changes."""
        if not self._of.num_workers:
            return super().load(epoch, piece)
        if self._loads != epoch:
            self._begin(epoch)
        if not self._asked or self._asked[0] != (epoch, piece):
            assert self._loader is not None  # noqa: S101 - it was made when the epoch began
            self._asked.clear()
            self._ahead = self._plan(epoch, piece)
            self._next = iter(self._loader)
        self._asked.popleft()
        batch = next(self._next)
        return batch if self._device is None else moved(batch, self._device)

    def _begin(self, epoch: int) -> None:
        """Workers have the dataset as the script has it at the beginning of an epoch, as those of any loader do."""
        self._loads = epoch
        if self._loader is not None and self._of.persistent_workers:
            return
        self._next = iter(())
        self._asked.clear()
        dataset = Seeded(self._of.dataset, self._seed, self._collate)
        workers, init = self._of.num_workers, self._of.worker_init_fn
        self._loader = fed(self._of, dataset, self, as_it_is, self._seed, workers=workers, init=init)

    def __iter__(self) -> Iterator[list[Chosen]]:
        """What the loader is to load: it takes us for its batch sampler, and asks as far ahead as it prefetches."""
        order, of = torch.empty(0), -1
        for epoch, piece in self._ahead:
            self._asked.append((epoch, piece))
            if epoch != of:
                order, of = self._order(epoch), epoch  # not `order`, which keeps that of the epoch under way
            yield [(epoch, piece.start, order[piece.start : piece.start + piece.count].tolist())]

    def _plan(self, epoch: int, first: Piece) -> Iterator[tuple[int, Piece]]:
        """Our micro-batches from this one on, if width and batch stay; where workers stay, for ever."""
        offset, size, rank, world, micro_batch = self._step
        while True:
            while offset < self.count:
                taken = min(size, self.count - offset)
                for piece in super().pieces(offset, taken, rank, world, micro_batch):
                    if piece.start >= first.start:
                        yield epoch, piece
                offset += taken
            if not self._of.persistent_workers:
                return
            epoch, offset, first = epoch + 1, 0, Piece(start=0, count=0, first=True, last=True)


def fed(
    loader: DataLoader[Any], dataset: Any, batches: Iterable[Any], collate: Any, seed: int, *, workers: int, init: Any
) -> DataLoader[Any]:
    """The same loader with our plan; it draws from no random numbers of this process."""
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=init,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(seed),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=workers > 0,
    )


class Seeded:
    """A dataset in a loader's worker, whose random numbers follow from a sample's place; what it gives is collated."""

    def __init__(self, dataset: Any, seed: int, collate: Any) -> None:
        self._dataset, self._seed, self._collate = dataset, seed, collate

    def __getitems__(self, chosen: list[Chosen]) -> Any:
        epoch, place, indices = chosen[0]
        reseed_host(self._seed, epoch, place)
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(indices))
        return self._collate([self._one(epoch, place + more, index) for more, index in enumerate(indices)])

    def _one(self, epoch: int, place: int, index: int) -> Any:
        reseed_host(self._seed, epoch, place)
        return self._dataset[index]


def as_it_is(batch: Any) -> Any:
    """What is collated already."""
    return batch
