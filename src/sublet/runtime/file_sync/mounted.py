"""`python -m sublet.runtime.file_sync.mounted URI PLACE ... -- COMMAND`: runs it with buckets as folders.

The folders are filled first. While the command runs, files that are closed and quiet are taken to their bucket; when it
has ended, all that is left. Then this ends as the command did, so that its parent knows that all is there. Without a
command the folders are filled, and that is all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Final

from sublet.errors import SubletError
from sublet.machine.objects import StoreFailed
from sublet.machine.remote import open_uri
from sublet.machine.wall import WALL
from sublet.runtime.agent.interpreter import program
from sublet.runtime.agent.processes import die_with_parent
from sublet.runtime.file_sync.mirror import Mirror
from sublet.wire.messages import EXIT_LOST

LOOK_S: Final = 5.0  # between two looks at the folders: a file that is the same in both is quiet
REST: Final = 200  # times as long as a look took: looking is no sign of life of the command
LAST_S: Final = 600.0  # for what is left at the end, where the store does not answer
AGAIN_S: Final = 5.0
CANNOT_START: Final = 127  # as a shell says it


class Mounted:
    """All folders of one worker, and its process."""

    def __init__(self, pairs: Sequence[str]) -> None:
        self._mirrors = [
            (uri, place, Mirror(open_uri(uri), path := Path(place).expanduser().absolute(), index_of(path)))
            for uri, place in zip(pairs[::2], pairs[1::2], strict=True)
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = False  # it may be there already, and we do not know it yet
        self._early = 0  # the signal that came then
        self._trouble = ""
        self._told: set[str] = set()

    def fill(self, users: contextlib.ExitStack) -> None:
        """As the buckets are now. SubletError or OSError where one cannot be."""
        for uri, place, mirror in self._mirrors:
            users.enter_context(mirror.used())
            _say(f"{place} has {uri} ({mirror.pull()} files fetched)")

    def run(self, argv: Sequence[str]) -> int:
        """To its end, and what it wrote is in the buckets; its exit code, less than 0 for a signal."""
        line = os.environ.get("SUBLET_CONTROL_FD", "")
        kept = [int(line)] if line.isdigit() else []
        self._starts = True
        try:
            self._process = subprocess.Popen(argv, pass_fds=kept, preexec_fn=die_with_parent)  # noqa: PLW1509, S603 - it only asks the kernel; the user's command
        except OSError as error:
            _say(f"cannot run {argv[0]}: {error}")
            return CANNOT_START
        if self._early:
            self._process.send_signal(self._early)
        for number in kept:
            os.close(number)  # the line ends with the command
        wait_s = LOOK_S
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(wait_s)
                break
            began_s = WALL.monotonic()
            self._push(last=False)
            wait_s = max(LOOK_S, REST * (WALL.monotonic() - began_s))
        return self._finish() or code

    def end(self, number: int) -> None:
        """A signal for the command."""
        if self._process is not None:
            self._process.send_signal(number)
        elif self._starts:
            self._early = number
        else:
            raise SystemExit(128 + number)

    def _finish(self) -> int:
        """0 when everything is there."""
        until_s = WALL.monotonic() + LAST_S
        while (failed := self._push(last=True)) is not None:
            if failed.lasting or WALL.monotonic() > until_s:
                _say(f"what was written is not in the bucket: {failed}")
                return 1 if failed.lasting else EXIT_LOST
            Event().wait(AGAIN_S)
        return 0

    def _push(self, *, last: bool) -> StoreFailed | None:
        failed = None
        for uri, place, mirror in self._mirrors:
            try:
                done = mirror.push(last=last)
            except OSError as error:
                done_failed: StoreFailed | None = StoreFailed(uri, str(error), hint=f"see {place} on its node")
            else:
                done_failed = done.failed
                if last and (done.uploaded or done.deleted):
                    _say(f"{place}: {done.uploaded} files uploaded to {uri} at the end, {done.deleted} deleted there")
            failed = failed or done_failed
            for name in sorted(mirror.told - self._told):
                self._told.add(name)
                _say(f"{place}/{name} stays on the node: no bucket takes a link, or such a name")
        if failed is not None and str(failed) != self._trouble:
            _say(f"cannot be written back yet: {failed}")
        self._trouble = str(failed or "")
        return failed


def index_of(place: Path) -> Path:
    """The index of this folder."""
    return Path.home() / ".sublet" / "mounts" / f"{hashlib.sha256(str(place).encode()).hexdigest()[:24]}.json"


def main(words: Sequence[str]) -> int:
    """Ends as the command does; EXIT_LOST where it is not the command's fault and may be better next time."""
    pairs, argv = list(words), []
    if "--" in pairs:
        at = pairs.index("--")
        pairs, argv = pairs[:at], pairs[at + 1 :]
    try:
        mounted = Mounted(pairs)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: mounted.end(number))
        with contextlib.ExitStack() as users:
            mounted.fill(users)
            if not argv:
                return 0
            return mounted.run(program(argv, sys.executable))  # on the PATH that we were given is its Python
    except (SubletError, OSError) as error:
        _say(f"cannot be mounted: {error}")
        return 1 if isinstance(error, StoreFailed) and error.lasting else EXIT_LOST


def _say(text: str) -> None:
    print(f"file_mounts: {text}", flush=True)  # noqa: T201 - goes to the worker's log


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    if ended < 0:  # as the command did
        signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
