"""The threads that keep what jobs print within its bounds: gigabytes are copied and dropped, and the loop goes on.

It looks at folders, not at workers: one whose node was lost may print on, and no group knows it any more.
Several files are cut at once: while one is cut its own writer waits, but those of all others print on.
"""

from __future__ import annotations

import logging
import stat
import threading
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from sublet.runtime.controller.long_output import MOST_BYTES, MOST_OF_JOB, SLACK, cut_log, is_before, keep_below

__all__ = ["LogKeeper"]

LOOK_S = 0.25
AGAIN_S = 0.02  # after a look that found something too long: its writer is faster than most
AT_ONCE = 2  # files that are cut: the end of each is in memory meanwhile
LAST_S = 60.0  # a job that has ended is looked at for so long after it last printed: lost nodes have workers yet

_log = logging.getLogger("sublet.controller")


class LogKeeper:
    """`folders`: of each job that lives, and which of its workers may be printing. `cut`: files that began anew."""

    def __init__(self) -> None:
        self.most, self.most_of_job = MOST_BYTES, MOST_OF_JOB
        self.folders: Mapping[Path, Collection[str]] = {}  # replaced, never changed: the thread reads it
        self.cut: deque[Path] = deque()
        self._left_s: dict[Path, float] = {}  # folder -> for how long it is looked at
        self._sizes: dict[Path, dict[Path, int]] = {}  # as of the last look
        self._cutting: dict[Path, Future[None]] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="logs")
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Look from now on; again where it does so already: nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="logs", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Look no more; a look that is under way is brought to its end."""
        self._over.set()

    def look_last(self) -> None:
        """After `end`, once nobody prints any more."""
        if self._thread is not None:
            self._thread.join()
            self.look_all()

    def look_all(self) -> None:
        """Look, and once more when what was too long is cut."""
        wait(self._cutting.values())
        self.look()
        wait(self._cutting.values())
        self.look()

    def look(self, passed_s: float = LOOK_S) -> bool:
        """At everything once, so long after the last time: whether something is too long, and being cut."""
        self._cutting = {path: cutting for path, cutting in self._cutting.items() if not cutting.done()}
        folders = self.folders
        for folder in folders:
            self._left_s[folder] = LAST_S
        long = False
        for folder in list(self._left_s):
            long |= self._look_at(folder, folders.get(folder, ()), passed_s)
            if folder not in folders and self._left_s[folder] <= 0:
                del self._left_s[folder]
                self._sizes.pop(folder, None)
        return long

    def _look_at(self, folder: Path, alive: Collection[str], passed_s: float) -> bool:
        sizes = _sizes(folder)
        old = self._sizes.get(folder, {})
        grown = {path for path, size in sizes.items() if size != old.get(path)}
        self._left_s[folder] = LAST_S if grown else self._left_s[folder] - passed_s
        long = [path for path, size in sizes.items() if size > self.most + SLACK and not is_before(path)]
        for path in long:
            if path not in self._cutting:
                self._cutting[path] = self._pool.submit(self._cut, path)
        if not long and sum(sizes.values()) > self.most_of_job:
            # A file that is removed while it is printed on would grow unseen. An end is printed on by nobody.
            printing = {path for path in grown if not is_before(path)}
            keep_below(folder, printing | {folder / f"{worker_id}.log" for worker_id in alive}, self.most_of_job)
        self._sizes[folder] = sizes
        return bool(long)

    def _cut(self, path: Path) -> None:
        if cut_log(path, self.most):
            self.cut.append(path)

    def _keep(self) -> None:
        pause_s = LOOK_S
        while not self._over.wait(pause_s):
            try:
                pause_s = AGAIN_S if self.look(pause_s) else LOOK_S
            except Exception:  # noqa: BLE001 - what cannot be kept now is kept another time
                _log.exception("a look at what jobs print failed")
                pause_s = LOOK_S


def _sizes(folder: Path) -> dict[Path, int]:
    sizes = {}
    try:
        for path in folder.glob("*.log"):
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode):
                sizes[path] = facts.st_size
    except OSError:  # one went in this moment: the next look finds the others
        pass
    return sizes
