"""How much the tests try: `make test` a part that fits into minutes, `make test SIZE=full` all of it.

    part   of what takes long a sample, drawn by SEED; of each property a quarter of its examples
    every  every test (as plain `pytest` does, so that whoever names a file gets all of it), a quarter of the examples
    full   every test, every example

Examples of a smaller size are the first of a larger one. Nothing that a test asserts depends on the size.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

__all__ = ["DRAWN", "FULL", "SIZE", "drawn", "examples", "only_in_full", "sized"]

SIZE = os.environ.get("TEST_SIZE", "every")
FULL = SIZE == "full"
DRAWN = {  # of the tests of each file below this, one in so many, or none; the longest path that fits counts
    "tests/adoption/": 0,  # `make adoption`: half a minute to three minutes each
    "tests/adoption/test_drift.py": 20,  # some ten seconds each
    "tests/conformance/": 6,
    "tests/conformance/test_forecasters.py": 4,
    "tests/conformance/test_live.py": 0,  # `make policies-live`
    "tests/conformance/test_live_average.py": 1,  # ten seconds each
    "tests/conformance/test_policies.py": 8,
    "tests/e2e/": 6,
    "tests/e2e/test_advise.py": 4,
    "tests/e2e/test_controller_host.py": 0,  # one test of half a minute
    "tests/e2e/test_average.py": 4,
    "tests/e2e/test_box.py": 3,
    "tests/e2e/test_check_for_real.py": 3,
    "tests/e2e/test_examples.py": 5,
    "tests/e2e/test_grid_live.py": 9,  # half a minute each
    "tests/e2e/test_grid_processes.py": 4,
    "tests/e2e/test_guide_commands.py": 4,
    "tests/e2e/test_live_kills.py": 4,
    "tests/e2e/test_shards_live.py": 3,  # half a minute each
    "tests/e2e/test_spot.py": 4,
    "tests/faults/": 6,
    "tests/faults/test_seeds.py": 1,  # 150 lives, as the docs say
    "tests/property/": 3,
    "tests/scenarios/": 10,
    "tests/simulation/": 6,
    "tests/unit/advise/": 3,
    "tests/unit/api/test_recorded.py": 2,  # processes of their own
    "tests/unit/api/test_what_if.py": 3,  # processes of their own
    "tests/unit/cli/": 4,
    "tests/unit/integrations/": 8,  # seconds to import what they are of
    "tests/unit/market/forecast/": 3,
    "tests/unit/perf/preemption/": 2,
    "tests/unit/runtime/": 4,
    "tests/unit/runtime/providers/aws/": 4,
    "tests/unit/sim/": 2,
    "tests/unit/sim/test_workload_catalog.py": 4,
    "tests/unit/lab/studies/": 3,
    "tests/unit/lab/studies/test_quick_claims.py": 4,  # a study, of up to half a minute
    "tests/unit/testing/": 2,
    "tests/unit/train/": 5,
    "tests/unit/train/grid/": 6,
    "tests/unit/train/shards/": 12,
    "tests/unit/train/test_checkpoint_kills.py": 3,
    "tests/unit/train/test_docs_loops.py": 1,  # a new loop of the docs is seen at once
}
PART = 0.25  # of the examples of a property
only_in_full = pytest.mark.skipif(not FULL, reason="takes long: `make test SIZE=full`")


def sized(part: int, full: int) -> int:
    """So many of something."""
    return full if FULL else part


def examples(full: int) -> int:
    """Of a property: never fewer than ten, or than there are."""
    return full if FULL else max(min(full, 10), math.ceil(PART * full))


def drawn(tests: Iterable[str], one_in: dict[str, int], seed: str) -> set[str]:
    """The tests to run, by their ids: of each file as many as the table says; the same for the same seed."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        files[test.partition("::")[0]].append(test)
    found: set[str] = set()
    for file, within in files.items():
        longest = max((path for path in one_in if file.startswith(path)), key=len, default=None)
        of = 1 if longest is None else one_in[longest]
        count = math.ceil(len(within) / of) if of else 0
        found.update(sorted(within, key=lambda test: zlib.crc32(f"{seed} {test}".encode()))[:count])
    return found
