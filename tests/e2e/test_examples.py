"""Every example in `examples/` runs as its first line says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.sizes import FULL

LONG = {"train_cnn", "train_gpt", "train_gpt_parts"}  # half a minute of them
EXAMPLES = [
    path for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py")) if FULL or path.stem not in LONG
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_something(example: Path) -> None:
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr
