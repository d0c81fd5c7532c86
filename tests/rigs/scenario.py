"""Runs one scenario of `tests/rigs/training.py` in a process of its own.

It is forked from one that has imported torch, once for all tests of this process: seconds that each would spend.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.rigs.ending import end_with_parent

ROOT = Path(__file__).parents[2]
QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
PATIENCE_S = 200.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch._dynamo", "sublet.train.sessions.copies"])


def world(
    scenario: str,
    directory: Path,
    /,
    *,
    env: Mapping[str, str] | None = None,
    module: str = "tests.rigs.training",
    **settings: int,
) -> dict:
    """What happened in a scenario of this module."""
    directory.mkdir(exist_ok=True)
    os.environ.update(QUIET)  # read when torch is imported
    with ProcessPoolExecutor(1, mp_context=FORKS, initializer=end_with_parent) as pool:
        try:
            return json.loads(pool.submit(_lived, module, scenario, directory, env or {}, settings).result(PATIENCE_S))
        except BaseException as error:
            for path in sorted(directory.glob("*.err")):
                error.add_note(f"{path.name}: {path.read_text()}")
            raise


def _lived(module: str, scenario: str, directory: Path, env: Mapping[str, str], settings: Mapping[str, int]) -> str:
    os.environ.update(env)
    os.chdir(ROOT)
    # As in a worker under an agent: workers of a DataLoader would else come from a server that outlives us.
    multiprocessing.set_start_method("fork", force=True)
    scenarios = importlib.import_module(module).SCENARIOS  # reads its surroundings
    return json.dumps(scenarios[scenario](directory, **settings))
