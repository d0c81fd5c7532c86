"""A state that changes hands: whatever step is cut short, one side may run, and it has all that was ever written."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.controller_host.life import HandoverStep, Situation, next_step
from sublet.runtime.controller_host.record import Home

ORDERS = st.lists(st.tuples(st.sampled_from(Home), st.integers(0, 9), st.booleans()), max_size=8)


def may_run(now):
    """The sides on which a controller would start if asked to."""
    here = [Home.HERE] if now.home is Home.HERE else []
    there = [Home.ANCHOR] if not now.fenced else []
    return here + there


def after_step(now, step):
    """The state after the step; one that a crash cuts short changes nothing, or all of it."""
    match step:
        case HandoverStep.STOP_HERE:
            return replace(now, runs_here=False, fresh_there=False)
        case HandoverStep.COPY_THERE:
            return replace(now, fenced=True, fresh_there=True)
        case HandoverStep.TURN_TO_ANCHOR:
            return replace(now, home=Home.ANCHOR, fresh_here=False)
        case HandoverStep.FREE:
            return replace(now, fenced=False)
        case HandoverStep.START_THERE:
            return replace(now, runs_there=True, fresh_here=False)
        case HandoverStep.FENCE:
            return replace(now, fenced=True)
        case HandoverStep.STOP_THERE:
            return replace(now, runs_there=False)
        case HandoverStep.COPY_HERE:
            return replace(now, fresh_here=True)
        case HandoverStep.TURN_TO_HERE:
            return replace(now, home=Home.HERE, fresh_there=False)


def check(now):
    """Exactly one has the word, or nobody while it is on its way; whoever runs may; whoever may has it all."""
    allowed = may_run(now)
    assert len(allowed) <= 1, now
    assert now.home is Home.HERE or Home.HERE not in allowed
    assert not (now.runs_here and now.runs_there), now
    if now.home is Home.HERE:
        assert now.fresh_here, now
    if Home.ANCHOR in allowed:
        assert now.fresh_there or now.runs_there, now


def carried_out(now, to, most):
    """So many steps of the hand-over, then a crash."""
    for _ in range(most):
        if (step := next_step(now, to)) is None:
            return now
        now = after_step(now, step)
        check(now)
    return now


def begin(now):
    """Whoever may run is started by its owner, or by its keeper; what it writes is nowhere else."""
    match may_run(now):
        case [Home.HERE]:
            return replace(now, runs_here=True, fresh_there=False)
        case [Home.ANCHOR]:
            return replace(now, runs_there=True, fresh_here=False)
        case _:
            return now


@given(ORDERS)
def test_after_a_crash_at_any_step_one_side_may_run_and_it_has_the_whole_state(orders):
    now = Situation(home=Home.HERE, runs_here=True)
    for to, most, begins in orders:
        now = carried_out(now, to, most)
        now = begin(now) if begins and not (now.runs_here or now.runs_there) else now
        check(now)
    for to in (Home.ANCHOR, Home.HERE):  # and from there both ways can be gone to their ends
        now = carried_out(now, to, 99)
        assert next_step(now, to) is None
        assert now.home is to
        assert may_run(now) == [to]


def test_nobody_may_run_between_the_fence_and_the_register_and_the_same_order_goes_on():
    there = carried_out(Situation(home=Home.HERE, runs_here=True), Home.ANCHOR, 99)
    steps, now = [], there
    while (step := next_step(now, Home.HERE)) is not None:
        steps.append(step)
        now = after_step(now, step)
    assert steps == [HandoverStep.FENCE, HandoverStep.STOP_THERE, HandoverStep.COPY_HERE, HandoverStep.TURN_TO_HERE]
    fenced = after_step(there, HandoverStep.FENCE)
    assert may_run(fenced) == []
    assert may_run(carried_out(fenced, Home.ANCHOR, 99)) == [Home.ANCHOR]  # taken back: it goes on there
