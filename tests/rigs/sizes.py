"""How much the tests try: `make test` a part that fits into minutes, `make test-all` every test.

    part   of what takes long a sample, drawn by SEED, and nothing of what is marked `long`; of each property a quarter
           of its examples
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

__all__ = ["DRAWN", "FULL", "SIZE", "drawn", "examples", "left_out", "sized"]

SIZE = os.environ.get("TEST_SIZE", "every")
FULL = SIZE == "full"
DRAWN = {  # of the tests of each file below this, one in so many, or none; the longest path that fits counts
    "tests/adoption/": 0,
    "tests/conformance/": 6,
    "tests/conformance/test_forecasters.py": 4,
    "tests/conformance/test_live.py": 0,
    "tests/conformance/test_policies.py": 8,
    "tests/conformance/test_policies_live.py": 1,  # the decision of each
    "tests/e2e/": 6,
    "tests/e2e/test_controller_host.py": 0,
    "tests/e2e/test_box.py": 0,
    "tests/e2e/test_check_for_real.py": 0,
    "tests/e2e/test_ddp_live.py": 0,
    "tests/e2e/test_demo_strikes.py": 0,
    "tests/e2e/test_grid_live.py": 20,  # one
    "tests/e2e/test_grid_study.py": 0,
    "tests/e2e/test_guide_commands.py": 1,  # the README, page by page the rest
    "tests/e2e/test_interpreter.py": 0,
    "tests/e2e/test_long_output.py": 0,
    "tests/e2e/test_train_broken_off.py": 0,
    "tests/e2e/test_ray.py": 0,
    "tests/e2e/test_rehearse.py": 0,
    "tests/e2e/test_resuming_live.py": 0,
    "tests/e2e/test_session_however_started.py": 0,
    "tests/e2e/test_shards_live.py": 0,
    "tests/e2e/test_ssh.py": 0,
    "tests/e2e/test_train_elastic.py": 0,
    "tests/e2e/test_train_epochs.py": 0,
    "tests/e2e/test_train_memory.py": 0,
    "tests/e2e/test_train_shards.py": 0,
    "tests/faults/": 6,
    "tests/faults/test_seeds.py": 1,  # 150 lives, as the docs say
    "tests/property/": 3,
    "tests/scenarios/": 10,
    "tests/simulation/": 6,
    "tests/unit/api/test_recorded.py": 2,
    "tests/unit/cli/": 4,
    "tests/unit/cli/test_convert_texts.py": 1,  # with the README and these three every verb is typed
    "tests/unit/cli/test_every_verb.py": 1,
    "tests/unit/cli/verbs/": 1,
    "tests/unit/integrations/": 8,
    "tests/unit/integrations/test_lightning.py": 0,  # two seconds to import, as is transformers
    "tests/unit/integrations/test_transformers.py": 0,
    "tests/unit/lab/studies/": 3,
    "tests/unit/lab/studies/test_quick_claims.py": 4,
    "tests/unit/lab/tiers/": 4,
    "tests/unit/lab/forecasting/": 3,
    "tests/unit/runtime/": 4,
    "tests/unit/sim/": 2,
    "tests/unit/sim/test_workload_catalog.py": 4,
    "tests/unit/test_mutants.py": 4,
    "tests/unit/train/": 5,
    "tests/unit/train/shards/": 12,
    "tests/unit/train/test_docs_loops.py": 1,  # a new loop of the docs is seen at once
}
PART = 0.25  # of the examples of a property


def sized(part: int, full: int) -> int:
    """So many of something."""
    return full if FULL else part


def examples(full: int) -> int:
    """Of a property: never fewer than ten, or than there are."""
    return full if FULL else max(min(full, 10), math.ceil(PART * full))


def left_out(path: str) -> bool:
    """Whether `make test` has nothing of a file or folder."""
    within = [named for named in DRAWN if f"{path}/".startswith(named.rstrip("/") + "/")]
    return DRAWN[max(within, key=len)] == 0 if within else False


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
