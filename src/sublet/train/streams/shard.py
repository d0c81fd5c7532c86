"""One virtual shard of a stream, in the process that reads it.

It has a copy of the dataset, and is to it what a worker of a DataLoader is: `torch.utils.data.get_worker_info()` says
its number and how many there are, and `worker_init_fn` is called for it. What it draws at random follows from the seed,
its number and the sample. Some samples stay in memory for a while, because those of a step that is taken again, and
those that were read ahead when the width changed, are wanted once more.

What a pass draws as it begins (an order, say), a generator draws with its first sample. So a pass that goes on from a
mark draws with its first sample what it drew at its beginning, and that sample is passed over: a mark is one before
what is wanted.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.errors import InvalidValue
from sublet.train.data.samples import mixed
from sublet.train.numerics.seeds import reseed_host
from sublet.train.private import answered_for

__all__ = ["Mark", "Shard", "copied", "has_state"]

Mark = Mapping[str, Any]  # "position", "passes", and the "state" of "dataset" and "iterator" there
BEFORE_ANY = 2**62  # in place of the number of a sample: what is drawn when a pass begins


@dataclass(slots=True, kw_only=True)
class ShardInfo:
    """As torch's WorkerInfo; it remembers whether it was asked."""

    number: int
    num_workers: int
    seed: int
    dataset: Any
    asked: bool = False
    rng: Any = None
    worker_method: str = "multiprocessing"

    @property
    def id(self) -> int:
        """Which shard this is."""
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
        self._info = self._info_of(dataset)

    @property
    def asked(self) -> bool:
        """Whether the dataset has asked which shard it is."""
        return self._info.asked

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
        """Where it is, if the dataset can say it."""
        if self.position != self._end or not (has_state(self._dataset) or has_state(self._iterator)):
            return None
        with answered_for(self._info):
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
        self._info = self._info_of(self._dataset)
        reseed_host(self._seed, self._number, BEFORE_ANY, self._passes)
        with answered_for(self._info):
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
                with answered_for(self._info):
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

    def _info_of(self, dataset: Any) -> ShardInfo:
        seed = mixed(self._seed, self._number)
        return ShardInfo(number=self._number, num_workers=self._count, seed=seed, dataset=dataset)


def has_state(thing: Any) -> bool:
    """Whether it can say where it is, and go on from there, as torchdata has it."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def copied(dataset: Any) -> Any:
    """One of its own for a shard; arrays that nobody can write to (a file that is mapped) are shared."""
    memo = {
        id(value): value
        for value in vars(dataset).values()
        if isinstance(value, np.ndarray) and not value.flags.writeable
    }
    return copy.deepcopy(dataset, memo)
