"""Scripts that are broken off amid an epoch, with real processes (`tests/rigs/broken_off.py`)."""

from __future__ import annotations

import pytest

from sublet.train import EXIT_LOST
from tests.rigs.scenario import world

pytest.importorskip("torch")
RIG = "tests.rigs.broken_off"
BEGIN = """
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sublet import train

torch.manual_seed(0)
x = torch.rand(320, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def turn(steps):
    if steps > 5:
        Path("step").touch()
        while not Path("hurry").exists() and steps > 30:
            time.sleep(0.01)
    time.sleep(0 if Path("hurry").exists() else 0.01)
"""
END = """
torch.save(model.state_dict(), "model.pt")
print("saved")
"""
OUTSIDE = """
try:
    with train.session(model, optimizer, data, global_batch=16, epochs=3) as s:
        for epoch in s.epochs():
            for a, b in s:
                turn(s.steps)
                s.step(nn.functional.mse_loss(model(a), b))
except:
    print("interrupted")
"""
INSIDE = """
with train.session(model, optimizer, data, global_batch=16, epochs=3) as s:
    try:
        for a, b in s:
            turn(s.steps)
            s.step(nn.functional.mse_loss(model(a), b))
    except:
        print("interrupted")
"""
AT_ALL_COSTS = """
s = train.session(model, optimizer, data, global_batch=16, epochs=3)
s.__enter__()
loop = iter(s)
for _ in range(1000):
    try:
        a, b = next(loop)
        turn(s.steps)
        s.step(nn.functional.mse_loss(model(a), b))
    except StopIteration:
        s.__exit__(None, None, None)
        break
    except:
        loop = iter(s)
"""
ITS_OWN = """
ck = train.checkpointed(model=model, optimizer=optimizer, steps=60)
for step in range(ck.resume(), 60):
    try:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[step::60]), x[step::60].sum(1, keepdim=True)).backward()
        optimizer.step()
        turn(step)
        ck.tick(step + 1)
    except:
        print("interrupted")
        break
"""


@pytest.mark.parametrize(
    ("script", "half", "by"),
    [(OUTSIDE, True, ""), (INSIDE, False, ""), (AT_ALL_COSTS, True, ""), (ITS_OWN, True, "signal")],
    ids=["outside", "inside", "at all costs", "its own"],
)
def test_whoever_swallows_the_order_to_leave_has_left_and_the_next_goes_on(script, half, by, tmp_path):
    (tmp_path / "train.py").write_text(BEGIN + script + END)
    run = world("swallowed", tmp_path, env={"BY": by}, module=RIG)
    (codes, weights), (calm_codes, expected) = run["struck"], run["calm"]
    assert codes == [83, 0]  # though the first came to its end
    assert calm_codes == [0]
    assert weights == expected
    assert not run["finished"]  # nobody has said so when it left
    assert run["left"] or by
    assert (run["half"] is not None) is half
    assert run["half"] != expected


def test_lines_before_the_batches_count_once_whoever_comes_amid_an_epoch(tmp_path):
    run = world("annealed", tmp_path, module=RIG)
    (expected,), ends = run["calm"]["ends"], run["struck"]["ends"]
    assert run["calm"]["codes"] == [0]
    assert run["struck"]["codes"] == [-9, 83, 83, 0, 0]
    assert run["struck"]["generations"] == 7
    assert len(ends) == 2
    assert ends[0]["weights"] == ends[1]["weights"]
    for end in ends:
        assert (end["tau"], end["rate"]) == (expected["tau"], expected["rate"])
        assert end["levels"] == pytest.approx(expected["levels"], rel=1e-4)
        assert end["weights"] == pytest.approx(expected["weights"], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("env", "workers"), [({"ENDS_AT": "0"}, 1), ({"ENDS_AT": "0"}, 2), ({"ENDS_AT": "9"}, 2)])
@pytest.mark.parametrize("length", [{}, {"STEPS": "60"}], ids=["epochs", "steps"])
def test_a_training_whose_script_left_its_loop_is_over_at_every_later_start(env, workers, length, tmp_path):
    run = world("left", tmp_path, env=env | length, module=RIG, workers=workers)
    first, *later = run["starts"]
    assert len(first) == workers
    assert all(end == first[0] for end in first)
    assert first[0]["steps"] == (9 if env["ENDS_AT"] == "9" else 25)  # five of the epoch that ended early, and 20
    assert first[0]["bad"] == 2
    assert later == [first, first]  # to the bit, with what was kept, and the lines behind the loop have run
    assert run["codes"] == [-9] * 2 * workers + [0] * workers
    said = [text for text in run["said"] if "was ended by its script" in text]
    assert len(said) == 2  # rank 0 of each later start, once
    assert all(text.count("there is nothing left to train") == 1 for text in said)


def test_whoever_comes_in_place_of_one_that_was_lost_behind_its_loop_has_nothing_to_train(tmp_path):
    run = world("relieved", tmp_path, env={"ENDS_AT": "0"}, module=RIG)
    assert run["finished"]
    assert run["codes"] == [0, -9, 0]
    first, second = run["ends"]
    assert first == second
    assert first["steps"] == 25


def test_who_has_left_its_loop_when_all_go_back_to_a_checkpoint_does_not_say_that_its_steps_are_all(tmp_path):
    """The other had a range for itself. Whoever is started then makes what is missing."""
    run = world("undone", tmp_path, env={"ENDS_AT": "0"}, module=RIG)
    assert not run["finished"]
    assert run["codes"] == [EXIT_LOST, -9]
    assert run["then"]
    assert run["end"]["steps"] == 25
