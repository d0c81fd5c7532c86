"""What is learned from a report, and of which group it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sublet.domain.plan import Phase
from sublet.runtime.controller.host import PACES
from sublet.runtime.controller.jobs.reports import Reports
from sublet.runtime.controller.memory.context import Context, NodeTable
from sublet.wire.messages import Stepped


@pytest.mark.parametrize(("phase", "workers"), [(Phase.RUNNING, 2), (Phase.RESIZING, 0), (Phase.BROKEN, 0)])
def test_what_a_group_tells_while_another_forms_is_not_taken_for_the_speed_of_that_one(phase, workers):
    heard = []
    message = Stepped(worker_id="job.1.0", generation=1, step=2, done=2.0, epoch=0, loss=1.0, step_s=0.1)
    record = SimpleNamespace(
        id="job",
        spec=SimpleNamespace(cut="", sdk=False),
        group=SimpleNamespace(work=100.0, size=2, stepped=message),  # it is to have two workers
        share=0.02,
        measure=lambda _, gpu, width, nodes: heard.append((gpu, width, nodes)),
    )
    state = SimpleNamespace(phase=phase, gpu="T4", spread=(1, 1))
    inbox = SimpleNamespace(kernel=SimpleNamespace(jobs={"job": state}), queue=lambda _: None, now_s=lambda: 0.0)
    context = Context(
        inbox=inbox,
        table=None,
        nodes=NodeTable(),
        bill=None,
        alarms=SimpleNamespace(gauges=None),
        host=SimpleNamespace(clock=None, paces=PACES),
    )
    stragglers = SimpleNamespace(compare=lambda *_: None)
    Reports(context, None, stragglers).learn(record, message, 1, 0.0)
    assert heard == [("T4", workers, 2)]
