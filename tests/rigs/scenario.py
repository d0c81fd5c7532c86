"""Runs one scenario of `tests/rigs/training.py` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def world(scenario: str, directory: Path, /, *, env: dict[str, str] | None = None, **settings: int) -> dict:
    """What happened."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.rigs.training", scenario, str(directory)]
    command += [f"{key}={value}" for key, value in settings.items()]
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        command,
        env=os.environ | quiet | (env or {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = "".join(f"\n{path.name}: {path.read_text()}" for path in sorted(directory.glob("*.err")))
    assert done.returncode == 0, done.stderr + said
    return json.loads(done.stdout)
