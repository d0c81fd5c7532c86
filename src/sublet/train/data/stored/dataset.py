"""A stream of the samples under a URI: in shuffled windows, read ahead by threads, and from any sample on.

    list once  ->  blocks in the order of the pass  ->  the part of this shard  ->  windows, shuffled  ->  decode

It begins pass after pass, each in another order, and never ends. Where it is takes three numbers: the pass, the block
that the window begins with, and how many samples of the window were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from sublet.domain.quantity import whole
from sublet.errors import BadInput, InvalidValue
from sublet.machine.objects import Found
from sublet.train.data.samples import mixed
from sublet.train.data.stored.fetching import Fetching, fetching
from sublet.train.data.stored.manifest import listed
from sublet.train.data.stored.portions import FILE, LINE, RECORD, Blocks, Span

__all__ = ["Stored"]

KINDS = (RECORD, LINE, FILE)
AHEAD = 8  # blocks, or files, that are asked for before they are wanted


class Stored(IterableDataset[Any]):
    """See `sublet.train.dataset`, which makes one."""

    def __init__(
        self,
        uri: str,
        each: str,
        *,
        record_bytes: int | None,
        decode: Callable[[bytes], Any] | None,
        suffix: str,
        window: int,
        shuffle: bool,
        seed: int,
    ) -> None:
        if each not in KINDS:
            raise InvalidValue("each", each, " or ".join(repr(kind) for kind in KINDS))
        if (each == RECORD) != (record_bytes is not None):
            raise InvalidValue("record_bytes", record_bytes, "given with each='record', and with no other")
        if record_bytes is not None:
            whole("record_bytes", record_bytes, 1)
        whole("window", window, 1)
        self._manifest = listed(uri.rstrip("/"), suffix)
        self._blocks = Blocks(self._manifest, each, record_bytes or 0)
        self._decode, self._seed, self._shuffle = decode, seed, shuffle
        self._window = 1 if each == FILE else window  # whole files are in a random order already
        self._pass = self._span = self._given = 0
        # By which the order is made: with others nobody could say which samples are behind us.
        self._order = {
            "each": each,
            "record_bytes": record_bytes or 0,
            "window": self._window,
            "shuffle": int(shuffle),
            "seed": seed,
        }
        self.samples = None if each == LINE else self._blocks.units  # in a pass, if that is known

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        shard, count = (0, 1) if info is None else (info.id, info.num_workers)
        while True:
            some = self._span > 0 or self._given > 0
            for sample in self._samples(shard, count):
                some = True
                yield sample if self._decode is None else self._decode(sample)
            if not some:
                return  # there are more shards than samples
            self._pass, self._span, self._given = self._pass + 1, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"pass": self._pass, "span": self._span, "given": self._given, **self._order, **self._manifest.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; BadInput if the objects, or their order, are not those of then."""
        self._manifest.require_same(state)
        for name, ours in self._order.items():
            said = state.get(name, ours)  # one of an earlier version does not say
            if said != ours:
                hint = f"read with {name}={said!r}, or give a new checkpoint directory"
                why = f"of samples with {name}={said!r}, this has {name}={ours!r}"
                raise BadInput("checkpoint", why, hint=hint)
        self._pass, self._span, self._given = int(state["pass"]), int(state["span"]), int(state["given"])

    def _samples(self, shard: int, count: int) -> Iterator[bytes]:
        """The rest of the pass."""
        spans = self._blocks.spans(shard, count, self._pass, self._seed if self._shuffle else None)
        coming = self._coming(spans[self._span :])
        while self._span < len(spans):
            window: list[bytes] = []
            end = self._span
            while end < len(spans) and len(window) < self._window:
                window += next(coming)
                end += 1
            order = list(range(len(window)))
            if self._shuffle:
                generator = torch.Generator().manual_seed(mixed(self._seed, self._pass, shard, self._span))
                order = torch.randperm(len(window), generator=generator).tolist()
            for at in order[self._given :]:
                self._given += 1
                yield window[at]
            self._span, self._given = end, 0

    def _coming(self, spans: list[Span]) -> Iterator[list[bytes]]:
        """The samples of each, some of them asked for before they are wanted."""
        source, asked, rest = fetching(self._manifest.uri), deque[Ahead](), iter(spans)
        for span in spans:
            while len(asked) < AHEAD and (following := next(rest, None)) is not None:
                asked.append(Ahead(source, self._blocks, following))
            yield self._blocks.samples(span, asked.popleft().read)


class Ahead:
    """The first range that a span needs is on its way; what it needs beyond that is asked for then."""

    def __init__(self, source: Fetching, blocks: Blocks, span: Span) -> None:
        self._source = source
        self._range = blocks.range_of(span)
        self._future: Future[bytes] = source.ask(span.found, *self._range)

    def read(self, found: Found, start: int, stop: int) -> bytes:
        """A range of the object."""
        if (start, stop) == self._range:
            return self._future.result()
        return self._source.ask(found, start, stop).result()
