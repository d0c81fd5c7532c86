"""A process that reads objects of a bucket for another: `python -m sublet.train.data.stored.fetcher URI`.

Requests come as lines of JSON on its input, answers go out in the order in which they are ready: a line that says whose
answer it is, and its bytes. The library of the store has threads that do not survive a fork, and a loader's workers are
forked from a process that may have used it: so it lives in a process that was started anew.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sublet.machine.objects import StoreFailed
from sublet.machine.remote import RemoteObjects, open_uri

__all__ = ["serve"]

THREADS = 16


def serve(uri: str) -> None:
    """Until nobody asks any more."""
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
