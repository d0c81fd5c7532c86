"""Who takes a state over comes to its loop at step 0: each line of it counts as if it had been there all the time."""

from __future__ import annotations

import copy
import math
import random
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.following import Broken  # noqa: E402
from sublet.train.grid.course import Course  # noqa: E402
from sublet.train.grid.seated import Seated  # noqa: E402
from sublet.train.grid.whereabouts import BATCH, CALL, END, STEPPED, evaluation  # noqa: E402
from sublet.train.kept import Own  # noqa: E402
from sublet.train.schedules import Schedules  # noqa: E402
from sublet.train.state import Progress  # noqa: E402

WIDTH, SAMPLES, BATCH_SIZE = 4, 16, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.scale = nn.Linear(WIDTH, WIDTH), 1.0

    def forward(self, x):
        return x + self.scale * torch.tanh(self.up(x))


def a_model():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, WIDTH), nn.Sequential(*(Block() for _ in range(3))), nn.Linear(WIDTH, 1))
    model[2].heat = 0
    return model


def samples():
    dice = torch.Generator().manual_seed(4)
    return TensorDataset(torch.randn(SAMPLES, 3, generator=dice), torch.randn(SAMPLES, 1, generator=dice))


class Ends(Exception):
    """As if the process were killed, after a step of which there is a checkpoint."""


def nothing(*_):
    """Is done."""


def trained(directory, ends=None, *, before=nothing, after=nothing, behind=nothing, epochs=4):
    """Losses by step, as the lines after a step see them."""
    model, data, seen = a_model(), samples(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    facts = {"global_batch": BATCH_SIZE, "micro_batch": 4, "parts": train.Blocks("1"), "checkpoint_dir": directory}
    with train.session(model, optimizer, data, **facts) as s:
        s._saver.is_due = lambda *_, **__: s.steps + 1 == ends
        kept = s.keep(count=0)
        for batch in s.batches(epochs=epochs):
            if ends and s.steps == ends:
                s._vault.until_written()
                s._vault.say(s._mesh, 0)
                s._vault.hear(s._mesh, [0], [0.0, 1.0, 0.0])
                s._vault.saver.settle()
                raise Ends
            before(s, model, optimizer, kept)
            s.step(loss_of, batch)
            seen.setdefault(s.steps, []).append(s.loss)
            if after(s, model, optimizer, kept, loss_of):
                break
        behind(s, model, optimizer, kept)
    return seen


def resumed(tmp_path, ends=3, **lines):
    """What a start that goes on after step 3 sees, and one that was never interrupted."""
    with pytest.raises(Ends):
        trained(tmp_path / "cut", ends, **lines)
    return trained(tmp_path / "cut", **lines), trained(tmp_path / "whole", **lines)


def gone_over(whole, ends):
    """Losses of the step of the checkpoint, which a loop comes by twice unless it is the first, and of all after it."""
    return {step: losses * (2 if step == ends > 1 else 1) for step, losses in whole.items() if step >= ends}


def scheduled(s, model, *_):
    for block in model[1]:
        block.scale = 1.0 - s.steps / 8


def test_what_a_loop_sets_before_a_step_is_that_of_the_step_after_a_restart(tmp_path):
    again, whole = resumed(tmp_path, before=scheduled)
    assert again == gone_over(whole, 3)


def decayed(_, __, optimizer, kept, *___):
    kept.count += 1
    for group in optimizer.param_groups:
        group["lr"] *= 0.7


@pytest.mark.parametrize("where", ["before", "after"])
def test_lines_that_change_a_setting_count_once(tmp_path, where):
    """A checkpoint is of right after its step: what follows it in the loop runs again, what came before does not."""
    counts = []

    def look(s, _, __, kept, *___):
        counts.append((s.steps, kept.count))

    lines = {where: decayed, "before" if where == "after" else "after": look}
    again, whole = resumed(tmp_path, **lines)
    assert again == gone_over(whole, 3)
    last = {step: count for step, count in counts if step}
    assert last[7] == 7


def test_what_is_read_before_a_step_and_used_after_it_is_of_before_it(tmp_path):
    """Rates, what is kept and the loss, in the pass that goes over the step of a checkpoint as well."""
    was, counts = {}, []

    def before(s, _, optimizer, kept):
        was.update(lr=optimizer.param_groups[0]["lr"], count=kept.count, loss=s.loss)

    def after(s, _, optimizer, kept, __):
        optimizer.param_groups[0]["lr"], kept.count = was["lr"] * 0.7, was["count"] + 1 + 100 * (s.loss < was["loss"])

    lines = {"before": before, "after": after, "behind": lambda *each: counts.append(each[3].count)}
    again, whole = resumed(tmp_path, 5, **lines)
    assert again == gone_over(whole, 5)
    assert counts[0] == counts[1] > 100


def leaving(left, ends):
    """Lines before a step: told to leave in the next call, what is saved is of there, after the lines of this pass."""

    def leaves(s, *_):
        if s.steps == ends and not left:
            left.append(s)
            s._course.come_to(CALL)
            assert s._vault.save(s._mesh, [0])
            raise Ends

    return leaves


@pytest.mark.parametrize("told", [False, True])
def test_what_is_read_of_modules_before_a_step_and_used_after_it_is_of_before_it(tmp_path, told):
    """The state is of right after the step, or of the next call for one, when all of it is another already."""
    was, found, left = {}, [], []
    leaves = leaving(left, 5)

    def before(s, model, *_):
        was.update(scale=model[1][1].scale, heat=model[2].heat)
        model[1][1].scale *= 0.5
        if told:
            leaves(s)

    def after(_, model, *__):
        model[2].heat = was["heat"] + 1
        for block in model[1]:
            block.scale = was["scale"] * 0.8

    def behind(_, model, *__):
        found.append((model[2].heat, [block.scale for block in model[1]]))

    lines = {"before": before, "after": after, "behind": behind}
    with pytest.raises(Ends):
        trained(tmp_path / "cut", None if told else 5, **lines)
    left.append(None)
    again, whole = trained(tmp_path / "cut", **lines), trained(tmp_path / "whole", **lines)
    assert again == gone_over(whole, 5)
    assert found[0] == found[1] == (8, [pytest.approx(0.8**8)] * 3)


def toggled(model, was):
    """An attribute that the loop makes and deletes, and one that was there and is deleted in turn."""
    if was is None:
        return hasattr(model, "warm"), hasattr(model[2], "heat")
    for module, name, had in ((model, "warm", was[0]), (model[2], "heat", was[1])):
        if had:
            delattr(module, name)
        else:
            setattr(module, name, 0)
    return 0.5 if was[0] else 1.0, 0.25 if was[1] else 1.0


def paired(model, was):
    """A tuple, which is replaced."""
    if was is None:
        return getattr(model, "pair", (1.0, 0))
    model.pair = (was[0] * 0.8, was[1] + 1)
    return model.pair[0], 1.0


def listed(model, was):
    """A list and a dict, which are changed."""
    if was is None:
        model.marks = getattr(model, "marks", None) or [1.0]
        model.marks.append(model.marks[-1] * 0.9)
        model.table = getattr(model, "table", None) or {"count": 0}
        return model.marks[-1], model.table["count"]
    model.marks[-1] *= 0.9
    model.table["count"] += 1
    return was[0], 1.0 / (1 + was[1])


@pytest.mark.parametrize("lines", [toggled, paired, listed])
@pytest.mark.parametrize("told", [False, True])
def test_what_a_loop_makes_and_deletes_and_what_is_in_lists_is_of_before_a_step_there(tmp_path, lines, told):
    """Read before a step and used after it, in what the next step computes with."""
    was, left = {}, []
    leaves = leaving(left, 5)

    def before(s, model, *_):
        was.update(seen=lines(model, None))
        if told:
            leaves(s)

    def after(_, model, *__):
        model[1][0].scale, model[1][1].scale = lines(model, was["seen"])

    with pytest.raises(Ends):
        trained(tmp_path / "cut", None if told else 5, before=before, after=after)
    left.append(None)
    again = trained(tmp_path / "cut", before=before, after=after)
    assert again == gone_over(trained(tmp_path / "whole", before=before, after=after), 5)


def test_an_evaluation_after_the_step_of_a_checkpoint_is_made_again(tmp_path):
    judged = {}

    def judge(s, _, __, ___, loss_of):
        judged.setdefault(s.steps, []).append(s.evaluate(loss_of, samples()))

    resumed(tmp_path, after=judge)
    assert len(judged[3]) == 4  # in both lives, of which the second comes by twice, and in one of its own
    assert len({*judged[3]}) == 1
    assert not any(map(math.isnan, judged[3]))


def test_more_epochs_go_on_from_the_last_checkpoint_where_the_loop_was_left(tmp_path):
    trained(tmp_path / "cut", epochs=2, after=decayed)
    again = trained(tmp_path / "cut", after=decayed)
    whole = trained(tmp_path / "whole", after=decayed)
    assert again == gone_over(whole, 4)


def a_course(lr=0.5, count=0):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    own = Own()
    kept = own.keep({"count": count})
    progress = Progress(samples=10, batch=1)
    return Course(progress, Schedules([], optimizer), optimizer, own), optimizer.param_groups[0], kept


@pytest.mark.parametrize("at", [CALL, BATCH, evaluation(1)])
def test_a_state_of_another_counts_from_where_that_one_was(at):
    """Whatever the lines on the way there do: in the pass that takes it, and in that of the last step."""
    giver, _, _ = a_course(lr=0.25, count=7)
    giver._progress.steps, giver._progress.offset, giver.at = 5, 5, at
    taker, group, kept = a_course()
    taker.come_to(CALL)
    taker.take(giver.tree())
    assert (taker.seen.steps, taker.to_step, taker.counts) == (5, False, False)
    for place in (evaluation(0), evaluation(1), BATCH, CALL):
        group["lr"], kept.count = 99.0, 99
        taker.come_to(place)
        assert (group["lr"], kept.count) == ((0.25, 7) if place == CALL else (99.0, 99))
    assert (taker.at, taker.to_step, taker.counts) == (STEPPED, False, True)
    for place in (evaluation(0), evaluation(1), BATCH, CALL):
        group["lr"], kept.count = 99.0, 99
        taker.come_to(place)
        assert (group["lr"], kept.count) == ((0.25, 7) if place == at else (99.0, 99))
    assert taker.to_step


def test_who_goes_back_in_an_evaluation_comes_by_the_lines_after_the_step_that_it_goes_back_to():
    """They were behind it, and are not in a state of right after a step: the next call makes none, and they run."""
    giver, _, _ = a_course(lr=0.25, count=7)
    giver.stepped()
    taker, group, kept = a_course()
    taker.come_to(CALL)
    assert taker.to_step
    taker.at = evaluation(0)
    taker.take(giver.tree())
    for place in (evaluation(0), BATCH, CALL):
        group["lr"], kept.count = 99.0, 99
        taker.come_to(place)
    assert (group["lr"], kept.count, taker.at) == (0.25, 7, STEPPED)
    assert not taker.to_step
    for place in (BATCH, CALL):
        group["lr"], kept.count = 99.0, 99
        taker.come_to(place)
        assert (group["lr"], kept.count) == (99.0, 99)
    assert taker.to_step


def test_who_is_handed_the_step_that_it_called_for_goes_on_after_it():
    """Others have made it: this pass is that of the step, and its lines count."""
    giver, _, _ = a_course(lr=0.25, count=7)
    giver.stepped()
    taker, group, kept = a_course()
    taker.come_to(CALL)
    taker.take(giver.tree())
    assert (taker.seen.steps, taker.counts, taker.to_step) == (1, True, False)
    group["lr"] = 0.1
    for place in (BATCH, CALL):
        taker.come_to(place)
    assert (taker.to_step, group["lr"], kept.count) == (True, 0.1, 7)


def test_before_the_first_step_everybody_is_at_it():
    giver, _, _ = a_course()
    taker, _, _ = a_course()
    taker.come_to(CALL)
    taker.take(giver.tree())
    assert taker.is_there


def test_lines_behind_the_loop_count_once_for_who_comes_when_all_is_done(tmp_path):
    """Those after the last step, and those after the loop: others had run both where their state was taken."""
    counts = []

    def behind(_, __, optimizer, kept):
        counts.append((kept.count, optimizer.param_groups[0]["lr"]))
        kept.count += 100

    lines = {"after": decayed, "behind": behind}
    trained(tmp_path / "cut", **lines)
    kept_by = []
    trained(tmp_path / "cut", **lines | {"behind": lambda *each: (behind(*each), kept_by.append(each))})
    assert [count for count, _ in counts] == [8, 108]
    assert counts[0][1] == counts[1][1] == pytest.approx(0.1 * 0.7**8)
    [(_, _, _, kept)] = kept_by
    assert kept.count == 108


def test_where_all_go_back_to_right_after_the_step_that_the_loop_has_behind_it_the_lines_after_it_run_first(tmp_path):
    """Training is at the loop's own step then, but what follows that step is not in the state."""
    taken, counts = [], []

    def after(s, *more):
        if s.steps == 3 and not taken:
            taken.append(copy.deepcopy(s._course.tree()))
        decayed(s, *more)

    def breaks(s, *_):
        if s.steps == 3 and len(taken) == 1:
            taken.append(s._member.step)
            s._member.step = broken
            s._recover = lambda _: (s._course.take(taken[0]), setattr(s._member, "step", taken[1]))

    def broken(*_, **__):
        raise Broken("a part is gone")

    again = trained(tmp_path / "back", before=breaks, after=after, behind=lambda *each: counts.append(each[3].count))
    whole = trained(tmp_path / "whole", after=decayed, behind=lambda *each: counts.append(each[3].count))
    assert len(taken) == 2
    assert again == {step: losses * (3 if step == 3 else 1) for step, losses in whole.items()}  # on its way, and then
    assert counts == [8, 8]


def test_what_lines_on_the_way_do_within_a_value_does_not_reach_the_state_that_is_laid_again():
    giver, given, _ = a_course()
    giver._progress.steps, giver._progress.offset, giver.at, given["marks"] = 5, 5, BATCH, [1]
    taker, group, _ = a_course()
    taker.come_to(CALL)
    taker.take(copy.deepcopy(giver.tree()))
    for place in (BATCH, CALL, BATCH):
        group["marks"].append(2)
        taker.come_to(place)
        assert group["marks"] == ([1, 2] if place == BATCH and not taker.counts else [1])


def at_the_end(count=7):
    """All ten steps are behind it."""
    giver, given, _ = a_course(count=count)
    for _ in range(10):
        giver.stepped()
    giver.at, given["marks"] = END, [1]
    return giver


def test_a_state_of_the_end_is_laid_where_the_loop_ends_and_where_the_session_does():
    taker, group, kept = a_course()
    taker.come_to(CALL)
    taker.take(copy.deepcopy(at_the_end().tree()))
    for place in (BATCH, CALL, BATCH, END):
        group["marks"].append(2)
        kept.count = 99
        taker.come_to(place)
    assert (group["marks"], kept.count) == ([1], 7)


def test_a_state_of_the_end_is_laid_where_a_loop_with_more_epochs_goes_on():
    taker, _, kept = a_course()
    taker.come_to(CALL)
    taker.take(at_the_end().tree())
    taker.come_to(BATCH)
    taker.come_to(CALL)
    kept.count = 99
    taker.come_to(BATCH)
    assert kept.count == 7
    kept.count += 1
    taker.come_to(CALL)
    assert (kept.count, taker.to_step) == (8, True)


@pytest.mark.parametrize("ends", [1, 2, 3, 4, 5])
def test_lines_for_the_end_of_an_epoch_run_at_its_end_alone_after_a_restart(tmp_path, ends):
    """Two steps in each: a checkpoint amid one, and one of the last step of one, after which these lines run again."""
    was, counts = {}, []

    def before(s, *_):
        was.update(epoch=s.epoch, steps=s.steps, number=s.steps_in_epoch, samples=s.samples_done)

    def after(s, *more):
        if was["steps"] or s.steps == 1:  # and not in the first pass of a restart
            assert (s.steps, s.samples_done) == (was["steps"] + 1, was["samples"] + BATCH_SIZE)
            assert was["number"] == was["steps"] % 2
        if s.epoch != was["epoch"]:
            decayed(s, *more)

    lines = {"before": before, "after": after, "behind": lambda *each: counts.append(each[3].count)}
    again, whole = resumed(tmp_path, ends, **lines)
    assert again == gone_over(whole, ends)
    assert counts == [4, 4]


def test_fewer_epochs_than_the_checkpoint_has_end_as_they_did(tmp_path):
    trained(tmp_path, epochs=3)
    assert [*trained(tmp_path, epochs=2)] == [6]


@pytest.mark.parametrize("samples", [1, 5, 6, 7])
@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_what_a_loop_seems_to_have_behind_it_is_what_it_had_before_that_step(samples, batch):
    walked, seems = Progress(samples=samples, batch=batch), Progress(samples=samples, batch=batch)
    course = Course(seems, Schedules([], torch.optim.SGD([nn.Parameter(torch.zeros(1))])), None, None)
    for _ in range(12):
        was = copy.copy(walked)
        walked.advance()
        course.seem(walked.steps, walked.done)
        assert course.seen == was
    course.come_to(CALL)
    assert course.seen == seems == Progress(samples=samples, batch=batch)


def test_a_checkpoint_that_is_gone_when_it_is_looked_for_counts_for_nothing(tmp_path):
    with pytest.raises(Ends):
        trained(tmp_path / "cut", 3)

    def before(*_):
        for checkpoint in (tmp_path / "cut").glob("step-*"):
            shutil.rmtree(checkpoint)

    again, whole = trained(tmp_path / "cut", before=before), trained(tmp_path / "whole")
    assert {step: losses for step, losses in again.items() if step} == whole


@pytest.mark.parametrize("ends", [1, 2, 3, 4])
def test_one_that_is_told_to_leave_counts_the_lines_after_its_last_step_once_in_what_stops_it(tmp_path, ends):
    """What is saved then is of a call for a step: the lines after the last one have run, and run again in a restart."""

    def after(s, _, __, kept, ___):
        kept.count += 1
        if kept.count > s.steps:
            raise Ends

    counts = []
    with pytest.raises(Ends):
        trained(tmp_path / "cut", before=leaving([], ends), after=after)
    again = trained(tmp_path / "cut", after=after, behind=lambda *each: counts.append(each[3].count))
    whole = trained(tmp_path / "whole", after=after)
    assert again == gone_over(whole, ends)
    assert counts == [8]


def test_a_loop_that_is_left_before_its_worker_is_where_the_others_are_is_an_error(tmp_path):
    with pytest.raises(Ends):
        trained(tmp_path / "cut", 3)

    def leave(s, *_):
        if s.steps == 2:  # in the pass that goes over the third
            raise SystemExit(0)

    with pytest.raises(InvalidValue, match="a pass that makes no step"):
        trained(tmp_path / "cut", before=leave)


@pytest.mark.parametrize("leaves", ["break", "exit"])
def test_a_loop_that_looks_at_nothing_before_its_step_is_left_after_the_step_of_its_checkpoint_again(tmp_path, leaves):
    """All begin with it, and come to that in the same pass."""
    with pytest.raises(Ends):
        trained(tmp_path / "cut", 3)
    seen = []

    def after(s, *_):
        if s.steps == 3 and leaves == "exit":
            raise SystemExit(0)
        return s.steps == 3

    with pytest.raises(SystemExit) if leaves == "exit" else nullcontext():
        trained(tmp_path / "cut", after=after, behind=lambda s, *_: seen.append((s.steps, s.epoch)))
    assert seen == ([] if leaves == "exit" else [(3, 1)])


@pytest.mark.parametrize(
    "looks",
    [
        lambda s, kept: kept.count,
        lambda s, kept: vars(kept),
        lambda s, _: s.epoch,
        lambda s, _: s.loss,
        lambda s, _: random.random(),
        lambda s, _: np.random.rand(),  # noqa: NPY002 - as scripts draw
        lambda s, _: torch.rand(1),
    ],
)
def test_a_loop_that_has_looked_at_a_first_start_is_not_left_in_that_pass(tmp_path, looks):
    with pytest.raises(Ends):
        trained(tmp_path / "cut", 3)
    with pytest.raises(InvalidValue, match=r"at step 3 in a pass that makes no step"):
        trained(
            tmp_path / "cut",
            before=lambda s, _, __, kept: looks(s, kept) and None,
            after=lambda s, *_: s.steps == 3,
        )


def a_rate(_, __, optimizer, *___):
    optimizer.param_groups[0]["lr"] *= 0.9


def an_attribute(_, model, *__):
    model[1][1].scale *= 0.9


@pytest.mark.parametrize("changes", [a_rate, an_attribute])
def test_nor_is_one_that_may_have_seen_rates_and_attributes_of_a_first_start(tmp_path, changes):
    """Who reads these, nobody sees."""
    with pytest.raises(Ends):
        trained(tmp_path / "cut", 3, after=changes)
    with pytest.raises(InvalidValue, match=r"at step 3 in a pass that makes no step"):
        trained(tmp_path / "cut", after=lambda *each: changes(*each) or each[0].steps == 3)


@pytest.mark.parametrize("leaves", ["break", "exit"])
def test_a_loop_that_is_left_in_the_first_pass_of_a_restart_is_an_error(tmp_path, leaves):
    """What it saw before the call is of a first start, so that nobody knows whether it was to be left there."""
    was = {}
    with pytest.raises(Ends):
        trained(tmp_path / "cut", 3)

    def before(s, *_):
        was["loss"] = s.loss

    def after(s, *_):
        rises = not s.loss < was["loss"] + 10.0
        if rises and s.steps > 1 and leaves == "exit":
            raise SystemExit(0)
        return rises and s.steps > 1

    assert len(trained(tmp_path / "whole", before=before, after=after)) == 8
    with pytest.raises(InvalidValue, match=r"at step 3 in a pass that makes no step.*seen what was before its step"):
        trained(tmp_path / "cut", before=before, after=after)


def test_a_loop_that_is_left_in_the_pass_that_goes_over_a_step_is_left(tmp_path):
    """That has seen all that was before it."""
    with pytest.raises(Ends):
        trained(tmp_path / "cut", 3)
    seen, passes = [], []

    def after(s, *_):
        passes.append(s.steps)
        return passes == [3, 3]

    trained(tmp_path / "cut", after=after, behind=lambda s, *_: seen.append((s.steps, s.epoch)))
    assert seen == [(3, 1)]


def test_lines_before_the_first_step_of_a_restart_see_a_first_start(tmp_path):
    """What is kept is not there yet, nor can be evaluated; in the next pass all is as it was, evaluations too."""
    seen = []

    def before(s, _, __, kept):
        seen.append((s.steps, s.epoch, kept.count))
        if s.steps:
            seen.append([s.evaluate(s.loss_of, samples()), s.evaluate(s.loss_of, TensorDataset(*samples()[:4]))])

    def after(s, *more):
        s.loss_of = more[-1]
        s.evaluate(s.loss_of, TensorDataset(*samples()[:8]))
        decayed(s, *more)

    again, whole = resumed(tmp_path, before=before, after=after)
    assert again == gone_over(whole, 3)
    begins = [number for number, each in enumerate(seen) if each == (0, 0, 0)]
    first, going_over, judged, third, result, *_ = seen[begins[1] : begins[2]]
    assert (first, going_over, third) == ((0, 0, 0), (2, 1, 2), (3, 1, 3))
    undisturbed = seen[begins[2] :]
    assert judged == undisturbed[undisturbed.index(going_over) + 1]
    assert result == undisturbed[undisturbed.index(third) + 1]
    assert len({*judged, *result}) == 4


def test_an_evaluation_that_the_first_pass_leaves_out_is_not_taken_for_the_next(tmp_path):
    """At the end of an epoch two are made; the first pass of a restart knows of no end."""
    was, judged = {}, []

    def after(s, *more):
        if s.epoch != was["epoch"]:
            result = s.evaluate(more[-1], TensorDataset(*samples()[:4]))
            judged.extend([result] if s.steps == 4 else [])
        s.evaluate(more[-1], samples())

    resumed(tmp_path, 4, before=lambda s, *_: was.update(epoch=s.epoch), after=after)
    assert len(judged) == 3
    assert len({*judged}) == 1


@pytest.mark.parametrize(
    ("closed", "went_back", "counts", "there", "alike"),
    [
        (False, False, False, False, True),
        (True, False, True, False, False),  # others are beyond it, and know what it came to if it is not another
        (True, False, False, False, False),
        (True, False, True, True, True),  # all are in it
        (True, True, False, False, False),  # it has yet to come to where the checkpoint was taken
        (True, True, True, False, True),
    ],
)
def test_all_evaluate_once_they_have_come_to_where_a_state_was_taken(closed, went_back, counts, there, alike):
    """An evaluation there was not a number, at all workers, and could end a training."""
    session = object.__new__(Seated)
    session._member = SimpleNamespace(closed=closed, went_back=went_back)
    session._course = SimpleNamespace(counts=counts, is_there=there)
    assert session._alike is alike
