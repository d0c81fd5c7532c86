"""The metadata service of an instance at 169.254.169.254 (IMDSv2): first a session, then facts and notices."""

from __future__ import annotations

import json
import secrets
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sublet_lab.box.network import METADATA, Cable

TOKEN, TTL = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"
STAMP = "%Y-%m-%dT%H:%M:%SZ"
ROLE = "box"
OK, NEEDS_TTL, NO_SESSION, NOT_THERE = 200, 400, 401, 404


class Metadata:
    """Serves one host from outside, as EC2 does; `facts` are what it is told, by path below /latest."""

    def __init__(self, cable: Cable, facts: dict[str, str], account: dict[str, str]) -> None:
        self.facts = dict(facts)
        self.asked: list[str] = []  # the paths, in order
        self._tokens: set[str] = set()
        self._account = account
        self._server = _Server(cable, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def announce(self, lead_s: float) -> None:
        """The spot interruption, and when; to the second, as EC2 says it, and not later than it comes."""
        at = datetime.now(UTC) + timedelta(seconds=lead_s)
        self.facts["meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": at.strftime(STAMP)})

    def recommend(self) -> None:
        """To rebalance: it may be taken soon, or not."""
        now = datetime.now(UTC).strftime(STAMP)
        self.facts["meta-data/events/recommendations/rebalance"] = json.dumps({"noticeTime": now})

    def session(self) -> str:
        """A new one."""
        token = secrets.token_urlsafe(24)
        self._tokens.add(token)
        return token

    def answer(self, path: str, token: str | None) -> tuple[int, str]:
        """Status and text."""
        if token not in self._tokens:
            return NO_SESSION, ""
        path = path.removeprefix("/latest/").rstrip("/")
        self.asked.append(path)
        if path == "meta-data/iam/security-credentials":
            return OK, ROLE
        if path == f"meta-data/iam/security-credentials/{ROLE}":
            return OK, self._credentials()
        return (OK, self.facts[path]) if path in self.facts else (NOT_THERE, "")

    def close(self) -> None:
        """It does not answer any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _credentials(self) -> str:
        until = (datetime.now(UTC) + timedelta(hours=6)).strftime(STAMP)
        key, secret = self._account["AWS_ACCESS_KEY_ID"], self._account["AWS_SECRET_ACCESS_KEY"]
        facts = {"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": key, "SecretAccessKey": secret, "Token": "box"}
        return json.dumps({**facts, "Expiration": until, "LastUpdated": datetime.now(UTC).strftime(STAMP)})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, cable: Cable, metadata: Metadata) -> None:
        super().__init__((METADATA, 80), _Asked, bind_and_activate=False)
        self.socket.close()
        self.socket = cable.listener(METADATA, 80)
        self.metadata = metadata

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A host that is cut off in the middle of a question is nothing to tell."""


class _Asked(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0

    def do_PUT(self) -> None:
        """A session."""
        here = self.path == "/latest/api/token"
        if here and self.headers.get(TTL, "").isdigit():
            self._say(OK, self.server.metadata.session())
        else:
            self._say(NEEDS_TTL if here else NOT_THERE, "")

    def do_GET(self) -> None:
        """A fact."""
        self._say(*self.server.metadata.answer(self.path, self.headers.get(TOKEN)))

    def _say(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Nothing."""
