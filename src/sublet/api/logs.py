"""What a rank printed, as a stream: from the beginning or the last lines, and on as it grows; secrets hidden."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from sublet.runtime.spec_json import HIDDEN
from sublet.runtime.views import LogFile

__all__ = ["Mask", "log_stream"]

CHUNK = 1 << 16
POLL_S = 0.1
LEAST_LINE = 8  # letters; a shorter line of a secret says nothing, and would hide half of the log
MOST_TAIL = 1 << 20  # bytes in which the last lines are looked for


class Mask:
    """Replaces secrets in a stream, also one that is cut in two by the border of a chunk."""

    def __init__(self, secrets: Sequence[str]) -> None:
        lines = [line.strip() for text in secrets for line in text.splitlines()]  # a key of many lines, line by line
        whole = [text for text in (*secrets, *(line for line in lines if len(line) >= LEAST_LINE)) if text]
        self.secrets = sorted({text.encode() for text in whole}, key=len, reverse=True)
        self.held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be shown by now."""
        text = self.held + chunk
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN.encode())
        kept = self._begun(text)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        held, self.held = self.held, b""
        return held

    def _begun(self, text: bytes) -> int:
        """Length of the longest end of `text` with which a secret begins."""
        longest = 0
        for secret in self.secrets:
            for length in range(min(len(secret) - 1, len(text)), longest, -1):
                if text.endswith(secret[:length]):
                    longest = length
                    break
        return longest


async def log_stream(
    log: LogFile, *, ended: Callable[[], Awaitable[bool]], follow: bool, tail: int | None = None
) -> AsyncIterator[bytes]:
    """The bytes of the file, masked; with `follow`, until the job has ended and all of it was read."""
    mask = Mask(log.hide)
    over = not follow
    while (file := await asyncio.to_thread(_opened, log.path)) is None:
        if over:
            return
        over = await ended()  # look once more after the end: it may have been written in between
        if not over:
            await asyncio.sleep(POLL_S)
    with file:
        _seek_tail(file, tail)
        last_round = not follow
        while True:
            if chunk := file.read(CHUNK):
                if shown := mask.feed(chunk):
                    yield shown
                continue
            if last_round:
                break
            last_round = await ended()  # read once more after the end: what came in between
            if not last_round:
                await asyncio.sleep(POLL_S)
    if rest := mask.rest():
        yield rest


def _opened(path: str) -> BinaryIO | None:
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        return None


def _seek_tail(file: BinaryIO, tail: int | None) -> None:
    if tail is None:
        return
    size = file.seek(0, 2)
    start = max(0, size - MOST_TAIL)
    file.seek(start)
    block = file.read(size - start)
    lines = block.splitlines(keepends=True)
    file.seek(size - sum(map(len, lines[-tail:])) if tail else size)
