"""All that covers the modules is collected once; each mutant is planted in a fork, and runs the tests that reach it.

Nothing is imported again and nothing is run that cannot see the fault, so that most cost a second. What is evaluated on
import cannot be planted like this, and is left to `run.py`.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Never

import pytest
from _pytest.runner import runtestprotocol

from tests.figures import HERE
from tests.mutants.covering import COVERING, covering
from tests.mutants.draw import Mutant
from tests.mutants.plant import Loaded
from tests.mutants.reach import Reach, Tracer

__all__ = ["LATE", "NOBODY", "Told", "ask", "every_test"]

SLOWER, MORE_S = 10.0, 10.0  # a test that takes so many times its CPU time and so much more goes round for ever
SILENT_S = 300.0  # of the wall: a test that waits so long waits for ever
KEPT_EVERY = 50  # tests that were traced
BROKEN = 3  # what a child says that did not get through
LATE, NOBODY = "late", "nobody"  # the change is one of import; or no test comes by
Told = Callable[[int, str, str], None]  # number of the mutant, what became of it, and by whom


def every_test() -> list[str]:
    """Paths that cover any of the modules, none below another."""
    found = list(dict.fromkeys(path for file in COVERING for path in covering(file)))
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


def ask(
    mutants: Sequence[Mutant], reach: Path, patience_s: float, told: Told, tests: Sequence[str] | None = None
) -> None:
    """Of each what became of it: killed, alive, too long, `LATE` or `NOBODY`. A child loads what it needs for that."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _collect(mutants, reach, patience_s, writer, tests or every_test())
    os.close(writer)
    with os.fdopen(reader) as pipe:
        for line in pipe:
            told(*json.loads(line))
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"pytest did not run: status {status}")


def _collect(mutants: Sequence[Mutant], reach: Path, patience_s: float, writer: int, tests: Sequence[str]) -> Never:
    code = BROKEN
    try:
        os.chdir(HERE)
        session = _Session(mutants, reach, patience_s, os.fdopen(writer, "w", buffering=1))
        words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
        code = int(pytest.main([*words, "--import-mode=importlib", *tests], plugins=[session]))
    finally:
        os._exit(code)


class _Session:
    def __init__(self, mutants: Sequence[Mutant], reach: Path, patience_s: float, pipe: IO[str]) -> None:
        self._mutants, self._path, self._patience_s, self._pipe = mutants, reach, patience_s, pipe
        self._loaded, self._reach = Loaded(), Reach()
        self._items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._loaded.take_stock()
        self._items = {item.nodeid: item for item in session.items}
        _in_child(self._trace)
        self._reach = Reach.read(self._path)
        for number, mutant in enumerate(self._mutants):
            self._pipe.write(json.dumps([number, *self._outcome(mutant)]) + "\n")
        return True

    def _trace(self, _writer: int) -> None:
        """Tests that no run has looked at yet."""
        reach, tracer = Reach.read(self._path), Tracer()
        reach.forget(self._items)
        new = [item for name, item in self._items.items() if name not in reach.cpu_s]
        new.sort(key=lambda item: _tells_late(item.nodeid))  # whoever cuts this off has the quick ones
        for number, item in enumerate(new):
            start_s = _cpu_s()
            tracer.start()
            passed = _passes(item)
            lines = tracer.stop()
            if passed:
                reach.add(item.nodeid, _cpu_s() - start_s, lines)
            if number % KEPT_EVERY == 0:
                reach.write(self._path)
        reach.write(self._path)

    def _outcome(self, mutant: Mutant) -> tuple[str, str]:
        changes = self._loaded.takes(mutant.file, mutant.source())
        if changes is None:
            return LATE, ""
        names = [
            name for name in self._reach.tests_of(mutant.file, mutant.line, self._patience_s) if name in self._items
        ]
        if not names:
            return NOBODY, ""

        def run(writer: int) -> None:
            self._loaded.plant(changes)
            for name in names:
                signal.setitimer(signal.ITIMER_PROF, MORE_S + SLOWER * self._reach.cpu_s[name])
                os.write(writer, f"{name}\n".encode())
                if not _passes(self._items[name]):
                    os._exit(1)

        code, last = _in_child(run)
        if code == BROKEN:
            raise RuntimeError(f"{mutant}: the tests could not be run: {last}")
        if code == 1 or (code < 0 and -code not in {signal.SIGPROF, signal.SIGKILL}):
            return "killed", last
        return ("alive", f"{len(names)} tests") if code == 0 else ("too long", last)


def _in_child(work: Callable[[int], None]) -> tuple[int, str]:
    """The exit code, or a signal as a negative number, and the last line that was said."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            os.close(reader)
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(quiet, stream)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    said, last = b"", ""
    while True:
        ready, _, _ = select.select([reader], [], [], SILENT_S if last else None)
        if not ready:
            os.kill(child, signal.SIGKILL)
            break
        said = os.read(reader, 1 << 16)
        if not said:
            break
        last = said.decode(errors="replace").splitlines()[-1]
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), last


def _passes(item: pytest.Item) -> bool:
    """Whatever it was skipped for, a test that is skipped passes."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _tells_late(test: str) -> int:
    """Units are quick, but for studies; properties and whole lives are not."""
    return 2 if not test.startswith("tests/unit/") else int(test.startswith("tests/unit/lab/studies/"))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
