"""What each shard reads in a pass over all objects, and how samples are found in it.

Objects are counted in units: records, bytes (of lines), or one for a whole file. They are cut into blocks of about a
megabyte, blocks are put into the order of the pass, and each shard has an equal part of all units, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from sublet.errors import InvalidValue
from sublet.machine.objects import Found
from sublet.train.data.samples import mixed
from sublet.train.data.stored.manifest import Manifest

__all__ = ["FILE", "LINE", "RECORD", "Blocks", "Span"]

RECORD, LINE, FILE = "record", "line", "file"
BLOCK_BYTES = 1 << 20
LINE_BYTES = 1 << 16  # asked for at a time, beyond the end of a block, until its last line ends

Read = Callable[[Found, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Span:
    """Units of one object."""

    found: Found
    start: int
    stop: int


class Blocks:
    """Of all objects; the same in every shard."""

    def __init__(self, manifest: Manifest, each: str, record_bytes: int) -> None:
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
        """Of shard `shard` of `count` in pass `number`; in the order of the objects without a seed."""
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
        """Those that begin in it."""
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
