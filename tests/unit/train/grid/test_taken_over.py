"""A loop that counts and may stop early, taken over by another worker, or gone back in: as if nothing had been."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.course import Course  # noqa: E402
from sublet.train.grid.whereabouts import BATCH, CALL, END, STEPPED, evaluation  # noqa: E402
from sublet.train.kept import Own  # noqa: E402
from sublet.train.schedules import Schedules  # noqa: E402
from sublet.train.state import Progress  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402

FIRST = {"tries": 0, "total": 0, "ends": 0, "best": math.inf, "bad": 0, "best_step": 0, "rate": 1.0}


class Script(NamedTuple):
    """How long its epochs are, what each step comes to, and when it stops."""

    samples: int
    epochs: int
    results: tuple[int, ...]  # of a step, by its number: what an evaluation after it gives
    patience: int  # evaluations that are no better
    rests: int  # steps without a better one
    judges_always: bool  # not at the end of an epoch alone
    judges_last: bool = False  # behind the loop
    looks: bool = True  # before a step, at what it uses after it


class Taken(Exception):
    """At the place where its state is wanted, this loop is."""


class Loop:
    """One worker. `gives`: where its state is taken; `takes`: when it calls for that step, this state is what it gets.

    What a session does around `Course`, without a model: alike at all workers, so that none of them is needed.
    """

    def __init__(self, script: Script, gives: tuple[int, str] | None = None, takes: tuple[int, str, Any] | None = None):
        self.script, self.gives, self.takes = script, gives, takes
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        self.own = Own()
        self.kept = self.own.keep(FIRST)
        self.progress = Progress(samples=script.samples, batch=1)
        self.course = Course(self.progress, Schedules([], self.optimizer), self.optimizer, self.own)
        self.judged, self.seen = 0, list[tuple[int, int]]()
        self.knows = takes is not None and takes[:2] == (0, CALL)  # from those who train, or all begin alike
        self.alike = self.knows and takes[2]["at"] == STEPPED

    def comes_to(self, place: str) -> None:
        self.course.come_to(place)
        self._looks(place)

    def _looks(self, place: str) -> None:
        there = self.course.at == place and self.course.counts and self.course.is_there
        if self.gives == (self.progress.steps, place) and there:
            raise Taken
        if self.takes is not None and self.takes[:2] == (self.progress.steps, place):
            tree, self.takes = self.takes[2], None
            self.course.take(copy.deepcopy(tree))

    def step(self) -> None:
        self.judged = 0
        self.comes_to(CALL)
        if self.course.to_step:
            self.course.stepped()
            self._looks(STEPPED)

    def evaluate(self) -> float:
        place, self.judged = evaluation(self.judged), self.judged + 1
        self.course.at = place
        self._looks(place)
        self.course.come_to(place)
        return self.script.results[self.progress.steps] if self.course.counts or self.knows else math.nan

    def run(self) -> dict[str, Any]:
        script, kept, group = self.script, self.kept, self.optimizer.param_groups[0]
        self.comes_to(BATCH)
        while self.course.seen.epoch < script.epochs:
            if script.looks:
                epoch, rate, lr = self.course.looked_at().epoch, kept.rate, group["lr"]
                kept.tries += 1
            self.step()
            now = self.course.looked_at()
            if not script.looks:
                epoch, rate = (now.steps - 1) // script.samples, kept.rate
            self.seen.append((now.steps, self.progress.steps))
            kept.total += now.steps
            kept.rate = rate * 0.75 + now.steps
            if script.looks:  # who has seen another rate before the call has seen a first start
                group["lr"] = lr * 0.5
            if now.epoch != epoch or script.judges_always:
                kept.ends += now.epoch != epoch
                result = self.evaluate()
                if result < kept.best:
                    kept.best, kept.bad, kept.best_step = result, 0, now.steps
                else:
                    kept.bad += 1
                if kept.bad >= script.patience:
                    break
            if now.steps - kept.best_step > script.rests:
                break
            self.comes_to(BATCH)
        self.course.leave(alike=self.alike, judged=99 if self.knows else 0)
        if script.judges_last:
            kept.total += 1000 * self.evaluate()
        self.course.require_counted()
        self.comes_to(END)
        return {"steps": self.progress.steps, "lr": group["lr"], **vars(kept)}


scripts = st.builds(
    Script,
    samples=st.integers(1, 4),
    epochs=st.integers(1, 4),
    results=st.just(tuple(range(17, 0, -1))) | st.tuples(*[st.integers(0, 5)] * 17),  # ever better, or as it comes
    patience=st.integers(1, 3),
    rests=st.integers(2, 9),
    judges_always=st.booleans(),
    judges_last=st.booleans(),
    looks=st.booleans(),
)
places = st.sampled_from([BATCH, CALL, STEPPED, evaluation(0), END])


def given_by(script, at, place):
    """The state of a worker that is there; None if it never is."""
    giver = Loop(script, gives=(at, place))
    try:
        giver.run()
    except Taken:
        return giver.course.tree()
    return None


@settings(max_examples=examples(150), deadline=None)
@given(scripts, st.integers(1, 16), places)
def test_a_worker_that_takes_a_state_over_ends_as_one_that_was_there_all_the_time(script, at, place):
    tree, truth = given_by(script, at, place), Loop(script).run()
    if tree is None or not tree["progress"]["steps"]:
        return
    try:
        found = Loop(script, takes=(0, CALL, tree)).run()
    except InvalidValue:  # a checkpoint of right after the last step: who has seen a first start before it cannot know
        assert (place, truth["steps"], script.looks) == (STEPPED, at, True)
        return
    assert found == truth


@settings(max_examples=examples(150), deadline=None)
@given(scripts, st.integers(1, 16), st.sampled_from([STEPPED, CALL]), st.integers(1, 16), st.booleans())
def test_a_worker_that_goes_back_to_a_checkpoint_ends_as_if_it_had_not(script, at, place, after, judging):
    """From a call for a step, or from an evaluation after one."""
    tree = given_by(script, at, place)
    if tree is None:
        return
    taker = Loop(script, takes=(at + after, evaluation(0) if judging else CALL, tree))
    try:
        found = taker.run()
    except InvalidValue:  # what it evaluates on its way is not known, nor what it did at the end of an epoch
        assert judging or script.judges_always or at % script.samples == 0
        return
    assert found == Loop(script).run()


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("place", [CALL, BATCH, evaluation(0), STEPPED])
def test_no_epoch_ends_for_a_newcomer_that_did_not_end_there(at, place):
    """Its evaluations are not a number while it is not where the others are: one of these, and it would leave."""
    script = Script(2, 4, tuple(range(17, 0, -1)), patience=1, rests=99, judges_always=False)
    if (tree := given_by(script, at, place)) is not None:
        taker = Loop(script, takes=(0, CALL, tree))
        taker.knows = False
        if at % 2 or place == STEPPED:
            assert taker.run() == Loop(script).run()


def test_an_epoch_that_ended_with_the_last_step_ends_for_a_newcomer_as_well():
    """What is found out there is why the others did not stop."""
    script = Script(3, 2, tuple(range(17, 0, -1)), patience=9, rests=2, judges_always=False)
    assert Loop(script, takes=(0, CALL, given_by(script, 3, CALL))).run() == Loop(script).run()


@pytest.mark.parametrize("place", [CALL, BATCH, evaluation(0), END])
def test_a_worker_that_has_just_taken_a_state_hands_it_on_as_it_was(place):
    """Wherever on its way it is asked for it: another that comes then is as if the first had given it."""
    script = Script(2, 4, tuple(range(17, 0, -1)), patience=9, rests=99, judges_always=True)
    tree = given_by(script, 8 if place == END else 5, place)
    taker = Loop(script, takes=(0, CALL, tree))
    taker.comes_to(BATCH)
    taker.step()
    assert taker.course.tree() == tree
    taker.kept.bad = 77
    taker.comes_to(BATCH)
    assert (taker.kept.bad, taker.course.seen.steps) == (0, tree["progress"]["steps"] - 1)  # as the last batch began
    taker.kept.bad = 77
    taker.step()
    assert taker.course.tree() == tree
    if place == BATCH:
        taker.comes_to(BATCH)
        assert taker.course.tree() == tree


@pytest.mark.parametrize("place", [evaluation(0), END])
def test_a_worker_that_comes_when_the_others_have_left_their_loop_leaves_it_as_well(place):
    """They wait for it behind it, in an evaluation or at the end: the pass that it leaves makes no step."""
    script = Script(9, 1, (0, *[5] * 16), patience=9, rests=3, judges_always=False, judges_last=True)
    truth = Loop(script).run()
    assert truth["steps"] == 4
    assert Loop(script, takes=(0, CALL, given_by(script, 4, place))).run() == truth


@pytest.mark.parametrize(("judged", "leaves"), [(0, False), (1, True)])
def test_a_newcomer_does_not_leave_by_an_evaluation_that_the_others_have_yet_to_make(judged, leaves):
    """They wait in it for the newcomer, which has come by it on its way, where it was not a number."""
    script = Script(samples=4, epochs=2, results=(3,) * 17, patience=9, rests=9, judges_always=True)
    taker = Loop(script, takes=(0, CALL, given_by(script, 2, evaluation(0))))
    taker.comes_to(BATCH)
    taker.step()
    taker.evaluate()
    taker.course.leave(alike=False, judged=judged)
    if leaves:
        taker.course.require_counted()
    else:
        with pytest.raises(InvalidValue, match="not a number is no answer"):
            taker.course.require_counted()


def test_what_was_right_after_a_step_is_handed_on_by_who_has_taken_it():
    script = Script(9, 1, (0,) * 17, patience=9, rests=99, judges_always=False)
    taker = Loop(script, takes=(0, CALL, given_by(script, 5, STEPPED)), gives=(5, CALL))
    with pytest.raises(Taken):
        taker.run()
    assert taker.course.tree() == given_by(script, 5, CALL)


def test_a_state_of_an_evaluation_that_a_loop_does_not_come_by_is_left_behind_at_its_next_call():
    """It would wait there for ever, and make no step."""
    judges = Script(4, 3, tuple(range(17, 0, -1)), 3, 9, judges_always=True)
    course = Loop(judges).course
    course.come_to(BATCH)
    course.come_to(CALL)
    course.take(given_by(judges, 2, evaluation(0)))
    for steps in (False, True):  # it goes over the last one, and then makes one
        course.come_to(BATCH)
        course.come_to(CALL)
        assert course.to_step is steps


def test_what_is_taken_at_the_end_stays_there():
    script = Script(2, 2, tuple(range(17, 0, -1)), patience=9, rests=99, judges_always=False)
    taker, tree = Loop(script), given_by(script, 4, END)
    taker.run()
    taker.kept.bad = 77
    taker.course.take(copy.deepcopy(tree))
    assert taker.course.tree() == tree
    assert taker.course.counts


def test_lines_that_no_state_knows_of_do_not_end_a_worker_alone_without_a_word():
    script = Script(samples=2, epochs=4, results=(0,) * 17, patience=9, rests=99, judges_always=False)
    taker = Loop(script, takes=(0, CALL, given_by(script, 5, CALL)))
    taker.comes_to(BATCH)
    taker.step()
    for leave in range(3):
        if leave == 1:
            taker.comes_to(BATCH)  # before the lines of the pass that goes over the last step
        elif leave == 2:
            taker.step()  # after it
        with pytest.raises(InvalidValue, match="left at step 5 in a pass that makes no step"):
            taker.course.require_counted()
    taker.comes_to(BATCH)
    taker.step()
    taker.course.require_counted()
    assert taker.progress.steps == 6


def test_what_it_prints_on_its_way_is_of_steps_that_were_made():
    script = Script(samples=3, epochs=3, results=(0,) * 17, patience=9, rests=99, judges_always=False)
    taker = Loop(script, takes=(0, CALL, given_by(script, 4, CALL)))
    taker.run()
    assert taker.seen == [(each, each) for each in (4, 4, 5, 6, 7, 8, 9)]
