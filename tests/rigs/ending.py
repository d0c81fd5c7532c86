"""Processes of a fork server end with the tests that have asked for them, however these end.

A worker of a `ProcessPoolExecutor` waits for its next task, and holds the other end of that pipe itself: where the
tests are killed it waits for ever, and so does the server, which ends with the last of its children.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """In such a process, before anything else."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
