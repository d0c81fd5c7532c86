"""What holds for every scenario: which of them run, in which size, and what they measured."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

ALL = os.environ.get("SCENARIOS") == "all"  # as `make scenarios` runs them: the heavy ones too, and all at full size
_figures: dict[str, list[str]] = {}
_cpu_s: dict[str, float] = {}


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "scenario(number, fault, level, *, heavy, lacks): one of the forty; `lacks` = met in part, and why"
    )


def pytest_collection_modifyitems(config, items):
    for item in items:
        if (mark := item.get_closest_marker("scenario")) and mark.kwargs.get("heavy"):
            item.add_marker(pytest.mark.long)


@pytest.fixture
def full():
    """Whether this is the long run; a quick one tries fewer cases of the same."""
    return ALL


@pytest.fixture
def measured(request):
    """Say a figure: it stands in the table, and never fails a test."""
    said = _figures.setdefault(request.node.nodeid, [])
    return said.append


@pytest.fixture
def marked(request):
    return request.node.get_closest_marker("scenario")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """How much of a processor it took, children that have ended included."""
    before = os.times()
    try:
        return (yield)
    finally:
        _cpu_s[item.nodeid] = sum(os.times()[:4]) - sum(before[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    mark = item.get_closest_marker("scenario")
    if mark is not None and (report.when == "call" or report.outcome == "skipped"):
        _write(item, mark, report)
    return report


def _write(item, mark, report):
    """A line of JSON for whoever makes the table."""
    if (path := os.environ.get("SCENARIOS_JSON")) is None:
        return
    number, fault, level = mark.args
    lacks = mark.kwargs.get("lacks", "")
    wrong = item.get_closest_marker("xfail")
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        state, why = "not run", str(report.longrepr[-1] if report.longrepr else "")
    elif hasattr(report, "wasxfail"):
        state, why = "not met", wrong.kwargs.get("reason", "") if wrong else ""
    elif report.outcome == "failed":
        state, why = "FAILED", str(report.longrepr).strip().splitlines()[-1][:200] if report.longrepr else ""
    else:
        state, why = ("in part", lacks) if lacks else ("met", "")
    row = {
        "number": number,
        "fault": fault,
        "level": level,
        "state": state,
        "why": why,
        "figure": "; ".join(_figures.get(item.nodeid, [])),
        "seconds": round(report.duration, 1),
        "cpu_s": round(_cpu_s.get(item.nodeid, 0.0), 2),
        "test": item.name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
