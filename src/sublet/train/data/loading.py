"""A DataLoader in place of a dataset: its workers load what the session will give next.

The session decides which samples a step takes (`samples`), in the order that the loader says: that of the dataset,
shuffled, or as its own sampler draws it. Everything else of the loader is taken over: dataset, collate, workers,
prefetching, pinned memory, `worker_init_fn`, `drop_last`. The loader is fed with a plan: the micro-batches that this
worker will have if nothing changes. After a change (of workers or batch, or where a step is repeated) samples that were
loaded ahead are dropped and a new plan is made. So the script gets the same samples as from the dataset itself.

Random numbers that a dataset draws in a loader's worker (crops, flips) follow from the seed, the epoch and the place of
the sample. They are the same at any number of workers and of loader workers, and after a restart. Most datasets draw
none, and to seed three generators for each sample takes longer than to load a fast sample. So a micro-batch is loaded
without seeding first. If a generator has moved, it is loaded again with each sample seeded, and so are all that follow.

Loader workers start anew with each epoch, with the dataset as the script has it then, unless persistent_workers is set.

A sampler of the loader's own (weighted, a subset, a script's) is asked for all indices of an epoch at once, with all
global generators seeded. It must give the same indices in every process.

`train.drawn` has a function in place of a dataset, which draws batches at random. Every worker draws the whole batch,
alike, and takes its own rows, the first dimension. So the function has to be quick, and to draw from the global random
numbers of torch, Python and NumPy alone. Data for evaluation (HeldOut) keeps its own order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from sublet.errors import InvalidValue
from sublet.train.data.samples import MicroBatch, Samples, mapped, mixed, moved
from sublet.train.numerics.seeds import next_numbers, reseed_host, rng_kept

NO_END = 2**53  # samples of an epoch: more than any training takes
COLLATED = 1  # beside the place of a micro-batch: what its collate function draws
LOOKS = 64  # micro-batches between two seeds, where a dataset draws nothing
Chosen = tuple[int, int, list[int]]  # epoch, place of a micro-batch in it, and its samples: few objects, to be sent
LossOf = Callable[[Any], torch.Tensor | float]


class Draws:
    """The argument for a session; `batch_size` is that of one draw."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        found = list[torch.Tensor]()
        mapped(found.append, self.draw(0, 0))
        if not found or not found[0].ndim or not len(found[0]):
            raise InvalidValue("drawn(function)", "no tensor with rows", "a batch: a tensor, or several in a tuple")
        self.batch_size = len(found[0])

    def draw(self, seed: int, number: int) -> Any:
        """One batch, as of this seed; the random numbers of the script stay as they are."""
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]  # torch gives it no type
        with rng_kept(), torch.random.fork_rng(devices):
            reseed_host(seed, number)
            if devices:
                torch.cuda.manual_seed_all(torch.initial_seed())
            return self.function()


class DrawnSamples(Samples):
    """An endless dataset, in the order of the draws."""

    def __init__(self, drawn: Draws, seed: int, device: torch.device | None) -> None:
        self._drawn, self._seed, self._device = drawn, seed, device
        self.count, self.draws_here = NO_END, False
        self._last: tuple[int, Any] = (-1, None)

    def load(self, epoch: int, piece: MicroBatch) -> Any:
        """The rows of a micro-batch, of one draw or of several."""
        del epoch  # there is one
        size, row = self._drawn.batch_size, piece.start
        parts = list[tuple[Any, slice]]()
        while row < piece.start + piece.count:
            number, first = divmod(row, size)
            last = min(size, first + piece.start + piece.count - row)
            if self._last[0] != number:
                self._last = number, self._drawn.draw(self._seed, number)
            parts.append((self._last[1], slice(first, last)))
            row += last - first

        def rows(*tensors: torch.Tensor) -> torch.Tensor:
            if not tensors[0].ndim or len(tensors[0]) != size:
                return tensors[0]
            return torch.cat([each[some] for each, (_, some) in zip(tensors, parts, strict=True)])

        batch = mapped(rows, *(each for each, _ in parts))
        return batch if self._device is None else moved(batch, self._device)


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
    return LoaderSamples(data, seed, collate, device, order=order, kept=kept)


def batch_of(data: Any) -> int | None:
    """Samples per step, if the loader says it."""
    return data.batch_size if isinstance(data, DataLoader | Draws) else None


class LoaderSamples(Samples):
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
        self._ahead: Iterator[tuple[int, MicroBatch]] = iter(())
        # Offset, size, rank, world and micro-batch of the present one.
        self._step: tuple[int, int, int, int, int | None] = (0, 0, 0, 1, None)
        self._asked = deque[tuple[int, MicroBatch]]()  # what the loader was asked for, and has not given yet
        self._of = loader
        # Whether the dataset does, as one of its workers has seen.
        self._draws = torch.zeros((), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no type
        self._loader: DataLoader[Any] | None = None  # with workers of its own, once there is something to load
        self._loads = -1  # the epoch under way

    def _order(self, epoch: int) -> torch.Tensor:
        if self.drawn is not None:
            return self.drawn.order(epoch)[: self.count]
        return super()._order(epoch)

    def pieces(self, offset: int, size: int, rank: int, world: int, micro_batch: int | None) -> Iterator[MicroBatch]:
        """The micro-batches of one rank; the arguments are remembered for the plan."""
        self._step = (offset, size, rank, world, micro_batch)
        return super().pieces(offset, size, rank, world, micro_batch)

    def load(self, epoch: int, piece: MicroBatch) -> Any:
        """From the loader's workers, which are ahead as long as nothing changes."""
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
        dataset = Seeded(self._of.dataset, self._seed, self._collate, self._draws)
        workers, init = self._of.num_workers, self._of.worker_init_fn
        self._loader = fed(self._of, dataset, self, as_it_is, self._seed, workers=workers, init=init)

    def __iter__(self) -> Iterator[list[Chosen]]:
        """The plan, as a batch sampler: the loader asks as far ahead as it prefetches."""
        order, of = torch.empty(0), -1
        for epoch, piece in self._ahead:
            self._asked.append((epoch, piece))
            if epoch != of:
                order, of = self._order(epoch), epoch  # not `order`, which keeps that of the epoch under way
            yield [(epoch, piece.start, order[piece.start : piece.start + piece.count].tolist())]

    def _plan(self, epoch: int, first: MicroBatch) -> Iterator[tuple[int, MicroBatch]]:
        """Our micro-batches from this one on if nothing changes; endless where loader workers persist."""
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
            epoch, offset, first = epoch + 1, 0, MicroBatch(start=0, count=0, first=True, last=True)


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
    """A dataset in a loader's worker that seeds samples by their places and collates them.

    `draws` lies in memory that all loader workers share: once one of them has seen a draw, all seed. Until then a
    number of each generator after each micro-batch tells whether anything was drawn, as it is the next in its sequence.
    """

    def __init__(self, dataset: Any, seed: int, collate: Any, draws: torch.Tensor) -> None:
        self._dataset, self._seed, self._collate, self._draws = dataset, seed, collate, draws
        self._untouched: list[tuple[int, int, bytes]] = []  # what comes next where nothing is drawn, the last one first

    def __getitems__(self, chosen: list[Chosen]) -> Any:
        epoch, place, indices = chosen[0]
        samples = self._samples(epoch, place, indices)
        if self._collate is not default_collate:  # which draws nothing
            reseed_host(self._seed, epoch, place, COLLATED)
            self._untouched.clear()
        return self._collate(samples)

    def _samples(self, epoch: int, place: int, indices: list[int]) -> Any:
        if hasattr(self._dataset, "__getitems__"):
            reseed_host(self._seed, epoch, place)
            return self._dataset.__getitems__(indices)
        if not self._draws:
            if not self._untouched:
                reseed_host(self._seed)
                self._untouched = [next_numbers() for _ in range(LOOKS)][::-1]
                reseed_host(self._seed)
            found = [self._dataset[index] for index in indices]
            if next_numbers() == self._untouched.pop():
                return found
            self._draws.fill_(1)
        return [self._one(epoch, place + more, index) for more, index in enumerate(indices)]

    def _one(self, epoch: int, place: int, index: int) -> Any:
        reseed_host(self._seed, epoch, place)
        return self._dataset[index]


def as_it_is(batch: Any) -> Any:
    """The collate function of batches that are collated already."""
    return batch


class Drawn:
    """The order that a loader's own sampler draws."""

    def __init__(self, sampler: Any, seed: int, samples: int) -> None:
        self.sampler, self._seed, self._samples = sampler, seed, samples
        name = type(sampler).__name__
        if hasattr(sampler, "num_replicas"):
            allowed = "one of a single process: the session deals what it gives to all workers"
            raise InvalidValue("loader", f"with sampler={name}, which gives each rank its part", allowed)
        first = self.order(0)
        self.count = len(first)
        if not torch.equal(first, self.order(0)):
            allowed = (
                "one whose order follows from torch's, numpy's or Python's global random numbers, from a `generator` of"
                " its own, or from set_epoch(): all workers and restarts have to draw the same"
            )
            raise InvalidValue("loader", f"with sampler={name}, which gives another order each time", allowed)
        if len(self.order(1)) != self.count:
            allowed = "one that gives as many samples in every epoch"
            raise InvalidValue("loader", f"with sampler={name}, of {self.count} samples and then others", allowed)

    def order(self, epoch: int) -> torch.Tensor:
        """Indices of samples, some of them perhaps several times."""
        with rng_kept(), self._seeded(epoch):
            found = torch.tensor([int(index) for index in self.sampler], dtype=torch.int64)
        if not len(found) or found.min() < 0 or found.max() >= self._samples:
            what = f"with sampler={type(self.sampler).__name__}, of {len(found)} samples in epoch {epoch}"
            raise InvalidValue("loader", what, f"one that gives some of the numbers 0 to {self._samples - 1}")
        return found

    @contextmanager
    def _seeded(self, epoch: int) -> Iterator[None]:
        """All generators that the sampler may draw from."""
        reseed_host(self._seed, epoch)
        own = getattr(self.sampler, "generator", None)
        was = own.get_state() if isinstance(own, torch.Generator) else None
        if isinstance(own, torch.Generator):
            own.manual_seed(mixed(self._seed, epoch))
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        try:
            yield
        finally:
            if isinstance(own, torch.Generator) and was is not None:
                own.set_state(was)  # others may draw from it too


def order_of(loader: DataLoader[Any], seed: int) -> bool | Drawn:
    """Whether it shuffles, or what its own sampler draws; refuses what only its batches know."""
    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler:
        raise InvalidValue(
            "loader",
            f"with batch_sampler={type(sampler).__name__}",
            "one with batch_size, and sampler= for the order: the session makes the batches",
        )
    order: Any = sampler.sampler
    samples = len(loader.dataset)  # type: ignore[arg-type]  # map-style: it has a length
    if type(order) is DistributedSampler:
        return bool(order.shuffle)  # its division among ranks is the session's business
    if type(order) is RandomSampler and not order.replacement and order.num_samples == samples:
        return True
    if type(order) is SequentialSampler and len(order) == samples:
        return False
    return Drawn(order, seed, samples)


class HeldOut:
    """A dataset, or a loader of one with its workers, in its own order; the first `most` samples of it."""

    def __init__(self, data: Any, collate: Any, device: torch.device | str | None, most: int | None) -> None:
        dataset: Any = data.dataset if isinstance(data, DataLoader) else data
        for method in ("__len__", "__getitem__"):
            if not hasattr(dataset, method):
                raise InvalidValue("dataset", type(dataset).__name__, f"a map-style dataset, with {method}")
        self._dataset, self._device = dataset, None if device is None else torch.device(device)
        self._of = data if isinstance(data, DataLoader) else DataLoader(dataset, collate_fn=collate)
        self._order = _chosen(self._of)
        self.count = len(self._order) if most is None else min(len(self._order), most)
        if self.count < 1:
            raise InvalidValue("dataset", len(dataset), "at least one sample long")

    def mean(self, model: torch.nn.Module, loss_of: LossOf, rank: int, world: int, at_a_time: int) -> float:
        """The part of one rank in the mean over all samples, in the model's eval mode."""
        low, high = rank * self.count // world, (rank + 1) * self.count // world
        total, done = 0.0, low
        with in_eval_mode(model), torch.no_grad():
            for batch in self._batches(low, high, at_a_time):
                count = min(at_a_time, high - done)
                given = batch if self._device is None else moved(batch, self._device)
                total, done = total + float(loss_of(given)) * count, done + count
        return total / self.count

    def load(self, start: int, count: int) -> Any:
        """A micro-batch of it, in this process."""
        batch = self._of.collate_fn([self._dataset[index] for index in self._order[start : start + count]])
        return batch if self._device is None else moved(batch, self._device)

    def _batches(self, low: int, high: int, at_a_time: int) -> Any:
        if low == high:
            return ()
        loader = self._of
        return DataLoader(
            Subset(self._dataset, self._order[low:high]),
            batch_size=at_a_time,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            worker_init_fn=loader.worker_init_fn,
            pin_memory=loader.pin_memory,
            generator=torch.Generator().manual_seed(0),  # it draws one number, which training is not to miss
        )


def _chosen(loader: DataLoader[Any]) -> Sequence[int]:
    """The samples that it gives: all of them, or those of its own sampler, such as a part that is held out."""
    order = order_of(loader, 0) if type(loader.batch_sampler) is BatchSampler else False
    return order.order(0).tolist() if isinstance(order, Drawn) else range(len(loader.dataset))  # type: ignore[arg-type]  # map-style: it has a length


@contextmanager
def in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Each module is in the mode that it was in afterwards: a script may have some of it in that mode anyway."""
    was = [(each, each.training) for each in model.modules()]
    model.train(False)  # noqa: FBT003 - as torch has it
    try:
        yield
    finally:
        for each, training in was:
            each.training = training
