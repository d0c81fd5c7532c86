"""A script that opens a session is trained as one model by all its workers, however it was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

TRAIN = """
import sys
from torch import nn
import torch
name = "sub" + "let.train"  # so that no look at the text finds it
train = __import__(name, fromlist=["train"]) if "hidden" in sys.argv else None
if train is None:
    from sublet import train
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(240, 4), torch.randn(240, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with train.session(model, optimizer, data, global_batch=24, epochs=3) as s:
    for epoch in s.epochs():
        for x, y in s:
            s.step(nn.functional.mse_loss(model(x), y))
    if s.rank == 0:
        print("steps", s.steps, "of", s.world, flush=True)
"""


class Place:
    """A directory with the script, and a controller of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "SUBLET_STATE": str(folder / "state"), "PATH": path}
        for name in ("SUBLET_SERVER", "SUBLET_TOKEN", "COLUMNS"):
            self.env.pop(name, None)

    def sublet(self, *words: str) -> str:
        command = [sys.executable, "-m", "sublet", *words]
        done = subprocess.run(
            command, env=self.env, cwd=self.folder, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    here = Place(tmp_path_factory.mktemp("place").resolve())
    here.sublet("up", "--market", "none", "--no-budget")
    yield here
    here.sublet("down")


@pytest.mark.parametrize("words", [["env", "X=1", "python", "train.py"], ["bash", "-c", "python train.py"]])
def test_a_session_is_seen_at_submit_through_env_and_bash(place, words):
    said = place.sublet("run", "--workers", "2..2", "--", *words)
    assert "resized without a restart" in said
    assert "steps 30 of 2" in said


@pytest.mark.parametrize("words", [["env", "X=1", "python", "train.py"], ["bash", "-c", "python train.py $0"]])
def test_a_session_that_nobody_saw_is_heard_and_its_workers_start_again_as_one_group(place, words):
    said = place.sublet("run", "--no-sdk", "--workers", "3..3", "--", *words, "hidden")
    assert "an unmodified script" in said
    assert said.count("steps 30 of 3") == 1
