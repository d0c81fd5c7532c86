"""What `sublet convert` makes of each script runs, and comes to the same weights as what was written by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.cli.work.script.convert import convert
from sublet.cli.work.script.reading import Script

torch = pytest.importorskip("torch")

SCRIPTS = Path(__file__).parent / "scripts"
CONVERTED = ("best", "dcgan", "everything", "imagenet", "mnist", "nanogpt", "odd", "slow_loader", "vae")


def weights(folder, text):
    folder.mkdir()
    (folder / "train.py").write_text(text)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SUBLET_CHECKPOINT_DIR": str(folder / "checkpoints")}
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=env, check=True, capture_output=True)
    return torch.load(folder / "model.pt")


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_script_comes_to_the_same(name, tmp_path):
    before, after = (SCRIPTS / name / f"{which}.py" for which in ("before", "after"))
    expected = weights(tmp_path / "by-hand", after.read_text())
    found = weights(tmp_path / "converted", convert(Script.read(before)).text)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
