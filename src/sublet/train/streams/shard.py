"""Virtual shards of a stream, in the process that reads them.

A shard has a copy of the dataset, and is to it as a worker of a DataLoader: `torch.utils.data.get_worker_info()` gives
its number and their count, and `worker_init_fn` is called for it. Random numbers follow from the seed, its number and
the sample. Recent samples stay in memory, for steps that are repeated and after a change of the number of workers.

A generator draws the random numbers of a pass (an order, say) with its first sample. So a pass that goes on from a mark
draws these with its first sample, which is skipped: a mark is one before the wanted sample.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.errors import InvalidValue
from sublet.train.data.samples import mixed
from sublet.train.numerics.seeds import reseed_host
from sublet.train.private import answered_for

Mark = Mapping[str, Any]  # "position", "passes", and the "state" of "dataset" and "iterator" there
BEFORE_ANY = 2**62  # in place of the number of a sample: what is drawn when a pass begins


@dataclass(slots=True, kw_only=True)
class ShardInfo:
    """Like torch's WorkerInfo; it remembers whether it was asked."""

    number: int
    num_workers: int
    seed: int
    dataset: Any
    asked: bool = False
    rng: Any = None
    worker_method: str = "multiprocessing"

    @property
    def id(self) -> int:
        """The number of this shard."""
        self.asked = True
        return self.number


class Shard:
    """Samples `position`, `position + 1`, ... of shard `number` of `count`."""

    def __init__(
        self,
        dataset: Any,
        number: int,
        count: int,
        *,
        seed: int,
        init: Callable[[int], None] | None,
        keep: int,
        say: Callable[[str, str], None],
    ) -> None:
        self._pristine, self._number, self._count, self._seed, self._init = dataset, number, count, seed, init
        self._say = say
        self._recent: deque[Any] = deque(maxlen=keep)  # the last before `_end`
        self.position = self._end = self._passes = self._begun = 0  # `_begun`: where the pass under way began
        self._fresh = False  # nothing was read since the pass began, or went on from a mark
        self._dataset: Any = None
        self._iterator: Iterator[Any] | None = None
        self.info = self._made_info(dataset)

    def seek(self, position: int, mark: Mark | None) -> None:
        """The next sample is this one; from a mark on the way, if there is one that is nearer."""
        if self._end - len(self._recent) <= position <= self._end and self._iterator is not None:
            self.position = position
            return
        at = 0 if mark is None else int(mark["position"])
        usable = mark is not None and (at < position or at == position == mark["begun"])
        if position < self._end or self._iterator is None or (usable and at > self._end):
            self._begin(mark if usable else None)
        skipped = position - self._end
        if skipped and not (has_state(self._dataset) or has_state(self._iterator)):
            self._say(
                "skipped",
                f"{type(self._pristine).__name__} has no state_dict and load_state_dict: {skipped} samples of a shard "
                "are read again and passed over, and so in all shards that come to this worker",
            )
        self._recent.clear()
        self.position = self._end
        while self.position < position:
            self.read()
        self._recent.clear()  # the first may have drawn what another would

    def read(self) -> Any:
        """The next sample."""
        if self.position == self._end:
            self._recent.append(self._next())
            self._end += 1
        sample = self._recent[self.position - self._end]
        self.position += 1
        return copy.copy(sample) if isinstance(sample, dict | list) else sample  # some collate functions empty it

    def mark(self) -> Mark | None:
        """The position of the dataset, if it can give it."""
        if self.position != self._end or not (has_state(self._dataset) or has_state(self._iterator)):
            return None
        with answered_for(self.info):
            iterator: Any = self._iterator
            found = {
                name: copy.deepcopy(each.state_dict()) if has_state(each) else None
                for name, each in (("dataset", self._dataset), ("iterator", iterator))
            }
        return {"position": self._end, "passes": self._passes, "begun": self._begun, "state": found}

    def _begin(self, mark: Mark | None) -> None:
        """A pass over a fresh copy, from its beginning or from where it was at the mark."""
        state: Mapping[str, Any] = {} if mark is None else mark["state"]
        self._end, self._passes, self._begun = (
            (0, 0, 0) if mark is None else (int(mark["position"]), int(mark["passes"]), int(mark["begun"]))
        )
        self._open(state)

    def _open(self, state: Mapping[str, Any]) -> None:
        self._dataset = copied(self._pristine)
        self.info = self._made_info(self._dataset)
        reseed_host(self._seed, self._number, BEFORE_ANY, self._passes)
        with answered_for(self.info):
            if self._init is not None:
                self._init(self._number)
            if state.get("dataset") is not None:
                self._dataset.load_state_dict(copy.deepcopy(state["dataset"]))
            iterator: Any = iter(self._dataset)
            if state.get("iterator") is not None:
                iterator.load_state_dict(copy.deepcopy(state["iterator"]))
        self._iterator, self._fresh = iterator, True

    def _next(self) -> Any:
        for _ in range(2):
            assert self._iterator is not None  # noqa: S101 - `seek` comes first
            reseed_host(self._seed, self._number, self._begun if self._fresh else self._end)
            self._fresh = False
            try:
                with answered_for(self.info):
                    return next(self._iterator)
            except StopIteration:
                if self._end == self._begun:
                    break
                if not self._passes:
                    name = type(self._pristine).__name__
                    self._say(
                        "ended",
                        f"shard {self._number} of {self._count} of {name} ended after {self._end} samples and begins "
                        "anew, as will others",
                    )
                self._passes, self._begun = self._passes + 1, self._end
                self._open({})
        raise InvalidValue(
            "shards",
            f"{self._count}: shard {self._number} of {type(self._pristine).__name__} gave no sample",
            "so few (times num_workers) that the dataset has something for each: files, rows or ranges",
        )

    def _made_info(self, dataset: Any) -> ShardInfo:
        seed = mixed(self._seed, self._number)
        return ShardInfo(number=self._number, num_workers=self._count, seed=seed, dataset=dataset)


def has_state(thing: Any) -> bool:
    """Whether it can say where it is, and go on from there, as torchdata has it."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def copied(dataset: Any) -> Any:
    """A copy for a shard, which shares read-only arrays (a mapped file)."""
    memo = {
        id(value): value
        for value in vars(dataset).values()
        if isinstance(value, np.ndarray) and not value.flags.writeable
    }
    return copy.deepcopy(dataset, memo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """The shard of each sample of a step, and the reader of each shard: the same for the whole training.

        step 0   lane 0: shard 0 | lane 1: shard 2 | lane 2: shard 4      lanes = 3: a worker has some of them, in order
        step 1   lane 0: shard 1 | lane 1: shard 3 | lane 2: shard 5      waves = 2: a loader's worker reads one of them
        step 2   lane 0: shard 0 | ...

    It is as if PyTorch read the stream on `lanes` ranks with a loader of `waves` workers each, at any number of
    workers. The position of each shard follows from the number of steps alone.
    """

    lanes: int
    waves: int
    batch: int

    def lanes_of(self, rank: int, world: int) -> range:
        """The lanes of one worker; none if there are more workers than lanes."""
        return range(rank * self.lanes // world, (rank + 1) * self.lanes // world)

    def places(self, lane: int) -> range:
        """The samples of a step that come from it, by their place in the step."""
        return range(lane * self.batch // self.lanes, (lane + 1) * self.batch // self.lanes)

    def shard(self, step: int, lane: int) -> int:
        """The shard that a lane reads in this step."""
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


class TaskSamples(list[Any]):
    """The samples of a task, and the positions of their shards."""

    marks: dict[int, Mark]


class Reader:
    """All shards that one process reads, as a dataset in a loader's worker: its tasks are its indices."""

    def __init__(
        self, dataset: Any, dealing: Dealing, *, seed: int, init: Callable[[int], None] | None, ahead: int, speaks: bool
    ) -> None:
        self._dataset, self._dealing, self._seed, self._init = dataset, dealing, seed, init
        self._ahead, self._speaks = ahead, speaks  # micro-batches that may be read and not be wanted
        self._shards: dict[int, Shard] = {}
        self._looked = False  # whether its shards differ
        self._said: set[str] = set()

    def __getitems__(self, tasks: list[Task]) -> TaskSamples:
        return self.read(tasks[0])

    def __getitem__(self, task: Task) -> TaskSamples:
        return self.read(task)

    def read(self, task: Task) -> TaskSamples:
        """The samples of a task, in the order of the step."""
        dealing, found = self._dealing, TaskSamples()
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
                self._dealing.lanes * self._dealing.waves,
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

    def _require_different(self, found: TaskSamples, step: int, task: Task) -> None:
        """Refuse a dataset that never asks for its shard: it gives each sample once for every shard."""
        if any(shard.info.asked for shard in self._shards.values()) or step >= self._dealing.waves:
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

    def __call__(self, samples: TaskSamples) -> tuple[Any, dict[int, Mark]]:
        """For a loader's worker."""
        return self._collate(list(samples)), samples.marks
