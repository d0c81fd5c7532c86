"""A process that reads objects of a bucket for another: `python -m sublet.train.data.stored.fetcher URI`.

Requests come as lines of JSON on its input. Answers go out in the order in which they are ready: a line with the number
of the request, and the bytes. The store's library has threads that do not survive a fork, and a loader's workers are
forked. So it runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sublet.machine.objects import StoreFailed
from sublet.machine.remote import RemoteObjects, open_uri

THREADS = 16


def serve(uri: str) -> None:
    """Until the input ends."""
    objects, lock = open_uri(uri), threading.Lock()
    assert isinstance(objects, RemoteObjects)  # noqa: S101 - what a URI is opened as

    def answer(asked: dict[str, Any]) -> None:
        body: bytes | memoryview = b""
        try:
            if asked["what"] == "list":
                rows = [[found.key, found.size, found.changed_s, found.tag] for found in objects.list()]
                body = json.dumps(rows).encode()
                facts: dict[str, Any] = {}
            else:
                body, tag = objects.read(asked["key"], asked["start"], asked["stop"])
                facts = {"tag": tag}
        except FileNotFoundError:
            facts = {"missing": True}
        except StoreFailed as error:
            facts = {"failed": error.why, "hint": error.hint, "lasting": error.lasting}
        with lock:
            out = sys.stdout.buffer
            out.write(json.dumps({"id": asked["id"], "size": len(body), **facts}).encode() + b"\n")
            out.write(body)
            out.flush()

    with ThreadPoolExecutor(THREADS) as pool:
        for line in sys.stdin.buffer:
            pool.submit(answer, json.loads(line))


if __name__ == "__main__":
    serve(sys.argv[1])
