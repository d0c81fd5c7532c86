"""What a member of a grid says reaches whoever hears it as it was said."""

from __future__ import annotations

import os
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import BadInput  # noqa: E402
from sublet.wire.lines import LineBuffer, to_line  # noqa: E402
from sublet.wire.messages import Broke, Finished, Joined, Keep, Leading, Ready, Stepped  # noqa: E402
from sublet_lab.grid.control import Control  # noqa: E402

STEPPED = Stepped(
    worker_id="w", generation=3, step=1, done=12.0, epoch=0, loss=1.5, step_s=0.2, atoms=6, units=(0.0, 0.25, 1e-3)
)
KEEP = Keep(worker_id="w", generation=3, parts=(0, 2))


def test_times_of_units_and_parts_to_keep_pass_the_wire():
    assert list(LineBuffer().feed(to_line(STEPPED) + to_line(KEEP))) == [STEPPED, KEEP]


@pytest.mark.parametrize("wrong", [b"[-1.0]", b"[1e400]", b'["1"]', b"[null]", b"[true]", b"3"])
def test_times_of_units_that_cannot_be_are_refused(wrong):
    line = to_line(STEPPED).replace(b"[0.0,0.25,0.001]", wrong)
    assert wrong in line
    with pytest.raises(BadInput, match="units"):
        list(LineBuffer().feed(line))


SAMPLES, BATCH = 8, 2


def script(fails_at, model, optimizer, name, connection, *_):
    """In a process of its own: it ends by an error when it has made so many steps."""
    os.environ.update(SUBLET_CONTROL_FD=str(connection.fileno()), SUBLET_WORKER_ID=name)
    data = TensorDataset(torch.ones(SAMPLES, 3))

    def loss(output, _):
        if s.steps == fails_at:
            raise ValueError("boom")
        return output.square().mean()

    with train.session(model, optimizer, data, global_batch=BATCH, micro_batch=BATCH, loss=loss) as s:
        for batch in s.batches(epochs=1):
            s.step(batch)
        if s.steps == fails_at:
            raise ValueError("boom")


def said(fails_at):
    """All that it says in a grid of one, but for its steps."""
    model = train.Stages(nn.Identity(), [nn.Linear(3, 3) for _ in range(2)], nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # here: the first of a process takes seconds
    with Control(0, partial(script, fails_at, model, optimizer)) as control:
        worker = control.start("w")
        control.order([worker], Grid(1, 1))
        control.wait(lambda: not worker.alive)
        return [each for each in worker.said if not isinstance(each, Stepped | Leading)]


def test_a_script_that_fails_says_why_before_the_others_see_that_it_is_gone():
    """Its neighbours know of closed connections alone."""
    *before, last = said(fails_at=2)
    assert [type(each) for each in before] == [Ready, Joined]
    assert isinstance(last, Broke)
    assert (last.why, last.step, last.generation) == ("ValueError: boom", 2, 1)


def test_nothing_breaks_by_the_end_of_a_script_that_has_made_all_its_steps():
    assert [type(each) for each in said(fails_at=SAMPLES // BATCH)] == [Ready, Joined]
    assert [type(each) for each in said(fails_at=None)] == [Ready, Joined, Finished]
