"""The waiting jobs, in whatever order a policy asks for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.plan import JobState, arrival
from sublet.kernel.waiting import Waiting
from sublet.testing.values import a_job


def by_work(state):
    return state.job.work


def by_done(state):
    return state.done


def state(seq, work=1.0, done=0.0):
    return JobState(job=a_job(f"j{seq}", work=work), seq=seq, done=done)


def ids(states):
    return [each.job.id for each in states]


def test_ties_go_by_arrival_whatever_the_order_of_adding():
    waiting = Waiting()
    for seq in (2, 0, 1):
        waiting.add(state(seq))
    assert ids(waiting.by(arrival)) == ["j0", "j1", "j2"]


def test_an_order_asked_for_once_is_kept_up_to_date():
    waiting = Waiting()
    waiting.add(state(0, work=5.0))
    assert ids(waiting.by(by_work)) == ["j0"]
    waiting.add(state(1, work=3.0))
    waiting.add(state(2, work=9.0))
    waiting.remove("j0")
    assert ids(waiting.by(by_work)) == ["j1", "j2"]


def test_a_frozen_copy_does_not_hear_of_later_events():
    waiting = Waiting()
    waiting.add(state(0))
    list(waiting.by(arrival))
    copy = waiting.frozen()
    waiting.add(state(1))
    waiting.remove("j0")
    assert (ids(copy.by(arrival)), len(copy)) == (["j0"], 1)
    assert "j0" in copy
    assert "j0" not in waiting


@given(st.lists(st.tuples(st.sampled_from("+-~"), st.integers(0, 4), st.integers(0, 3)), min_size=15, max_size=40))
def test_any_history_leaves_every_order_sorted(history):
    waiting, twin, seq = Waiting(), {}, 0
    for verb, which, value in history:
        present = sorted(twin)
        if verb == "+":
            twin[f"j{seq}"] = state(seq, work=float(value + 1))
            waiting.add(twin[f"j{seq}"])
            seq += 1
        elif present:
            job_id = present[which % len(present)]
            waiting.remove(job_id)
            old = twin.pop(job_id)
            if verb == "~":  # it says how far it is, and stands elsewhere
                twin[job_id] = replace(old, done=float(value))
                waiting.add(twin[job_id])
        for key in (arrival, by_work, by_done):
            assert ids(waiting.by(key)) == ids(sorted(twin.values(), key=lambda s: (key(s), s.seq)))
        assert len(waiting) == len(twin)
