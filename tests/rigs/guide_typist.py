"""A process with our code imported, which forks one for each command line: it costs what it does, not its imports."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
AGAIN_S = 15.0  # Python drops a Ctrl-C that comes amid an import: it is pressed again, as people do
IMPORTED = (
    *("scipy.interpolate", "sublet.cli.main", "sublet.api.client", "sublet.runtime.jobs.file"),
    *("sublet.sim.simulator", "sublet.sim.report.comparison", "sublet.sim.advice.replay", "sublet.rental.plan"),
    *("sublet.cli.parse.advice", "sublet.cli.parse.scenario", "sublet_lab.rides.many_zones"),
)


class Typist:
    """Of the process of these tests, for as long as it lives."""

    def __init__(self) -> None:
        self._line, theirs = Pipe()
        command = [sys.executable, "-m", "tests.rigs.guide_typist", str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
        theirs.close()

    def type(self, words: Sequence[str], folder: Path, env: dict[str, str], out: Path, *, watched: bool) -> int:
        """The exit code; what was said is in `out`. Ctrl-C ends a watched command as soon as it has said something."""
        self._line.send((list(words), str(folder), env, str(out)))
        pid = self._line.recv()
        end_s = time.monotonic() + PATIENCE_S
        pressed_s = -math.inf
        while not self._line.poll(0.05):
            if watched and out.stat().st_size and time.monotonic() - pressed_s >= AGAIN_S:
                os.kill(pid, signal.SIGINT)
                pressed_s = time.monotonic()
            if time.monotonic() > end_s:
                os.kill(pid, signal.SIGKILL)
        code: int = self._line.recv()
        return code

    def end(self) -> None:
        """With the tests."""
        self._line.close()
        self._process.wait()


@functools.cache
def typist() -> Typist:
    """One is enough."""
    made = Typist()
    atexit.register(made.end)
    return made


def main() -> None:
    """Until nobody asks any more."""
    from sublet.cli.main import run

    line: Connection[object, tuple[list[str], str, dict[str, str], str]] = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    while True:
        try:
            words, folder, env, out = line.recv()
        except EOFError:
            return
        pid = os.fork()
        if not pid:
            line.close()
            _move(folder, env, out)
            sys.exit(run(words))
        line.send(pid)
        line.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _move(folder: str, env: dict[str, str], out: str) -> None:
    """As if a shell had begun it there."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    said, nothing = os.open(out, os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(source, number)


if __name__ == "__main__":
    main()
