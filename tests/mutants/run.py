"""One mutant after another, each in a child that was forked with all libraries loaded: killed, alive, or too long."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from tests.figures import HERE
from tests.mutants.covering import covering
from tests.mutants.draw import path_of

__all__ = ["Outcome", "outcome_of"]

LIMIT_S = 300.0  # of CPU time: a mutant that is at it for so long goes round for ever
FAILED = (1, 2)  # tests; or a file of tests that cannot even be imported
UNLOADED = "cannot be imported"
LOADED = ("numpy", "scipy.optimize", "scipy.interpolate", "scipy.spatial", "scipy.stats", "pytest")


class Outcome(StrEnum):
    """What the tests say."""

    KILLED = "killed"
    ALIVE = "alive"
    TOO_LONG = "too long"  # counts as killed: a run of the tests would not end


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for one module with another source."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self._module, self._path, self._source = module, path, source

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Ours, if it is that one."""
        del path, target
        return importlib.util.spec_from_loader(name, self, origin=str(self._path)) if name == self._module else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed source."""
        module.__file__ = str(self._path)
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)  # noqa: S102 - our own source, changed


def outcome_of(file: str, source: str, tests: Sequence[str] = ()) -> tuple[Outcome, str, float]:
    """What became of it, the test that saw it, and the CPU seconds. `tests` in place of those that cover the file."""
    if any(name.startswith("sublet") for name in sys.modules):
        raise RuntimeError("modules of Sublet are loaded already: no child would load the changed one")
    for name in LOADED:
        importlib.import_module(name)
    reader, writer = os.pipe()
    started_s = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(file, source, tests or covering(file), writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - started_s
    if os.WIFSIGNALED(status):
        return (Outcome.TOO_LONG if os.WTERMSIG(status) == signal.SIGXCPU else Outcome.KILLED), "", seconds
    code = os.WEXITSTATUS(status)
    if code not in {0, *FAILED} and UNLOADED not in told:  # of single tests in such a file pytest says: there are none
        raise RuntimeError(f"pytest did not run: exit code {code}")  # else every mutant would seem to be killed
    return (Outcome.KILLED if code else Outcome.ALIVE), told.strip(), seconds


def _run(file: str, source: str, tests: Sequence[str], writer: int) -> None:
    """In the child: never returns."""
    import resource

    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (int(LIMIT_S), int(LIMIT_S) + 5))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(HERE)
    name = file if file.startswith("sublet_lab/") else f"sublet/{file}"
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    sys.meta_path.insert(0, _Planted(module, path_of(file), source))

    class FirstFailure:
        """Tells which test it was."""

        @pytest.hookimpl
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os.write(writer, f"{report.nodeid}\n".encode())

        @pytest.hookimpl
        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                os.write(writer, f"{report.nodeid} {UNLOADED}\n".encode())

    code = 3
    try:
        words = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-o",
            "addopts=",
            "--import-mode=importlib",
            *tests,
        ]
        code = int(pytest.main(words, plugins=[FirstFailure()]))
    finally:
        os._exit(code)
