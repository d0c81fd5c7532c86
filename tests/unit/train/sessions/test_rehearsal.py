"""In a rehearsal a session writes its state after each step, begins with other random numbers, and is killed on cue."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sublet.train.numerics.seeds import seed_python_and_numpy
from sublet.train.sessions.options import Options
from sublet.train.sessions.rehearsal import Rehearsed, rehearsed_options
from sublet.wire.rehearsal import REHEARSAL, Cue


@pytest.fixture
def cued(tmp_path, monkeypatch):
    """A session that has such a cue, and the signals that it sent itself."""
    killed = []
    monkeypatch.setattr("os.kill", lambda _, number: killed.append(number))

    def make(model=None, **facts):
        cue = Cue(folder=str(tmp_path / "seen"), steps=20, **facts)
        if not (tmp_path / "seen").exists():
            cue.write()
        monkeypatch.setenv(REHEARSAL, cue.folder)
        model = model or torch.nn.Linear(200, 2)
        saver = SimpleNamespace(settle=lambda: killed.append("settled"))
        link = SimpleNamespace(has_order=lambda: True)
        return Rehearsed(model.named_parameters, link, saver), cue, killed

    return make


def test_state_is_written_after_each_step_that_this_process_made(cued):
    model = torch.nn.Linear(200, 2)
    rehearsed, cue, _ = cued(model)
    for step in (0, 1, 1, 2):
        rehearsed.come_to(step, 0, 1, lambda: 0.5)
    late, _, _ = cued(model)
    late.come_to(7, 0, 2, lambda: 0.0)  # it has just come, and knows no loss
    late.come_to(8, 0, 2, lambda: 0.25)
    late.come_to(9, 1, 2, lambda: 0.25)  # rank 0 writes
    assert [step for step in range(20) if cue.step_file(step).exists()] == [0, 1, 2, 8]
    with np.load(cue.step_file(8)) as file:
        assert file["loss"] == 0.25
        row = file["p:weight"]
    assert row[0] == pytest.approx(model.weight.sum().item(), rel=1e-4)
    assert row[1] == pytest.approx(model.weight.norm().item(), rel=1e-4)
    assert 50 <= len(row) - 2 <= 64


def test_another_seed_changes_weights_by_a_rounding_and_what_is_drawn(cued):
    model = torch.nn.Linear(200, 2)
    before = model.weight.detach().clone()
    rehearsed, _, _ = cued(model, seed=5)
    drawn = []
    for begin in (lambda: None, lambda: rehearsed.begin(0, 0)):
        torch.manual_seed(0)
        begin()
        drawn.append(torch.rand(1).item())
    assert drawn[0] != drawn[1]
    far = ((model.weight - before).norm() / before.norm()).item()
    assert 1e-8 < far < 1e-5
    rehearsed.begin(4, 0)  # it goes on from a checkpoint
    assert ((model.weight - before).norm() / before.norm()).item() == pytest.approx(far)


def test_python_and_numpy_draw_otherwise_in_each_epoch_of_the_run_with_another_seed(cued, monkeypatch):
    def drawn():
        seed_python_and_numpy(3, 1)
        return random.random(), np.random.random()  # noqa: NPY002 - the script's

    cued(seed=5)
    other = drawn()
    assert other == drawn()
    monkeypatch.delenv(REHEARSAL)
    assert all(one != two for one, two in zip(other, drawn(), strict=True))


def test_rank_0_is_killed_once_and_later_all_that_were_there_after_their_checkpoint(cued):
    first, _, killed = cued(kill_at=10, restart_at=15)
    first.come_to(9, 0, 2, lambda: 0.5)
    first.come_to(10, 1, 2, lambda: 0.5)
    assert killed == []
    first.come_to(10, 0, 2, lambda: 0.5)
    first.come_to(11, 0, 2, lambda: 0.5)
    assert killed == [signal.SIGKILL]
    assert [step for step in range(20) if first.saves(step)] == [13]
    first.come_to(15, 0, 2, lambda: 0.5)
    first.come_to(15, 1, 2, lambda: 0.5)
    assert killed[1:] == ["settled", signal.SIGKILL] * 2
    again, _, _ = cued(kill_at=10, restart_at=15)
    again.come_to(15, 0, 2, lambda: 0.5)
    assert len(killed) == 5


def test_half_precision_is_told(cued):
    model = torch.nn.Linear(4, 4)
    rehearsed, cue, _ = cued(model)
    model(torch.ones(1, 4))
    rehearsed.come_to(1, 0, 1, lambda: 0.5)
    assert not cue.was_coarse
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(1, 4))
    rehearsed.come_to(3, 0, 1, lambda: 0.5)
    assert cue.was_coarse


def test_only_with_batch_statistics_other_samples_come_together(cued):
    options, plain, batched = Options(global_batch=4, seed=3), torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(2)
    cued(seed=5)
    assert rehearsed_options(options, plain) == replace(options, probe=False)
    assert rehearsed_options(options, batched) == replace(options, probe=False, seed=8)


def test_outside_of_a_rehearsal_nothing_happens(monkeypatch):
    monkeypatch.delenv(REHEARSAL, raising=False)
    model = torch.nn.BatchNorm1d(2)
    rehearsed = Rehearsed(model.named_parameters, SimpleNamespace(), SimpleNamespace())
    rehearsed.begin(0, 0)
    rehearsed.come_to(10**9, 0, 1, pytest.fail)
    assert not rehearsed.saves(1)
    assert not rehearsed.is_over(10**9)
    assert torch.equal(model.weight, torch.ones(2))
    options = Options(global_batch=4)
    assert rehearsed_options(options, model) is options
