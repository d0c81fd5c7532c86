"""The index of who was which rank from where on."""

from __future__ import annotations

import pytest

from sublet.errors import UnknownName
from sublet.runtime.controller.files.logs import WorkerLogs


def test_what_a_worker_prints_before_its_first_group_is_of_the_rank_that_it_gets_there(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.add_launch("w1", "n1", 1)
    assert [part.worker_id for part in logs.parts(rank=1)] == ["w1"], "if it fails at once, that is where it is found"
    logs.path("w1").write_text("imports\n")
    logs.set_rank("w1", "n1", 0)
    assert logs.parts(rank=1) == ()
    assert [(part.worker_id, part.start, part.end) for part in logs.parts(rank=0)] == [("w1", 0, None)]


def test_a_rank_that_goes_to_and_fro_is_cut_where_it_went(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.set_rank("w1", "n1", 0)
    logs.path("w1").write_text("12345")
    logs.set_rank("w1", "n1", 1)
    logs.path("w1").write_text("1234567")
    logs.set_rank("w1", "n1", 0)
    for known in (logs, WorkerLogs(tmp_path)):  # as it was, and as the next controller reads it
        assert [(part.start, part.end) for part in known.parts(rank=0)] == [(0, 5), (7, None)]
        assert [(part.start, part.end) for part in known.parts(rank=1)] == [(5, 7)]
        assert [(part.start, part.end) for part in known.parts()] == [(0, None)]
    with pytest.raises(UnknownName, match="w1"):
        logs.parts(worker_id="w2")


def test_what_a_worker_prints_between_the_order_and_its_new_group_is_of_its_old_rank(tmp_path):
    logs = WorkerLogs(tmp_path)
    logs.add_order("w1", "n1", 1, 1)
    logs.path("w1").write_text("epoch 1\n")
    logs.add_order("w1", "n1", 0, 2)
    logs.path("w1").write_text("epoch 1\nepoch 2\n")
    assert logs.parts(rank=0) == ()
    assert [part.start for part in WorkerLogs(tmp_path).parts(rank=0)] == [8], "a controller that comes now must guess"
    logs.confirm_join("w1", 1, 16)
    assert logs.parts(rank=0) == (), "that was the group before"
    logs.path("w1").write_text("epoch 1\nepoch 2\nepoch 3\n")
    logs.confirm_join("w1", 2, 16)
    for known in (logs, WorkerLogs(tmp_path)):
        assert [(part.start, part.end) for part in known.parts(rank=1)] == [(0, 16)]
        assert [(part.start, part.end) for part in known.parts(rank=0)] == [(16, None)]


@pytest.mark.parametrize("how", ["it ended", "another order came"])
def test_a_worker_that_never_joins_has_the_rank_from_the_order_on(tmp_path, how):
    logs = WorkerLogs(tmp_path)
    logs.add_order("w1", "n1", 1, 1)
    logs.path("w1").write_text("12345")
    logs.add_order("w1", "n1", 0, 2)
    logs.path("w1").write_text("1234567")
    if how == "it ended":
        logs.settle("w1")
        assert [(part.start, part.end) for part in logs.parts(rank=0)] == [(5, None)]
    else:
        logs.add_order("w1", "n1", 1, 3)
        logs.confirm_join("w1", 3, 7)
        assert [(part.start, part.end) for part in logs.parts(rank=0)] == [(5, 7)]
        assert [(part.start, part.end) for part in logs.parts(rank=1)] == [(0, 5), (7, None)]
