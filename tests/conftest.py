"""What holds for every test: the same examples each time, and no stopwatch on a single one."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.rigs.again import pytest_addoption, pytest_sessionfinish  # noqa: F401 - hooks
from tests.rigs.order import dealt
from tests.rigs.sizes import DRAWN, SIZE, drawn, examples, left_out
from tests.rigs.virtual_time import VirtualTime

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=examples(100))
settings.load_profile("ci")

# Ray ends its workers when the machine is short of memory, whoever uses it: a busy machine would fail tests of ours.
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - so Ray spells it


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: nobody looks for garbage in it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of files that are not run nothing is imported."""
    return True if SIZE == "part" and left_out(collection_path.relative_to(config.rootpath).as_posix()) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SIZE == "part":
        short = [item for item in items if not any(map(item.get_closest_marker, ("long", "outside_data")))]
        kept = drawn([item.nodeid for item in short], DRAWN, os.environ.get("TEST_SEED", "1"))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    items[:] = dealt(items, {item: item.nodeid.partition("::")[0] for item in items}, workers)


@pytest.fixture
def virtual_time(monkeypatch):
    """Loops of this test do not wait: time passes at once where nothing else is to be done."""
    clock = VirtualTime()
    clock.install(monkeypatch)
    return clock
