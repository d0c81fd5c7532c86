"""Output of workers on a node whose disk the controller does not see: sent to it, piece by piece, as far as it has it.

One piece of each worker is under way at a time, so that nothing else on the line is late by more; what was not answered
is sent again. The last of it goes ahead of the news of the worker's end.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass

from sublet.machine.wall import Wall
from sublet.runtime.agent.disk import Disk
from sublet.wire.travel import Kept, Printed

__all__ = ["LogStreams"]

PIECE_BYTES = 64 << 10
LAST_PIECES = 16  # of a worker that ends, without waiting for an answer
LOOK_S = 0.5
AGAIN_S = 10.0  # without an answer
MOST_ENDED = 64  # workers that have ended whose last words are still to be sent


@dataclass(slots=True)
class _Stream:
    path: str
    kept: int = 0  # bytes, at the controller
    sent: int = 0  # ... and on their way there
    sent_s: float = 0.0  # when the last piece went
    ended: bool = False


class LogStreams:
    """The log streams of one node."""

    def __init__(self, disk: Disk, wall: Wall, say: Callable[[Printed], None]) -> None:
        self._disk, self._wall, self._say = disk, wall, say
        self._streams: dict[str, _Stream] = {}
        self._look_s = float("inf")

    def add(self, worker_id: str, path: str) -> None:
        """From now on."""
        self._streams[worker_id] = _Stream(path)
        self._look_s = min(self._look_s, self._wall.monotonic() + LOOK_S)

    def finish(self, worker_id: str) -> None:
        """It has ended, or is about to say something that its output comes before."""
        if (stream := self._streams.get(worker_id)) is None:
            return
        at = stream.kept
        for _ in range(LAST_PIECES):
            if not (data := self._piece(stream, at)):
                break
            self._send(worker_id, stream, at, data)
            at += len(data)

    def let_go(self, worker_id: str) -> None:
        """It has ended: nothing comes after what there is."""
        self.finish(worker_id)
        if (stream := self._streams.get(worker_id)) is not None:
            stream.ended = True
            ended = [each for each, other in self._streams.items() if other.ended]
            for each in ended[:-MOST_ENDED]:
                del self._streams[each]

    def note_kept(self, message: Kept) -> None:
        """The controller has so much."""
        if (stream := self._streams.get(message.worker_id)) is not None:
            stream.kept = message.offset
            if stream.kept >= stream.sent:
                self._send_next(message.worker_id, stream)

    def send_again(self) -> None:
        """The line is a new one."""
        for worker_id, stream in list(self._streams.items()):
            self._send_next(worker_id, stream)

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return self._look_s

    def keep_time(self, now_s: float) -> None:
        """Look for what is new."""
        if now_s < self._look_s:
            return
        for worker_id, stream in list(self._streams.items()):
            if stream.kept >= stream.sent or now_s - stream.sent_s > AGAIN_S:
                self._send_next(worker_id, stream)
        self._look_s = now_s + LOOK_S if self._streams else float("inf")

    def _send_next(self, worker_id: str, stream: _Stream) -> None:
        if data := self._piece(stream, stream.kept):
            self._send(worker_id, stream, stream.kept, data)
        elif stream.ended:
            del self._streams[worker_id]

    def _send(self, worker_id: str, stream: _Stream, at: int, data: bytes) -> None:
        stream.sent, stream.sent_s = at + len(data), self._wall.monotonic()
        self._say(Printed(worker_id=worker_id, offset=at, data=base64.b64encode(data).decode()))

    def _piece(self, stream: _Stream, at: int) -> bytes:
        try:
            return self._disk.piece(stream.path, since_bytes=at, most_bytes=PIECE_BYTES)
        except OSError:
            return b""  # it has printed nothing yet
