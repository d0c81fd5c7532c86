"""A loop that counts and may stop early, taken over by another worker, or gone back in: as if nothing had been."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.course import Course  # noqa: E402
from sublet.train.grid.whereabouts import BATCH, CALL, END, STEPPED, evaluation  # noqa: E402
from sublet.train.kept import Own  # noqa: E402
from sublet.train.schedules import Schedules  # noqa: E402
from sublet.train.state import Progress  # noqa: E402

FIRST = {"tries": 0, "total": 0, "ends": 0, "best": math.inf, "bad": 0, "best_step": 0}


class Script(NamedTuple):
    """How long its epochs are, what each step comes to, and when it stops."""

    samples: int
    epochs: int
    results: tuple[int, ...]  # of a step, by its number: what an evaluation after it gives
    patience: int  # evaluations that are no better
    rests: int  # steps without a better one
    judges_always: bool  # not at the end of an epoch alone


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

    def comes_to(self, place: str) -> None:
        self.course.come_to(place)
        self._looks(place)

    def _looks(self, place: str) -> None:
        if self.gives == (self.progress.steps, place) and self.course.counts and self.course.is_there:
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
        return self.script.results[self.progress.steps] if self.course.counts else math.nan

    def run(self) -> dict[str, Any]:
        script, kept, group = self.script, self.kept, self.optimizer.param_groups[0]
        self.comes_to(BATCH)
        while self.course.seen.epoch < script.epochs:
            epoch = self.course.seen.epoch
            kept.tries += 1
            self.step()
            now = self.course.seen
            self.seen.append((now.steps, self.progress.steps))
            kept.total += now.steps
            group["lr"] *= 0.5
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
        self.course.require_counted()
        if self.progress.epoch >= script.epochs:
            self.comes_to(END)
        return {"steps": self.progress.steps, "lr": group["lr"], **vars(kept)}


scripts = st.builds(
    Script,
    samples=st.integers(1, 4),
    epochs=st.integers(1, 4),
    results=st.tuples(*[st.integers(0, 5)] * 17),
    patience=st.integers(1, 3),
    rests=st.integers(2, 9),
    judges_always=st.booleans(),
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


@given(scripts, st.integers(1, 16), places, st.booleans())
def test_a_worker_that_takes_a_state_over_ends_as_one_that_was_there_all_the_time(script, at, place, seems):
    tree = given_by(script, at, place)
    if tree is None or not tree["progress"]["steps"]:
        return
    taker = Loop(script, takes=(0, CALL, tree))
    if seems:  # it has seen a checkpoint of that step, before its first batch
        taker.course.seem(at, at)
    truth = Loop(script).run()
    try:
        assert taker.run() == truth
    except InvalidValue:  # where it stops right there, and could not know where it is: not without a word
        assert (place, seems, truth["steps"]) == (STEPPED, False, at)


@given(scripts, st.integers(1, 16), st.sampled_from([STEPPED, CALL]), st.integers(1, 16), st.booleans())
def test_a_worker_that_goes_back_to_a_checkpoint_ends_as_if_it_had_not(script, at, place, after, judging):
    """From a call for a step, or from an evaluation after one."""
    tree = given_by(script, at, place)
    if tree is None:
        return
    taker = Loop(script, takes=(at + after, evaluation(0) if judging else CALL, tree))
    try:
        found = taker.run()
    except InvalidValue:  # an evaluation that broke may be why it leaves: it does not leave without a word
        assert judging
        return
    assert found == Loop(script).run()


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
