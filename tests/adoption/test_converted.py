"""What `sublet convert` makes of each script of the study: as written by hand, and the same at another width."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.cli.work.script.convert import convert
from sublet.cli.work.script.reading import Script

torch = pytest.importorskip("torch")

from tests.rigs.converted_runs import differs  # noqa: E402
from tests.rigs.scenario import world  # noqa: E402

SCRIPTS = Path(__file__).parent / "scripts"
FRAMEWORKS = ("accelerate", "hf_trainer", "lightning")
BY_HAND = ("dcgan",)  # several optimizers
PLAIN = sorted(path.name for path in SCRIPTS.iterdir() if path.name not in (*FRAMEWORKS, *BY_HAND))
DRAWS = ("nanogpt",)  # written by hand it draws its batches otherwise
BY_ITS_PART = ("imagenet", "mnist", "nanogpt")  # noise, batch norm and dropout see a worker's part


def weights(folder, text):
    folder.mkdir()
    (folder / "train.py").write_text(text)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SUBLET_CHECKPOINT_DIR": str(folder / "checkpoints")}
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=env, check=True, capture_output=True)
    return torch.load(folder / "model.pt", weights_only=False)


def converted(name):
    return convert(Script.read(SCRIPTS / name / "before.py")).text


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in DRAWS])
def test_a_converted_script_comes_to_what_was_written_by_hand(name, tmp_path):
    expected = weights(tmp_path / "by-hand", (SCRIPTS / name / "after.py").read_text())
    assert differs(expected, weights(tmp_path / "converted", converted(name))) < 1e-6


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in BY_ITS_PART])
def test_a_converted_script_comes_to_the_same_at_two_workers_and_under_strikes(name, tmp_path):
    (tmp_path / "after.py").write_text(converted(name))
    expected = weights(tmp_path / "alone", converted(name))
    struck = world("resized", tmp_path / "resized", env={"SCRIPT": str(tmp_path)}, module="tests.adoption.strikes")
    assert struck["wide"] >= 5  # steps that two workers made
    assert differs(expected, torch.load(tmp_path / "resized" / "model.pt", weights_only=False)) < 5e-3
