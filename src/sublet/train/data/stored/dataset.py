"""A stream of the samples under a URI: in shuffled windows, read ahead by threads, and from any sample on.

    list once  ->  blocks in the order of the pass  ->  the part of this shard  ->  windows, shuffled  ->  decode

It begins pass after pass, each in another order, and never ends. Its position is three numbers: the pass, the block
that the window begins with, and how many samples of the window were given.

Objects are counted in units: records, bytes (of lines), or one for a whole file. They are cut into blocks of about a
megabyte, blocks are put into the order of the pass, and each shard has an equal part of all units, in that order.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from sublet.domain.quantity import whole
from sublet.errors import BadInput, InvalidValue
from sublet.machine.objects import Found
from sublet.train.data.samples import mixed
from sublet.train.data.stored.fetching import Fetching, fetching

GROUPS = 64  # of objects, by their keys: what differs is named with those of its group
NAMED = 3
RECORD, LINE, FILE = "record", "line", "file"
BLOCK_BYTES = 1 << 20
LINE_BYTES = 1 << 16  # asked for at a time, beyond the end of a block, until its last line ends
Read = Callable[[Found, int, int], bytes]
KINDS = (RECORD, LINE, FILE)
AHEAD = 8  # blocks, or files, that are asked for before they are wanted


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects, in the order of their keys."""

    uri: str
    objects: tuple[Found, ...]
    digests: tuple[str, ...] = field(init=False, repr=False)  # of each group

    def __post_init__(self) -> None:
        sums = [hashlib.sha256() for _ in range(GROUPS)]
        for found in self.objects:
            sums[_group_of(found.key)].update(f"{found.key}\0{found.size}\0{found.tag}\n".encode())
        object.__setattr__(self, "digests", tuple(each.hexdigest()[:8] for each in sums))

    def __deepcopy__(self, memo: Any) -> ObjectList:
        return self  # nothing of it changes, and there is a copy of the dataset for each shard

    def state(self) -> dict[str, Any]:
        """Digests that tell it from others."""
        return {"objects": len(self.objects), "digests": " ".join(self.digests)}

    def require_same(self, state: Mapping[str, Any]) -> None:
        """BadInput if it is not the one of the state."""
        were = str(state["digests"]).split()
        differ = {group for group, (was, now) in enumerate(zip(were, self.digests, strict=True)) if was != now}
        if not differ:
            return
        names = [found.key for found in self.objects if _group_of(found.key) in differ]
        if not names:
            which = "one that was there is gone"
        else:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            which = f"it is among {', '.join(names[:NAMED])}{more}, or gone"
        raise BadInput(
            self.uri,
            f"{len(self.objects)} objects, of which something was replaced, added or taken away since the checkpoint, "
            f"which was of {state['objects']}: {which}",
            hint="put it back as it was, or give a new checkpoint directory",
        )


def listed(uri: str, suffix: str) -> ObjectList:
    """Asks once."""
    found = tuple(each for each in fetching(uri).list() if each.size and each.key.endswith(suffix))
    if not found:
        ends = f" that ends with {suffix!r}" if suffix else ""
        raise BadInput(uri, f"no object{ends} with any bytes lies under it", hint="name the prefix of the samples")
    return ObjectList(uri, found)


def _group_of(key: str) -> int:
    return hashlib.sha256(key.encode()).digest()[0] % GROUPS


@dataclass(frozen=True, slots=True)
class Span:
    """Units of one object."""

    found: Found
    start: int
    stop: int


class Blocks:
    """Blocks of all objects; the same in every shard."""

    def __init__(self, manifest: ObjectList, each: str, record_bytes: int) -> None:
        self._objects, self._each, self._bytes = manifest.objects, each, record_bytes
        rows: list[tuple[int, int, int]] = []
        for number, found in enumerate(manifest.objects):
            units, step = 1, 1
            if each == RECORD:
                if found.size % record_bytes:
                    allowed = f"whole records of {record_bytes} bytes long, as record_bytes says"
                    raise InvalidValue(f"{manifest.uri}/{found.key}", f"{found.size} bytes", allowed)
                units, step = found.size // record_bytes, max(1, BLOCK_BYTES // record_bytes)
            elif each == LINE:
                units, step = found.size, BLOCK_BYTES
            rows += [(number, start, min(start + step, units)) for start in range(0, units, step)]
        self._rows = np.array(rows, dtype=np.int64)
        self.units = int((self._rows[:, 2] - self._rows[:, 1]).sum())

    def __deepcopy__(self, memo: object) -> Blocks:
        return self  # as a manifest

    def spans(self, shard: int, count: int, number: int, seed: int | None) -> list[Span]:
        """The spans of shard `shard` of `count` in pass `number`; without a seed in the order of the objects."""
        rows = self._rows
        if seed is not None:
            generator = torch.Generator().manual_seed(mixed(seed, number))
            rows = rows[torch.randperm(len(rows), generator=generator).numpy()]
        ends = np.cumsum(rows[:, 2] - rows[:, 1])
        low, high = shard * self.units // count, (shard + 1) * self.units // count
        if low == high:
            return []
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        found = []
        for (at, start, stop), end in zip(
            rows[first : last + 1].tolist(), ends[first : last + 1].tolist(), strict=True
        ):
            begun = end - (stop - start)
            found.append(Span(self._objects[at], start + max(0, low - begun), stop - max(0, end - high)))
        return found

    def range_of(self, span: Span) -> tuple[int, int]:
        """Its bytes; of lines one more, which tells whether one begins at the first."""
        if self._each == FILE:
            return 0, span.found.size
        if self._each == LINE:
            return max(0, span.start - 1), span.stop
        return span.start * self._bytes, span.stop * self._bytes

    def samples(self, span: Span, read: Read) -> list[bytes]:
        """The samples that begin in a span."""
        body = read(span.found, *self.range_of(span))
        if self._each == FILE:
            return [body]
        if self._each == LINE:
            return list(self._lines(span, body, read))
        size = self._bytes
        return [body[at : at + size] for at in range(0, len(body), size)]

    def _lines(self, span: Span, body: bytes, read: Read) -> Iterator[bytes]:
        """Without their ends."""
        if span.start:
            begun = body.find(b"\n") + 1
            if not begun:
                return  # the middle of a long one
            body = body[begun:]
        stop = span.stop
        while body and not body.endswith(b"\n") and stop < span.found.size:
            more = read(span.found, stop, min(stop + LINE_BYTES, span.found.size))
            end = more.find(b"\n") + 1
            stop, body = stop + len(more), body + (more[:end] if end else more)
            if end:
                break
        yield from body.removesuffix(b"\n").split(b"\n") if body else ()


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
        # The order depends on these: with other values the position would mean other samples.
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
        """The position, and what the order depends on."""
        return {"pass": self._pass, "span": self._span, "given": self._given, **self._order, **self._manifest.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; BadInput if the objects, or their order, are not those of then."""
        self._manifest.require_same(state)
        for name, ours in self._order.items():
            if (said := state[name]) != ours:
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
