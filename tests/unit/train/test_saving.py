"""A checkpoint that cannot be written is told, and training goes on."""

from __future__ import annotations

import shutil

import torch

from sublet.train.saving import Saver
from sublet.train.state import Progress
from sublet.wire.messages import Saved, SaveFailed


def test_a_failed_write_is_told_and_the_next_one_is_tried(tmp_path):
    told = []
    saver = Saver(tmp_path, "job.1.0", told.append)
    saver.opened(1)
    progress = Progress(samples=8, batch=4)
    shutil.rmtree(tmp_path / "staging", ignore_errors=True)
    (tmp_path / "staging").write_text("in the way")
    saver.save({"w": torch.ones(3)}, progress, 1)
    assert [type(message) for message in told] == [SaveFailed]
    assert told[0].worker_id == "job.1.0"
    (tmp_path / "staging").unlink()
    saver.save({"w": torch.ones(3)}, progress, 1)
    assert [type(message) for message in told] == [SaveFailed, Saved]
    saver.close()
