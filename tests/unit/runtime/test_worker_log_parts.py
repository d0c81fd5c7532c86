"""The index of who was which rank from where on."""

from __future__ import annotations

import pytest

from sublet.errors import UnknownName
from sublet.runtime.worker_logs import WorkerLogs


def test_what_a_worker_prints_before_its_first_group_is_of_the_rank_that_it_gets_there(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.launched("w1", "n1", 1)
    assert [part.worker_id for part in logs.parts(rank=1)] == ["w1"], "if it fails at once, that is where it is found"
    logs.path("w1").write_text("imports\n")
    logs.ranked("w1", "n1", 0)
    assert logs.parts(rank=1) == ()
    assert [(part.worker_id, part.start, part.end) for part in logs.parts(rank=0)] == [("w1", 0, None)]


def test_a_rank_that_goes_to_and_fro_is_cut_where_it_went(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.ranked("w1", "n1", 0)
    logs.path("w1").write_text("12345")
    logs.ranked("w1", "n1", 1)
    logs.path("w1").write_text("1234567")
    logs.ranked("w1", "n1", 0)
    for known in (logs, WorkerLogs(tmp_path)):  # as it was, and as the next controller reads it
        assert [(part.start, part.end) for part in known.parts(rank=0)] == [(0, 5), (7, None)]
        assert [(part.start, part.end) for part in known.parts(rank=1)] == [(5, 7)]
        assert [(part.start, part.end) for part in known.parts()] == [(0, None)]
    with pytest.raises(UnknownName, match="w1"):
        logs.parts(worker_id="w2")
