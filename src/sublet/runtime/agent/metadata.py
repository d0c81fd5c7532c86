"""Facts that an EC2 instance can read about itself: that it will be taken back, or may be.

Never waits, as all of the agent.

One question at a time over HTTP/1.0, each on a connection of its own: a session token first (IMDSv2), then the notice
of a spot interruption, then the recommendation to rebalance. AWS advises to ask every five seconds.
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from sublet.errors import InvalidValue
from sublet.machine.wall import WALL, Wall
from sublet.runtime.agent.dialing import Dialer, address_from, dial
from sublet.runtime.agent.machine import Log, log

EVERY_S = 5.0
ANSWER_S = 2.0  # it is next door
TOKEN_TTL_S = 3600
NOTICE_S = 120.0  # AWS's warning, where it does not say when
MOST_BYTES = 1 << 16
TOKEN = "/latest/api/token"  # noqa: S105 - a path
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
OK, NOT_THERE, NO_SESSION = 200, 404, 401

Notice = Callable[[str, float], None]  # (interruption | rebalance, seconds from now)


class Metadata:
    """Asks at `url`; `notice` is called once for each thing that is announced."""

    def __init__(
        self,
        url: str,
        selector: selectors.BaseSelector,
        notice: Notice,
        *,
        every_s: float = EVERY_S,
        dial: Dialer = dial,
        wall: Wall = WALL,
        log: Log = log,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidValue("metadata", url, "an address such as http://169.254.169.254")
        self._host, self._place = parts.netloc, f"tcp:{parts.hostname}:{parts.port or 80}"
        address_from(self._place)  # refused now, not with the first question
        self._dial, self._wall, self._log = dial, wall, log
        self._selector, self._notice, self._every_s = selector, notice, every_s
        self._socket: socket.socket | None = None
        self._path = ""  # what is being asked
        self._question, self._answer = b"", b""
        self._token = ""
        self._round: list[str] = []  # what is to be asked still, this time
        self._due_s = 0.0  # when to begin anew, or to give this question up
        self._told: set[str] = set()

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return self._due_s

    def keep_time(self, now_s: float) -> None:
        """Begin a round when it is time, or give up one that got stuck."""
        if now_s < self._due_s:
            return
        if self._socket is not None:
            self._stop(now_s)
            return
        self._round = [ACTION, REBALANCE] if self._token else [TOKEN, ACTION, REBALANCE]
        self._ask_next(now_s)

    def attend(self, events: int) -> None:
        """The socket is ready."""
        if self._socket is None:
            return
        try:
            if events & selectors.EVENT_WRITE and self._question:
                self._question = self._question[self._socket.send(self._question) :]
                if not self._question:
                    self._selector.modify(self._socket, selectors.EVENT_READ, self)
            if events & selectors.EVENT_READ:
                data = self._socket.recv(MOST_BYTES)
                self._answer += data
                if not data or len(self._answer) > MOST_BYTES:
                    self._hear(self._wall.monotonic())
        except BlockingIOError:
            return
        except OSError:
            self._stop(self._wall.monotonic())

    def close(self) -> None:
        """Ask no more."""
        self._hang_up()
        self._due_s = math.inf

    # ------------------------------------------------------------------

    def _ask_next(self, now_s: float) -> None:
        self._hang_up()
        if not self._round:
            self._due_s = now_s + self._every_s
            return
        self._path = self._round.pop(0)
        verb, header = ("GET", f"X-aws-ec2-metadata-token: {self._token}")
        if self._path == TOKEN:
            verb, header = "PUT", f"X-aws-ec2-metadata-token-ttl-seconds: {TOKEN_TTL_S}"
        lines = (f"{verb} {self._path} HTTP/1.0", f"Host: {self._host}", header, "Content-Length: 0", "", "")
        self._question, self._answer = "\r\n".join(lines).encode(), b""
        self._due_s = now_s + ANSWER_S
        try:
            self._socket = self._dial(self._place)
        except OSError:
            self._stop(now_s)
            return
        self._selector.register(self._socket, selectors.EVENT_WRITE, self)

    def _hear(self, now_s: float) -> None:
        head, _, body = self._answer.partition(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split()
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status == NO_SESSION:  # it has run out
            self._token = ""
            self._stop(now_s)
            return
        if self._path == TOKEN:
            token = body.decode("latin-1").strip()
            self._token = token if status == OK and token.isascii() and token.isprintable() else ""
            if not self._token:
                self._stop(now_s)
                return
        elif status == OK:
            self._announced(body)
        elif status != NOT_THERE:
            self._log(f"the metadata service answered {status} to {self._path}")
        self._ask_next(now_s)

    def _announced(self, body: bytes) -> None:
        text = body.decode("utf-8", "replace").strip()
        if (key := f"{self._path} {text}") in self._told:
            return
        self._told.add(key)
        if self._path == REBALANCE:
            self._notice("rebalance", 0.0)
            return
        try:
            facts: dict[str, Any] = json.loads(text)
            at = datetime.fromisoformat(str(facts["time"])).astimezone(UTC)
            in_s = min(max(0.0, at.timestamp() - self._wall.unix()), NOTICE_S)  # whatever this machine's clock says
        except (ValueError, KeyError, TypeError) as error:
            self._log(f"a notice that cannot be read ({error}): {text[:200]!r}")
            in_s = NOTICE_S
        self._notice("interruption", in_s)

    def _stop(self, now_s: float) -> None:
        self._hang_up()
        self._due_s = now_s + self._every_s

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
