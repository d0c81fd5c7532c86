"""The same POST twice is one POST: a client that lost the answer may ask again under the same `Idempotency-Key`.

Same key and same body give the first answer again; same key and another body are refused with 409. The answers of the
last `MOST_KEYS` keys are kept; for submissions the controller keeps the key itself, over restarts too.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sublet.api.guard import CALLER, refuse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_KEYS = 1000
LONGEST_KEY = 200
SERVER_ERROR = 500


@dataclass(slots=True)
class _Answer:
    body_digest: bytes
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    messages: list[Any] = field(default_factory=list)  # [] = not answered yet


class Idempotency:
    """Remembers answers by key."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.answers: OrderedDict[tuple[bytes, str, str], _Answer] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = dict(scope["headers"])
        key = headers.get(b"idempotency-key", b"").decode("latin-1")
        if scope["method"] != "POST" or not key:
            await self.app(scope, receive, send)
            return
        if len(key) > LONGEST_KEY:
            await refuse(
                send, 400, f"Idempotency-Key has {len(key)} letters", f"send {LONGEST_KEY} at most", exit_code=2
            )
            return
        body = await _read_whole(receive)
        caller = scope.get(CALLER)
        place = (b"" if caller is None else caller.key, scope["path"], key)  # a caller gets its own answers alone
        body_digest = hashlib.sha256(body).digest()
        answer = self.answers.setdefault(place, _Answer(body_digest))
        while len(self.answers) > MOST_KEYS:
            self.answers.popitem(last=False)
        if answer.body_digest != body_digest:
            await refuse(send, 409, "this Idempotency-Key came with another body before", "send a new key", exit_code=2)
            return
        try:
            async with answer.lock:
                if not answer.messages:
                    await self.app(scope, _replay(body), _record_into(answer))
        finally:  # what is left to say is said even if the app goes on to raise
            if not answer.messages or answer.messages[0]["status"] >= SERVER_ERROR:
                self.answers.pop(place, None)  # a fault of ours is no answer: it may be tried again
            for message in answer.messages:
                await send(message)


def _record_into(answer: _Answer) -> Send:
    async def record(message: Message) -> None:
        answer.messages.append(message)

    return record


def _replay(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _read_whole(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body
