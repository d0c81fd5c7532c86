"""A thousand lives, each with its own jobs, knobs and faults: no law is broken, and every kind of fault does something.

A seed that fails here is read with `python -m sublet.testing.world --from SEED --seeds 1 --look`, and made small with
`--shrink 1` (docs/guides/read-a-failing-seed.md).
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter

import pytest

from sublet.testing.world.crash_points import crash_points
from sublet.testing.world.runner import run_seed
from sublet.testing.world.story import KNOWN, PLAIN, draw_story

SEEDS, A_CHUNK = 400, 25  # a minute on two cores; `make faults` lives as many as you like
FINGERPRINT = """
from sublet.testing.world.runner import run_seed
print([(run_seed(seed).digest, run_seed(seed).events) for seed in (3, 11, 24)])
"""


@pytest.mark.parametrize("first", range(0, SEEDS, A_CHUNK))
def test_no_law_is_broken(first: int) -> None:
    results = [run_seed(seed) for seed in range(first, first + A_CHUNK)]
    gc.collect()
    assert not {result.seed: f"{result.law}: {result.what}" for result in results if result.law}


@pytest.mark.parametrize("seed", [2, 9])
def test_a_controller_may_die_at_any_commit(seed: int) -> None:
    """A sample of them; `--crash-points 1` dies at all."""
    lives = list(crash_points(draw_story(seed, cloud="plain"), every=23))
    assert len(lives) > 2
    assert not {(commit, before): str(life.broken) for commit, before, life in lives if life.broken}


def test_every_kind_of_fault_does_something() -> None:
    effects: Counter[str] = Counter()
    for kind in (*PLAIN, *KNOWN):
        for seed in range(5000, 5030):
            effects.update(run_seed(seed, (kind,)).effects)
            if effects[kind]:
                break
    assert not {kind for kind in (*PLAIN, *KNOWN) if not effects[kind]}


def test_a_seed_is_the_same_life_in_every_process() -> None:
    lives = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "7")
    }
    assert len(lives) == 1
