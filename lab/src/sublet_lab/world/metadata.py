"""The service from which a machine of EC2 learns about itself: HTTP in two packets, and answers as odd as real ones."""

from __future__ import annotations

import errno
import json
from datetime import UTC, datetime

from sublet_lab.world.heap import Process, Struck, nobody
from sublet_lab.world.machine import EPOCH_S
from sublet_lab.world.sockets import WorldSocket, socket_pair

SERVICE = "http://169.254.169.254"
TOKEN, ACTION = "/latest/api/token", "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
ANSWER_S = 0.02  # at most: it is next door
SESSION_S = 900.0  # of a token; the agent asks for longer ones, and must bear it
MOST_READ = 1 << 16


class MetadataService:
    """The metadata service of one machine.

    `mood`: "" = well, down = no listener, silent = takes questions and never answers, odd = answers with errors.
    """

    address = "tcp:169.254.169.254:80"

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.world
        self._announced: dict[str, str] = {}
        self._tokens: dict[str, float] = {}  # -> until when
        self.mood = ""
        self.struck: Struck = nobody  # told whenever its mood is met, or its announcement is heard

    def interrupt(self, in_s: float) -> None:
        """The machine will be taken back then."""
        at = datetime.fromtimestamp(EPOCH_S + self._world.now_s + in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._announced[ACTION] = json.dumps({"action": "terminate", "time": at})

    def recommend(self) -> None:
        """It may be taken back soon."""
        self._announced[REBALANCE] = json.dumps({"noticeTime": "2025-01-01T00:00:00Z"})

    def garble(self) -> None:
        """It will be taken back, in unreadable words."""
        self._announced[ACTION] = '{"action": "terminate"}'

    def recover(self) -> None:
        """It is well again."""
        self.mood = ""

    def answer(self) -> WorldSocket:
        """The machine's end of a connection."""
        if self.mood:
            self.struck()
        if self.mood == "down":
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        ours, theirs = socket_pair(self._process, self._process)
        asked = bytearray()

        def listen() -> None:
            try:
                data = theirs.recv(MOST_READ)
            except BlockingIOError:
                return
            if not data:
                theirs.close()
                return
            asked.extend(data)
            if asked.endswith(b"\r\n\r\n") and self.mood != "silent":
                seconds = self._world.stream("metadata").uniform(0.0, ANSWER_S)
                self._world.after(seconds, self._reply, theirs, bytes(asked).decode())

        theirs.on_ready = listen
        return ours

    def _reply(self, line: WorldSocket, question: str) -> None:
        status, body = self._look_up(question)
        if not line.closed:
            line.send(f"HTTP/1.0 {status} -\r\nServer: EC2ws\r\n\r\n{body}".encode())
            line.close()

    def _look_up(self, question: str) -> tuple[int, str]:
        verb, path, _ = question.split(" ", 2)
        if self.mood == "odd":
            return self._world.stream("metadata").choice([500, 401, 0]), ""
        if verb == "PUT" and path == TOKEN:
            token = f"session-{len(self._tokens)}"
            self._tokens[token] = self._world.now_s + SESSION_S
            return 200, token
        token = question.partition("X-aws-ec2-metadata-token: ")[2].partition("\r\n")[0]
        if self._tokens.get(token, 0.0) <= self._world.now_s:
            return 401, ""
        if path not in self._announced:
            return 404, ""
        self.struck()
        return 200, self._announced[path]
