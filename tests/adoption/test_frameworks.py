"""Scripts that leave their loop to a framework: few lines change, and strikes do not change what they come to.

As in `test_scripts.py`; they are apart because the frameworks take long to import. `make adoption` runs them.
"""

from __future__ import annotations

import csv
import json

import pytest

torch = pytest.importorskip("torch")

from tests.rigs.docs_loops import loops  # noqa: E402
from tests.rigs.drifted import SEED, require_same  # noqa: E402
from tests.rigs.scenario import world  # noqa: E402

FRAMEWORKS = {"accelerate": "accelerate", "hf_trainer": "transformers.trainer", "lightning": "lightning.pytorch"}


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_a_framework_comes_to_the_same_under_strikes(name, tmp_path):
    """One worker, then two; the first is killed; all leave with a checkpoint, and another goes on to the end."""
    pytest.importorskip(FRAMEWORKS[name].partition(".")[0])
    found, told = {}, {}
    for strikes in ("alone", "resized"):
        place = tmp_path / strikes
        env = {"SCRIPT": name, "FRAMEWORK": FRAMEWORKS[name]}
        run = world(strikes, place, env=env, module="tests.adoption.strikes")
        assert run["codes"][-1] == 0
        found[strikes], told[strikes] = torch.load(place / "model.pt"), HISTORY[name](place)
    assert run["generations"] == 5  # each strike is one, and each worker that comes: none of them was missed
    assert run["wide"] >= 5  # steps that two workers made
    torch.testing.assert_close(found["resized"], found["alone"], rtol=1e-4, atol=1e-5)
    assert len(told["alone"]) >= 5
    assert told["resized"] == [pytest.approx(each, rel=1e-3) for each in told["alone"]]


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_a_framework_is_the_same_in_all_ranks_after_twenty_changes_of_width(name, tmp_path):
    """As the loops of the documentation are: what it shows of a framework is a part of this script."""
    pytest.importorskip(FRAMEWORKS[name].partition(".")[0])
    assert name in {loop.script for loop in loops().values()}
    env = {"SCRIPT": name, "FRAMEWORK": FRAMEWORKS[name]}
    require_same(world("session", tmp_path, env=env, module="tests.adoption.drifts", seed=SEED), tmp_path)


def history_of_trainer(place):
    """What the Trainer wrote down of losses and rates, in its last checkpoint."""
    last = max(place.glob("out/checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    logs = json.loads((last / "trainer_state.json").read_text())["log_history"]
    (told,) = [line for path in place.glob("*.err") for line in path.read_text().splitlines() if MEAN in line]
    whole = float(told.partition(MEAN)[2])  # of all starts
    return [[each[name] for name in FIGURES if name in each] for each in logs] + [[whole]]


MEAN = "mean loss of all steps: "
FIGURES = ("step", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm")


def history_of_lightning(place):
    """What its logger wrote down of each epoch's validation, in files of all workers that were rank 0."""
    rows = [row for path in place.glob("logs/*/metrics.csv") for row in csv.DictReader(path.read_text().splitlines())]
    return sorted([int(row["step"]), float(row["val_loss"])] for row in rows if row.get("val_loss"))


def history_of_accelerate(place):
    """What whoever was the main process wrote after each epoch, in turn."""
    return [[float(word) for word in line.split()] for line in (place / "losses.txt").read_text().splitlines()]


HISTORY = {"accelerate": history_of_accelerate, "hf_trainer": history_of_trainer, "lightning": history_of_lightning}
