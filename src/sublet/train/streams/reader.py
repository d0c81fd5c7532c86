"""All shards that one process reads: those of a worker's lanes, or of one wave of them in a loader's worker."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sublet.errors import InvalidValue
from sublet.train.streams.shard import Mark, Shard

__all__ = ["Collated", "Dealing", "Reader", "Samples", "Task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """Which shard of a stream each sample of a step comes from, and who reads it: the same for the whole training.

        step 0   lane 0: shard 0 | lane 1: shard 2 | lane 2: shard 4      lanes = 3: a worker has some of them, in order
        step 1   lane 0: shard 1 | lane 1: shard 3 | lane 2: shard 5      waves = 2: a loader's worker reads one of them
        step 2   lane 0: shard 0 | ...

    It is as if PyTorch read the stream on `lanes` ranks with a loader of `waves` workers each, whatever the width is.
    How far each shard has been read follows from the number of steps alone.
    """

    lanes: int
    waves: int
    batch: int

    @property
    def shards(self) -> int:
        """In all."""
        return self.lanes * self.waves

    def lanes_of(self, rank: int, world: int) -> range:
        """Those of one worker; none if there are more workers than lanes."""
        return range(rank * self.lanes // world, (rank + 1) * self.lanes // world)

    def places(self, lane: int) -> range:
        """The samples of a step that come from it, by their place in the step."""
        return range(lane * self.batch // self.lanes, (lane + 1) * self.batch // self.lanes)

    def shard(self, step: int, lane: int) -> int:
        """Which shard a lane reads in this step."""
        return lane * self.waves + step % self.waves

    def position(self, step: int, lane: int) -> int:
        """Samples of that shard in the steps before."""
        return step // self.waves * len(self.places(lane))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A micro-batch that is to be read."""

    start: int  # of the whole training
    count: int
    lanes: range  # all of this worker: shards of others are closed
    marks: Mapping[int, Mark]  # by shard: where the dataset was before
    marked: bool  # say where it is before the last of this


class Samples(list[Any]):
    """Of a task, and where their shards are now."""

    marks: dict[int, Mark]


class Reader:
    """Takes tasks, as a dataset in a loader's worker does."""

    def __init__(
        self, dataset: Any, dealing: Dealing, *, seed: int, init: Callable[[int], None] | None, ahead: int, speaks: bool
    ) -> None:
        self._dataset, self._dealing, self._seed, self._init = dataset, dealing, seed, init
        self._ahead, self._speaks = ahead, speaks  # micro-batches that may be read and not be wanted
        self._shards: dict[int, Shard] = {}
        self._looked = False  # whether its shards differ
        self._said: set[str] = set()

    def __getitems__(self, tasks: list[Task]) -> Samples:
        return self.read(tasks[0])

    def __getitem__(self, task: Task) -> Samples:
        return self.read(task)

    def read(self, task: Task) -> Samples:
        """In the order of the step."""
        dealing, found = self._dealing, Samples()
        found.marks = {}
        step, first = divmod(task.start, dealing.batch)
        self._close_others(task.lanes)
        for lane in task.lanes:
            places = dealing.places(lane)
            low, high = max(first, places.start), min(first + task.count, places.stop)
            if low >= high:
                continue
            number = dealing.shard(step, lane)
            shard = self._shard(number, len(places))
            position = dealing.position(step, lane) + low - places.start
            shard.seek(position, task.marks.get(number))
            found.extend(shard.read() for _ in range(high - low - 1))
            if task.marked and high == places.stop and (mark := shard.mark()) is not None:
                found.marks[number] = mark  # one before the next: see Shard
            found.append(shard.read())
        if not self._looked and len(self._shards) > 1:
            self._looked = True
            self._require_different(found, step, task)
        return found

    def _shard(self, number: int, samples: int) -> Shard:
        if number not in self._shards:
            self._shards[number] = Shard(
                self._dataset,
                number,
                self._dealing.shards,
                seed=self._seed,
                init=self._init,
                keep=samples * (self._ahead + 2),
                say=self._say,
            )
        return self._shards[number]

    def _say(self, kind: str, text: str) -> None:
        """Once of each kind."""
        if self._speaks and kind not in self._said:
            self._said.add(kind)
            print(f"sublet: {text}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process

    def _close_others(self, lanes: range) -> None:
        for number in [each for each in self._shards if each // self._dealing.waves not in lanes]:
            del self._shards[number]

    def _require_different(self, found: Samples, step: int, task: Task) -> None:
        """A dataset that never asks which shard it is gives each sample once for every shard."""
        if any(shard.asked for shard in self._shards.values()) or step >= self._dealing.waves:
            return
        first = task.start % self._dealing.batch
        heads = [self._dealing.places(lane).start - first for lane in task.lanes]
        texts = [pickle.dumps(found[at]) for at in heads if 0 <= at < len(found)]
        if len(texts) > 1 and len(set(texts)) == 1:
            raise InvalidValue(
                "loader",
                f"of {type(self._dataset).__name__}, whose shards all begin with the same sample",
                "of a dataset that asks torch.utils.data.get_worker_info() in __iter__, and gives the part of "
                "worker `id` of `num_workers` (see 'Streams' in the guide)",
            )


class Collated:
    """The samples of a task as one batch, beside where their shards are."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Samples) -> tuple[Any, dict[int, Mark]]:
        """As a loader's worker does."""
        return self._collate(list(samples)), samples.marks
