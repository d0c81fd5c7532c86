"""A worker whose node fetches files for it, or runs its setup, is late only when that has come to nothing."""

from __future__ import annotations

import pytest

from sublet.runtime.group import states
from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.files import Preparing
from sublet.wire.messages import WorkerDown


@pytest.fixture(params=[True, False], ids=["sdk", "script"])
def group(request):
    spec = JobSpec(name="job", argv=("x",), cwd="/", sdk=request.param)
    found = build_group("job-1", spec, log_of=str, env=dict)
    found.move(1, (("a", 1),), 0, 0.0)
    return found


def test_the_time_to_start_does_not_run_while_a_worker_is_prepared(group):
    (worker_id,) = group.workers
    for at_s in range(0, 3 * int(states.READY_S), 60):
        group.hear(Preparing(worker_id=worker_id), float(at_s))
        group.tick(float(at_s))
    assert group.news == []
    last_s = float(at_s)
    group.tick(last_s + states.READY_S)
    assert group.news == []
    group.tick(last_s + states.READY_S + 1.0)
    assert [news.outcome for news in group.news] == [Outcome.RESTARTED]


def test_a_setup_that_failed_is_the_users_own_failure(group):
    (worker_id,) = group.workers
    group.hear(WorkerDown(worker_id=worker_id, code=1, error="setup ended with exit code 1:\nno wheel"), 1.0)
    group.tick(1.0 + 2 * states.JUDGE_S)
    outcome = Outcome.FAILED if group.spec.sdk else Outcome.RESTARTED  # as a script that ends before its first step
    assert [(news.outcome, news.why) for news in group.news] == [(outcome, "setup ended with exit code 1:\nno wheel")]
    assert group.failures == {"user": 1}
