"""The samples of a stream, as a session takes them: its steps have numbers, and its epoch has no end.

A loader's workers read one wave each, ahead as long as nothing changes. After a change (of workers or micro-batch, or
where a step is repeated) samples that were read ahead are dropped, and each shard seeks its position. A shard that
comes to another worker goes on from its last mark: now and then all members exchange marks of their shards, and marks
are part of the state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from sublet.errors import BadInput, InvalidValue
from sublet.train.checkpoint.snapshot import require_storable
from sublet.train.data.loading import NO_END, fed
from sublet.train.data.samples import MicroBatch, cut_up, moved
from sublet.train.link.peers import PeerGroup, talking
from sublet.train.numerics.seeds import rng_kept
from sublet.train.sessions.fitness import STREAM, Asked, check_fits
from sublet.train.sessions.options import Options
from sublet.train.state.state import broadcast
from sublet.train.streams.shard import Collated, Dealing, Mark, Reader, Task, copied

MARKED_EVERY = 100  # steps


def is_stream(data: Any) -> bool:
    """Whether it has samples one after the other, and no numbers for them."""
    return isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset)


def streamed_of(data: Any, options: Options, device: torch.device | None) -> Streamed:
    """The samples of an IterableDataset, or of a loader of one; InvalidValue if they cannot be."""
    loader = data if isinstance(data, DataLoader) else DataLoader(data)
    _check(loader, options)
    waves = max(1, loader.num_workers)
    dealing = Dealing(lanes=min(options.shards, options.global_batch), waves=waves, batch=options.global_batch)
    return Streamed(loader, dealing, options, device)


def _check(loader: DataLoader[Any], options: Options) -> None:
    check_fits(STREAM, Asked(options))
    if loader.batch_size is None:
        raise InvalidValue("loader", "with batch_size=None", "one with batch_size: the session makes the batches")
    widest = int(os.environ.get("SUBLET_MAX_WORKERS", os.environ.get("WORLD_SIZE", "1")))
    if options.shards < min(widest, options.global_batch):
        raise InvalidValue("shards", options.shards, f"at least {widest}, or some of so many workers have no samples")
    try:
        copied(loader.dataset)
    except Exception as error:
        raise InvalidValue(
            "loader",
            f"of {type(loader.dataset).__name__}, which cannot be copied ({error})",
            "of a dataset that opens files and connections in __iter__: each shard has a copy of it",
        ) from error


class Streamed:
    """See `Samples`; of a stream."""

    count = NO_END

    def __init__(
        self, loader: DataLoader[Any], dealing: Dealing, options: Options, device: torch.device | None
    ) -> None:
        self._dealing, self._device, self._steps = dealing, device, options.steps or 0
        self._shared: dict[int, Mark] = {}  # that all members know, and a checkpoint has
        self._own: dict[int, Mark] = {}  # since then, of what was given
        self._step: tuple[int, int, int, int | None] = (0, 0, 1, None)  # the present one: offset, rank, world, micro
        self._planned: Iterator[MicroBatch] = iter(())
        self._looked = False
        facts: dict[str, Any] = {"seed": options.seed, "init": loader.worker_init_fn}
        facts["ahead"] = (loader.prefetch_factor or 2) if loader.num_workers else 0
        readers = [Reader(loader.dataset, dealing, **facts, speaks=not wave) for wave in range(dealing.waves)]
        collate = options.collate or loader.collate_fn
        self._sources = [_Source(loader, reader, collate, options.seed) for reader in readers]

    def pieces(self, offset: int, size: int, rank: int, world: int, micro_batch: int | None) -> Iterator[MicroBatch]:
        """The micro-batches of one rank for the step from `offset`; none if it has no lane. `size` is ever the same."""
        assert size == self._dealing.batch  # noqa: S101 - the batch of a stream is fixed, and its epoch has no end
        self._step = (offset, rank, world, micro_batch)
        return self._pieces(*self._step)

    def holders(self, size: int, world: int) -> int:
        """Ranks that have any samples."""
        return min(size, self._dealing.lanes, world)

    def load(self, epoch: int, piece: MicroBatch) -> Any:
        """The samples of a micro-batch, collated."""
        del epoch  # there is one
        if next(self._planned, None) != piece:
            self._plan(piece)
        batch, marks = self._sources[self._step_of(piece) % self._dealing.waves].next()
        self._own |= marks
        return batch if self._device is None else moved(batch, self._device)

    # ------------------------------------------------------------------------------------------- what is to be read

    def _plan(self, first: MicroBatch) -> None:
        """From this piece on, endless if nothing changes."""
        self._planned = self._from(first, *self._step)
        next(self._planned)
        for wave, source in enumerate(self._sources):
            source.start(self._tasks(wave, first, *self._step))

    def _pieces(self, offset: int, rank: int, world: int, micro_batch: int | None) -> Iterator[MicroBatch]:
        lanes = self._dealing.lanes_of(rank, world)
        if lanes:
            low, high = self._dealing.places(lanes[0]).start, self._dealing.places(lanes[-1]).stop
            yield from cut_up(offset + low, offset + high, micro_batch)

    def _from(
        self, first: MicroBatch, offset: int, rank: int, world: int, micro_batch: int | None
    ) -> Iterator[MicroBatch]:
        while True:
            pieces = self._pieces(offset, rank, world, micro_batch)
            yield from (piece for piece in pieces if piece.start >= first.start)
            offset += self._dealing.batch

    def _tasks(
        self, wave: int, first: MicroBatch, offset: int, rank: int, world: int, micro_batch: int | None
    ) -> Iterator[Task]:
        lanes, marks = self._dealing.lanes_of(rank, world), self._nearest(offset)
        for piece in self._from(first, offset, rank, world, micro_batch):
            step = self._step_of(piece)
            if step >= self._steps:
                return
            if step % self._dealing.waves == wave:
                ours = {self._dealing.shard(step, lane) for lane in lanes}
                yield Task(
                    start=piece.start,
                    count=piece.count,
                    lanes=lanes,
                    marks={number: marks.pop(number) for number in ours & marks.keys()},
                    marked=step % self._every < self._dealing.waves,
                )

    def _nearest(self, offset: int) -> dict[int, Mark]:
        """Marks that are not past the wanted position."""
        found, step = {}, offset // self._dealing.batch
        for number in self._shared | self._own:
            lane, wave = divmod(number, self._dealing.waves)
            comes = step + (wave - step) % self._dealing.waves  # the next step that reads it
            wanted = self._dealing.position(comes, lane)
            marks = [each[number] for each in (self._shared, self._own) if number in each]
            if near := [mark for mark in marks if mark["position"] <= wanted]:
                found[number] = max(near, key=lambda mark: int(mark["position"]))
        return found

    def _step_of(self, piece: MicroBatch) -> int:
        return piece.start // self._dealing.batch

    # ------------------------------------------------------------------------------------------- what is kept

    @property
    def _every(self) -> int:
        return max(MARKED_EVERY, 2 * self._dealing.waves)

    def exchange(self, group: PeerGroup, steps: int) -> None:
        """Before every step, by all members: now and then they exchange the positions of their shards. Broken."""
        if steps % self._every != self._dealing.waves:
            return
        if not self._looked:
            self._looked = True
            require_storable({"stream": self._own})  # what cannot be kept is an error now, not at a checkpoint
        found = [self._own]
        if group.world > 1:
            with talking():
                ours: list[Any] = [self._own if rank == group.rank else None for rank in range(group.world)]
                found = [broadcast(group, rank, each) for rank, each in enumerate(ours)]
        for marks in found:
            self._shared |= marks
        self._own = {}

    def state_dict(self) -> dict[str, Any]:
        """See State."""
        dealing = self._dealing
        facts = {"shards": dealing.lanes, "num_workers": dealing.waves, "global_batch": dealing.batch}
        return {**facts, "marks": self._shared}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A state that `check` accepted."""
        self._shared, self._own, self._planned = dict(state["marks"]), {}, iter(())

    def check(self, state: Mapping[str, Any] | None) -> None:
        """BadInput if the stream was divided otherwise: its position would then mean other samples."""
        for name, ours in self.state_dict().items():
            if name != "marks" and (state or {}).get(name) != ours:
                said = None if state is None else state.get(name)
                hint = f"train with {name}={said}, or give a new checkpoint directory"
                raise BadInput("checkpoint", f"of a stream with {name}={said}, this has {name}={ours}", hint=hint)


class _Source:
    """Reads in a loader's worker; or in this process, whose random numbers stay as they are."""

    def __init__(self, loader: DataLoader[Any], reader: Reader, collate: Any, seed: int) -> None:
        self._tasks: Iterator[Task] = iter(())
        self._coming: Iterator[Any] = iter(())
        self._kept, workers = nullcontext if loader.num_workers else rng_kept, min(1, loader.num_workers)
        self._loader = fed(loader, reader, self, Collated(collate), seed, workers=workers, init=None)

    def __iter__(self) -> Iterator[list[Task]]:
        """Tasks, as a batch sampler."""
        return ([task] for task in self._tasks)

    def start(self, tasks: Iterator[Task]) -> None:
        """Read these from now on; samples that were read ahead are dropped."""
        self._tasks = tasks
        self._coming = iter(self._loader)

    def next(self) -> tuple[Any, dict[int, Mark]]:
        """The samples of the next task, and marks."""
        with self._kept():
            batch, marks = next(self._coming)
        return batch, marks
