"""Output of a job, as a stream: from the beginning or the last lines, and on as it grows; secrets hidden.

The output of a rank comes from several workers, one after the other, so the stream says where it moves to another one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

from sublet.runtime.controller_api.views import JobLog, LogPart
from sublet.runtime.jobs.spec import HIDDEN
from sublet.runtime.secret_files import UNSEEN, what_to_hide

CHUNK = 1 << 16
POLL_S = 0.1
MOST_CHUNKS = 16  # read at once, of all workers together
LONGEST_LINE = 1 << 20  # bytes in which words are looked for at once
MOST_TAIL = 1 << 20  # bytes in which the last lines are looked for


class Mask:
    """Replaces secrets in a stream, also one that is cut in two by the border of a chunk."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.secrets = what_to_hide(secrets)
        self.held = b""

    def feed(self, chunk: bytes) -> bytes:
        """The part that can be shown by now."""
        text = self.held + chunk
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN.encode())
        kept = self._count_held(text)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> bytes:
        """The rest, at the end of the stream."""
        held, self.held = self.held, b""
        return held

    def _count_held(self, text: bytes) -> int:
        """Length of the longest end of `text` with which a secret begins."""
        longest = 0
        for secret in self.secrets:
            for length in range(min(len(secret) - 1, len(text)), longest, -1):
                if text.endswith(secret[:length]):
                    longest = length
                    break
        return longest


async def log_stream(
    find_parts: Callable[[], Awaitable[JobLog]],
    *,
    ended: Callable[[], Awaitable[bool]],
    follow: bool,
    tail: int | None = None,
    as_json: bool = False,
    rank: int | None = None,
) -> AsyncGenerator[bytes, None]:
    """Bytes of `find_parts`, masked; with `follow`, until the job has ended and all of it was read.

    With `as_json` every line is an object {worker, node, rank, line}. Else a line says where the output moves to
    another worker, and which worker has the `rank` that was asked for from there on.
    """
    output = _JsonOutput() if as_json else _PlainOutput(rank)
    readers: dict[tuple[str, int], _Reader] = {}
    over, first = not follow, True
    while True:
        log = await find_parts()
        for part in log.parts:
            reader = readers.setdefault((part.path, part.start), _Reader(part, log.hide))
            reader.end, reader.ended = part.end, part.ended
        for key in readers.keys() - {(part.path, part.start) for part in log.parts}:
            readers[key].end = readers[key].at  # its file was too long, and begins anew as another part
        if first and tail is not None:
            await asyncio.to_thread(_skip_to_tail, list(readers.values()), tail)
        first = False
        while batch := await asyncio.to_thread(_read_some, list(readers.values())):
            for reader, chunk in batch:
                for before in readers.values():  # how one ended stands before what the next one prints
                    if before is reader:
                        break
                    if before.ended and (shown := _show_rest(before, output, over=False)):
                        yield shown
                if shown := output.show(reader.part, chunk):
                    yield shown
        for reader in readers.values():
            if shown := _show_rest(reader, output, over=over):
                yield shown
        if over:
            return
        over = await ended()  # read once more after the end: what came in between
        if not over:
            await asyncio.sleep(POLL_S)


async def lines_with(words: str, told: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The lines of a stream that hold these words; a to z in any case."""
    wanted, rest = words.encode().lower(), b""
    async with aclosing(told):
        async for chunk in told:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST_LINE:  # it has no end of line, and may never have one
                lines, rest = [*lines, rest], b""
            if found := [line for line in lines if wanted in line.lower()]:
                yield b"\n".join([*found, b""])
    if wanted in rest.lower():
        yield rest


def _read_some(readers: Sequence[_Reader]) -> list[tuple[_Reader, bytes]]:
    """New output, the first worker's first; not too much at once. Nothing = there is no more for now."""
    found: list[tuple[_Reader, bytes]] = []
    for reader in readers:
        while len(found) < MOST_CHUNKS and reader.due and (chunk := reader.read()) is not None:
            found.append((reader, chunk))
    return found


def _show_rest(reader: _Reader, output: _PlainOutput | _JsonOutput, *, over: bool) -> bytes:
    """The rest of a part that is through, and the end of its process."""
    if reader.closed or not (over or reader.ended or not reader.due):
        return b""
    reader.closed = True
    shown = output.show(reader.part, reader.mask.rest(), last=True)
    return shown + output.end(reader.part, reader.ended) if reader.ended else shown


class _Reader:
    """Reads one part on from where it was."""

    def __init__(self, part: LogPart, hide: Sequence[str]) -> None:
        self.part, self.at, self.end = part, part.start, part.end
        self.ended, self.closed = part.ended, False  # how its process ended; whether that was shown
        self.mask = Mask(hide)

    @property
    def due(self) -> bool:
        """Whether more may come."""
        return not self.closed and (self.end is None or self.at < self.end)

    def read(self) -> bytes | None:
        """The next bytes, as they may be shown; None = no more for now. An empty file is there, and says nothing."""
        wanted = CHUNK if self.end is None else min(CHUNK, self.end - self.at)
        try:
            with Path(self.part.path).open("rb") as file:
                if self.end is None and file.seek(0, 2) < self.at:
                    self.at = 0  # it was too long, and begins anew
                file.seek(self.at)
                chunk = file.read(wanted)
        except FileNotFoundError:
            return None
        self.at += len(chunk)
        return self.mask.feed(chunk.replace(UNSEEN, b"")) if chunk else None

    def lines_before(self, most: int) -> list[int]:
        """Lengths of the last lines that are there already, `most` at the most."""
        try:
            with Path(self.part.path).open("rb") as file:
                size = file.seek(0, 2)
                size = size if self.end is None else min(size, self.end)
                start = max(self.part.start, size - MOST_TAIL)
                file.seek(start)
                lines = file.read(max(0, size - start)).splitlines(keepends=True)
        except FileNotFoundError:
            return []
        self.at = max(self.part.start, size)
        return list(map(len, lines[-most:])) if most else []


def _skip_to_tail(readers: Sequence[_Reader], tail: int) -> None:
    """Past all but the last lines, which may lie in more than one file."""
    for reader in reversed(readers):
        lengths = reader.lines_before(tail)
        reader.at -= sum(lengths)
        reader.closed = bool(reader.ended) and not lengths  # nothing of it is shown, so neither is its end
        tail -= len(lengths)


class _PlainOutput:
    """As it was printed, with a line where another worker goes on."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._last: LogPart | None = None
        self._met: set[str] = set()
        self._end = b"\n"

    def show(self, part: LogPart, chunk: bytes, *, last: bool = False) -> bytes:
        """With a heading, if it is not from where the last came."""
        del last
        if not chunk:
            return b""
        heading = b""
        if self._last is not None and part.path != self._last.path:
            heading = (b"" if self._end == b"\n" else b"\n") + f"-- {self._name_worker(part)} --\n".encode()
        elif self._last is None and self._rank is None:
            heading = f"-- {self._name_worker(part)} --\n".encode()
        self._last, self._end = part, chunk[-1:]
        self._met.add(part.path)
        return heading + chunk

    def end(self, part: LogPart, how: str) -> bytes:
        """The process ended by itself."""
        cut = b"" if self._end == b"\n" else b"\n"
        self._last, self._end = part, b"\n"
        return cut + f"-- worker {part.worker_id} on node {part.node_id} ended: {how} --\n".encode()

    def _name_worker(self, part: LogPart) -> str:
        who = f"worker {part.worker_id} on node {part.node_id}" if part.worker_id else f"rank {part.rank}"
        if self._rank is None:
            return f"{who}, rank {part.rank}" if part.worker_id else who
        return f"{who} again" if part.path in self._met else f"rank {self._rank} is {who} from here"


class _JsonOutput:
    """A line of JSON per line."""

    def __init__(self) -> None:
        self._begun: dict[str, bytes] = {}

    def show(self, part: LogPart, chunk: bytes, *, last: bool = False) -> bytes:
        """The lines that are complete; at the end also one that is not."""
        *lines, rest = (self._begun.pop(part.path, b"") + chunk).split(b"\n")
        if last and rest:
            lines.append(rest)
        elif rest:
            self._begun[part.path] = rest
        return b"".join(self._objects(part, lines))

    def end(self, part: LogPart, how: str) -> bytes:
        """The process ended by itself."""
        facts = {"worker": part.worker_id, "node": part.node_id, "rank": part.rank, "ended": how}
        return json.dumps(facts).encode() + b"\n"

    def _objects(self, part: LogPart, lines: Sequence[bytes]) -> Iterator[bytes]:
        for line in lines:
            text = line.decode("utf-8", errors="replace").removesuffix("\r")
            facts = {"worker": part.worker_id, "node": part.node_id, "rank": part.rank, "line": text}
            yield json.dumps(facts, ensure_ascii=False).encode() + b"\n"
