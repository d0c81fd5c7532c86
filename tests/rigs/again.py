"""`--again`: what failed among tests of real processes runs once more, alone, and both outcomes are told.

Such tests share two cores with each other and with whatever else the machine does. One that fails twice fails; so does
every other test that fails once, and so does a run with more failures than chance explains.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

__all__ = ["deserves_another", "pytest_addoption", "pytest_sessionfinish"]

REAL = ("tests/adoption/", "tests/conformance/", "tests/e2e/")  # real processes, real hosts, real seconds
AT_MOST = 3
PATIENCE_S = 300


def deserves_another(failed: Iterable[str]) -> bool:
    """Whether all of these may have failed by chance."""
    names = set(failed)
    return 0 < len(names) <= AT_MOST and all(name.startswith(REAL) for name in names)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--again", action="store_true", help="run tests of real processes that failed once more, alone")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if not config.getoption("--again") or exitstatus != pytest.ExitCode.TESTS_FAILED or hasattr(config, "workerinput"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    failed = sorted({report.nodeid for kind in ("failed", "error") for report in reporter.stats.get(kind, ())})
    if not deserves_another(failed):
        return
    reporter.ensure_newline()
    reporter.section("once more, alone (they failed: see below)", sep="=")
    reporter.write_line("\n".join(failed))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *failed]
    size = {"full": "full"}.get(os.environ.get("TEST_SIZE", "every"), "every")  # the same examples, and none left out
    if _passes(command, os.environ | {"TEST_SIZE": size}):
        reporter.write_line(f"passed the second time: {', '.join(failed)}. A bug of theirs or of ours: look at it.")
        session.exitstatus = pytest.ExitCode.OK


def _passes(command: list[str], environment: dict[str, str]) -> bool:
    try:
        second = subprocess.run(command, env=environment, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return second.returncode == pytest.ExitCode.OK
