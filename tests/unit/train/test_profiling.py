"""A session that is only measured has no end, ends no epoch, steps no schedule, and keeps nothing."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.utils.data import TensorDataset

from sublet import train
from sublet.train.sessions.report import Report
from sublet.train.state.state import Progress
from sublet.wire.messages import PROFILED


def test_a_profiling_run_goes_on_and_leaves_no_checkpoint(monkeypatch, tmp_path):
    monkeypatch.setenv(PROFILED, "0.25")
    model = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, 1)
    data = TensorDataset(torch.ones(4, 2), torch.ones(4, 1))
    epochs, more = [], {"epochs": 1, "scheduler": schedule, "checkpoint_dir": tmp_path / "kept"}
    with train.session(model, sgd, data, global_batch=2, **more) as s:
        for epoch in s.epochs():
            epochs.append(epoch)
            for x, y in s:
                s.step(torch.nn.functional.mse_loss(model(x), y))
                if s.steps == 7:
                    break
            break
    assert epochs == [0]
    assert (s.steps, s.epoch) == (7, 3)  # an epoch is two steps, and the script was told of one alone
    assert schedule.last_epoch == 0
    assert not (tmp_path / "kept").exists()


def test_whoever_wants_a_checkpoint_hears_that_all_is_well():
    said = []
    link = SimpleNamespace(worker_id="w", say=said.append)
    Report(link, None).nothing_to_save(Progress(samples=10, batch=2, steps=7, epoch=1, offset=4))
    assert [(each.worker_id, each.step, each.done, each.size_bytes) for each in said] == [("w", 7, 14.0, 0)]
