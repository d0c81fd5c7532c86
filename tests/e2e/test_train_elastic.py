"""Training that changes its width, loses workers and resumes, with real processes (of `tests/rigs/training.py`)."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from sublet.planning.straggling import straggler_among
from sublet.train import EXIT_LEFT, EXIT_LOST
from tests.rigs.scenario import world
from tests.rigs.sizes import sized

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
SAMPLES = 1000
RESIZES = sized(8, 50)  # scenario 19 makes fifty: `make scenarios ONLY=19`
WHOLE = {str(epoch): list(range(SAMPLES)) for epoch in range(3)}


def test_random_resizes_lose_no_sample_and_end_where_a_fixed_width_ends(tmp_path):
    fixed = world("fixed", tmp_path / "fixed", width=2)
    resized = world("resizes", tmp_path / "resized", count=RESIZES)
    assert resized["resizes"] == RESIZES
    assert fixed["seen"] == resized["seen"] == WHOLE  # a sorted list is a multiset: each sample once per epoch
    for run in (fixed, resized):
        assert all(end["parameters"] == run["ends"][0]["parameters"] for end in run["ends"])
    assert resized["ends"][0]["steps"] == fixed["ends"][0]["steps"] == 3 * 63
    assert resized["ends"][0]["loss"] == pytest.approx(fixed["ends"][0]["loss"], rel=0.01)
    assert set(resized["codes"].values()) == {0, EXIT_LEFT}


@pytest.mark.parametrize("how", ["resizes", "kills"])
def test_what_is_frozen_in_every_other_epoch_survives_resizes_and_kills(tmp_path, how):
    fixed = world("fixed", tmp_path / "fixed", width=2, env={"FREEZES": "1"})
    given = {"count": RESIZES} if how == "resizes" else {"count": 12, "width": 4, "seed": 5}
    struck = world(how, tmp_path / how, env={"FREEZES": "1"}, **given)
    assert fixed["seen"] == struck["seen"] == WHOLE
    assert all(end["parameters"] == struck["ends"][0]["parameters"] for end in struck["ends"])
    assert struck["ends"][0]["loss"] == pytest.approx(fixed["ends"][0]["loss"], rel=0.01)


def test_killed_workers_cost_no_sample_and_the_others_go_on_at_once(tmp_path):
    run = world("kills", tmp_path, count=12, width=4, seed=5)
    assert run["kills"] >= 8
    assert run["seen"] == WHOLE
    assert all(end["parameters"] == run["ends"][0]["parameters"] for end in run["ends"])
    assert run["back_s"]  # others went on; how soon is measured by benchmarks.live
    assert set(run["codes"].values()) == {0, -9}


def test_a_run_that_left_or_was_killed_carries_on_from_its_checkpoint(tmp_path):
    run = world("resumes", tmp_path)
    fresh, after_leave, after_kill = run["starts"]
    assert fresh == 0
    assert after_leave == run["left"][0] >= 20  # not one step is done again
    assert after_kill == run["saved"][1] >= after_leave + 20
    assert run["sources"] == ["fresh"] * 3 + ["checkpoint"] * 6
    assert run["seen"] == WHOLE
    assert min(run["printed"]) >= 0, "each says where in its file it took its rank"


def test_workers_that_find_damaged_checkpoints_alone_do_not_begin_at_0_and_leave_when_told_to(tmp_path):
    run = world("held", tmp_path)
    assert run["steps"] == [-1]
    assert run["joined"] == 0
    assert run["codes"] == [EXIT_LEFT, EXIT_LEFT]


@pytest.mark.parametrize(("width", "batch", "micro"), [(3, 16, "2"), (3, 2, "2")], ids=["uneven", "more than samples"])
def test_a_step_of_any_width_takes_the_gradient_of_one_process(tmp_path, width, batch, micro):
    torch = pytest.importorskip("torch")
    env = {"SAMPLES": str(batch), "BATCH": str(batch), "EPOCHS": "1", "OPTIMIZER": "sgd", "MICRO": micro}
    run = world("fixed", tmp_path, env=env, width=width)
    from tests.rigs.training import Logged, network

    model, dataset = network(), Logged(batch)
    torch.nn.functional.mse_loss(model(dataset.x), dataset.y).backward()
    expected = torch.cat([(parameter - parameter.grad).reshape(-1) for parameter in model.parameters()])
    for end in run["ends"]:
        assert torch.tensor(end["parameters"]) == pytest.approx(expected.detach(), abs=1e-6)


def test_under_autocast_two_workers_are_one_that_takes_as_many_samples_at_a_time(tmp_path):
    """A part's gradients are rounded to bfloat16 before they are added up: other parts, other weights."""

    def weights(name, width, **more):
        env = {"SAMPLES": "480", "EPOCHS": "1", "AUTOCAST": "1", **more}
        return world("fixed", tmp_path / name, env=env, width=width)["ends"][0]["parameters"]

    two, halves, whole = weights("two", 2), weights("halves", 1, MICRO="8"), weights("whole", 1)
    assert two == pytest.approx(halves, abs=1e-6)
    assert whole != pytest.approx(halves, abs=1e-4)
    assert whole == pytest.approx(halves, abs=1e-2)


def test_workers_end_when_their_agent_is_gone(tmp_path):
    run = world("orphans", tmp_path)
    assert set(run["codes"].values()) == {EXIT_LOST}


def test_every_rank_says_what_its_own_part_of_a_step_takes_and_the_one_that_limps_stands_out(tmp_path):
    run = world("limping", tmp_path, env={"SAMPLES": "400"}, rank=2)
    own_s = {name: median(times[1:]) for name, times in run["own_s"].items()}
    found = straggler_among(own_s, median(run["step_s"]))
    assert found is not None, own_s
    assert found.worker_id == run["order"][2]
    assert max(own_s, key=own_s.__getitem__) == found.worker_id
    assert own_s[found.worker_id] >= 0.1
    assert set(run["codes"].values()) == {0}
