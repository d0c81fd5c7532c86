"""What modules remember, where each worker runs a part of the model: it goes where the state goes, from who runs it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.testing.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from sublet.train.grid.course import Course  # noqa: E402
from sublet.train.grid.cutting import Cut, Part  # noqa: E402
from sublet.train.grid.noting import BEGAN, STEPPED  # noqa: E402
from sublet.train.grid.remembering import (  # noqa: E402
    Remembering,
    gathered,
    handed_to_first,
    merged,
    owners,
    packed,
    unpacked,
)
from sublet.train.grid.unkept import Unkept  # noqa: E402
from sublet.train.grid.whereabouts import BATCH, CALL  # noqa: E402
from sublet.train.schedules import Schedules  # noqa: E402
from sublet.train.state import Progress  # noqa: E402

WIDTH, BLOCKS = 4, 3


class Block(nn.Module):
    """Counts its forwards, in a number, a list and a buffer, if it is told to."""

    def __init__(self):
        super().__init__()
        self.up, self.scale, self.calls, self.seen, self.counts = nn.Linear(WIDTH, WIDTH), 1.0, 0, [], False
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("gate", torch.ones(WIDTH))

    def forward(self, x):
        if self.counts and self.training:
            self.calls += 1
            self.seen.append(self.calls)
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
        return x + self.scale * self.gate * (1 + 0.1 * self.calls) * torch.tanh(self.up(x - self.mean))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.heat = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1), 1.0
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.heat * self.last(x)


def a_model(*, counts=False):
    torch.manual_seed(3)
    model = Net()
    for block in model.blocks:
        block.counts = counts
    return model


def samples():
    dice = torch.Generator().manual_seed(4)
    return TensorDataset(torch.randn(16, 3, generator=dice), torch.randn(16, 1, generator=dice))


def once(s, model):
    if s.steps == 2:
        model.blocks[1].scale, model.heat = 0.5, 0.7
        model.blocks[2].gate.mul_(0.5)


def always(_, model):
    model.heat *= 0.9
    for block in model.blocks:
        block.scale *= 0.8


def never(*_):
    """Does anything."""


def trained(directory=None, *, after=never, before=never, counts=False, epochs=2, parts=True):
    """Losses by step."""
    model, seen = a_model(counts=counts), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    facts = {"parts": train.Blocks("blocks")} if parts else {}
    facts |= {"global_batch": 4, "micro_batch": 4, "checkpoint_dir": directory}
    with train.session(model, optimizer, samples(), **facts) as s:
        for batch in s.batches(epochs=epochs):
            before(s, model)
            s.step(*((loss_of, batch) if parts else (loss_of(batch),)))
            seen[s.steps] = s.loss
            after(s, model)
    return seen


def test_of_a_model_that_nothing_is_set_on_there_is_nothing_to_tell_though_the_session_has_hooks_on_it():
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = {"parts": train.Blocks("blocks"), "global_batch": 4, "micro_batch": 4}
    with train.session(model, optimizer, samples(), **facts) as s:
        for batch in s.batches(epochs=1):
            s.step(lambda given: nn.functional.mse_loss(model(given[0]), given[1]), batch)
        hooks = [hook for block in model.blocks for hook in block._forward_pre_hooks.values()]
        assert hooks, "the session times blocks by hooks: without any, this shows nothing"
        assert not len(packed(s._course.remembers.state(range(BLOCKS))))


@pytest.mark.parametrize(
    "lines", [{"after": once}, {"before": once}, {"after": always}, {"before": always}, {"counts": True}]
)
@pytest.mark.parametrize(("first", "then"), [(True, True), (True, False), (False, True)])
def test_what_modules_remember_is_in_checkpoints_with_parts_and_without(tmp_path, lines, first, then):
    whole = trained(epochs=4, **lines)
    trained(tmp_path, parts=first, **lines)
    again = trained(tmp_path, parts=then, epochs=4, **lines)
    again = {step: loss for step, loss in again.items() if step > 8}  # of that a session without parts saves no loss
    assert again == {step: loss for step, loss in whole.items() if step > 8}


def test_a_hook_that_is_registered_between_two_steps_is_refused_as_without_parts(tmp_path):
    def after(s, model):
        if s.steps == 2:
            model.blocks[1].register_forward_hook(lambda *_: None)

    with pytest.raises(InvalidValue, match=r"hooks of model\.blocks\.1"):
        trained(tmp_path, after=after)


class Member:
    """One worker's model, cut as `part`, in a thread."""

    def __init__(self, low, high):
        self.model = a_model()
        self.cut = Cut(self.model, "blocks")
        self.cut.learn(lambda: self.model(torch.zeros(2, 3)))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.remembers, self.ran = Remembering(self.cut, optimizer, {}), (low, high)
        self.cut.become(Part(low, high, first=low == 0, last=high == BLOCKS))

    def block(self, number):
        return self.cut.blocks[number]


def together(members, do):
    threads = Threads()
    meshes = ThreadsMesh.all_of(threads, len(members))
    works = {str(mesh.rank): partial(do, mesh, member) for mesh, member in zip(meshes, members, strict=True)}
    found = threads.run(works)
    return [found[name] for name in works]


def three():
    """1 x 3, each of which has counted in its own block, and the script has set the same everywhere."""
    members = [Member(number, number + 1) for number in range(BLOCKS)]
    for rank, member in enumerate(members):
        for block in member.cut.blocks:
            block.scale = 0.5
        member.block(rank).calls, member.block(rank).seen[:] = 10 + rank, [rank]
        member.block(rank).mean.fill_(rank + 1.0)
        member.model.heat = 0.25
    members[0].cut.model.first.note, members[2].cut.model.last.note = "before", "after"
    return members


def assert_has_all(model):
    assert [block.calls for block in model.blocks] == [10, 11, 12]
    assert [block.seen for block in model.blocks] == [[0], [1], [2]]
    assert [float(block.mean[0]) for block in model.blocks] == [1.0, 2.0, 3.0]
    assert {block.scale for block in model.blocks} == {0.5}
    assert (model.heat, model.first.note, model.last.note) == (0.25, "before", "after")


def test_a_newcomer_gets_the_values_of_a_block_from_who_runs_it():
    members = [*three(), Member(0, BLOCKS)]
    ran = [*(each.ran for each in members[:-1]), (0, 0)]
    found = together(members, lambda mesh, each: gathered(mesh, each.remembers, ran, range(BLOCKS)))
    members[-1].remembers.lay(found[-1])
    assert_has_all(members[-1].model)


def test_who_takes_over_a_block_gets_the_values_of_that_alone():
    members = three()
    ran = [each.ran for each in members]
    found = together(members, lambda mesh, each: gathered(mesh, each.remembers, ran, range(BLOCKS)))
    members[0].block(0).calls, members[0].model.heat = 77, 0.125
    members[0].remembers.lay(found[0], {1})
    assert [each.calls for each in members[0].cut.blocks] == [77, 11, 0]
    assert members[0].model.heat == 0.125


def test_the_first_alone_is_told_what_a_checkpoint_is_to_have():
    members = three()
    found = together(members, lambda mesh, each: handed_to_first(mesh, each.remembers, each.ran, range(BLOCKS)))
    assert found[1:] == [None, None]
    fresh = Member(0, BLOCKS)
    fresh.remembers.lay(found[0])
    assert_has_all(fresh.model)


@pytest.mark.parametrize("late", [0, 1])
def test_a_checkpoint_of_those_of_whom_some_have_just_rolled_forward_is_of_one_place(late):
    """Lines after the step have run at the others: what these have set is of all blocks, those of the late one too."""
    members = three()
    for rank, member in enumerate(members):
        member.remembers.note_batch()
        member.remembers.note_step()
        if rank != late:
            member.model.heat = 0.125
            for block in member.cut.blocks:
                block.scale = 2.0

    def told(mesh, each):
        return handed_to_first(mesh, each.remembers, each.ran, range(BLOCKS), (late,))

    found, *_ = together(members, told)
    fresh = Member(0, BLOCKS)
    for moment, scale, heat in ((STEPPED, 0.5, 0.25), ("", 2.0, 0.125)):
        fresh.remembers.lay(found, moment=moment)
        assert [each.calls for each in fresh.model.blocks] == [10, 11, 12]
        assert ({each.scale for each in fresh.model.blocks}, fresh.model.heat) == ({scale}, heat)


def test_what_nobody_has_run_is_as_the_script_has_set_it():
    members = three()[:2]  # who ran the last block is gone, and another keeps its weights
    ran = [each.ran for each in members]
    found = together(members, lambda mesh, each: gathered(mesh, each.remembers, ran, range(2)))
    fresh = Member(0, BLOCKS)
    fresh.remembers.lay(found[0])
    assert [each.calls for each in fresh.model.blocks] == [10, 11, 0]
    assert [each.scale for each in fresh.model.blocks] == [0.5] * 3


def test_a_newcomer_gets_what_was_before_a_step_and_right_after_it_from_who_runs_a_block():
    """And what lines after the step have set since, as it is now; what a loop makes on its way is noted as well."""
    members = [*three(), Member(0, BLOCKS)]
    for rank, member in enumerate(members[:-1]):
        member.model.late = np.float32(0.5)
        member.remembers.note_batch()
        member.block(rank).calls += 100
        member.remembers.note_step()
        member.model.late = np.float32(0.25)
        for block in member.cut.blocks:
            block.scale = 2.0
    ran = [*(each.ran for each in members[:-1]), (0, 0)]
    *_, found = together(members, lambda mesh, each: gathered(mesh, each.remembers, ran, range(BLOCKS)))
    newcomer = members[-1]
    for moment, calls, scale, late in ((BEGAN, 10, 0.5, 0.5), (STEPPED, 110, 0.5, 0.5), ("", 110, 2.0, 0.25)):
        newcomer.remembers.lay(found, moment=moment)
        assert [(each.calls, each.scale) for each in newcomer.model.blocks] == [(calls + n, scale) for n in range(3)]
        assert (newcomer.model.late, type(newcomer.model.late)) == (late, np.float32)
    again = newcomer.remembers.state(range(BLOCKS))
    assert all(again[moment] == found[moment] for moment in (BEGAN, STEPPED))  # which it hands on


def test_who_is_handed_the_step_that_it_called_for_hands_on_what_was_around_it():
    """Others have made it, and are at their next call; this pass is that of the step."""

    def at_its_call(member):
        optimizer = torch.optim.SGD(member.model.parameters(), lr=0.1)
        course = Course(Progress(samples=10, batch=1), Schedules([], optimizer), optimizer, None)
        course.remembers = member.remembers
        course.come_to(BATCH)
        member.model.heat = 0.5
        course.come_to(CALL)
        return course

    giver, taker = Member(0, BLOCKS), Member(0, BLOCKS)
    gives, takes = at_its_call(giver), at_its_call(taker)
    gives.stepped()
    giver.model.heat = 0.25
    gives.come_to(BATCH)
    gives.come_to(CALL)
    state = giver.remembers.state(range(BLOCKS))
    takes.take({**gives.tree(), "values": state})
    assert taker.model.heat == 0.5
    takes.come_to(BATCH)
    takes.come_to(CALL)
    assert (taker.model.heat, takes.to_step) == (0.25, True)
    again = taker.remembers.state(range(BLOCKS))
    assert again[BEGAN] == state[BEGAN] == {"module ": {"heat": 1.0}}
    assert again[STEPPED] == state[STEPPED] == {"module ": {"heat": 0.5}}


def test_of_what_is_of_no_block_that_of_who_has_the_first_counts_and_then_that_of_the_last():
    said = [(0, {"plain": {"module ": {"heat": 1, "first": 5}}}), (1, {"plain": {"module ": {"heat": 2, "last": 3}}})]
    assert merged(said, {0: 0, 2: 1})["plain"] == {"module ": {"heat": 1, "first": 5, "last": 3}}
    assert merged(said, {0: 1, 2: 0})["plain"] == {"module ": {"heat": 2, "first": 5, "last": 3}}


def test_of_who_has_yet_to_hear_of_a_step_counts_what_forwards_have_changed_alone():
    """The others' scripts have set more since: the first of them tells of all blocks, those of the late one too."""
    members = [*three(), Member(0, BLOCKS)]
    members[0].model.pace = 1
    members[0].remembers.note_batch()
    members[0].remembers.note_step()  # before the last step
    members[0].model.heat = 0.125
    for member in members[:3]:
        member.model.pace = 2
    for member in members[1:3]:
        member.remembers.note_batch()
        member.remembers.note_step()
        member.model.heat = 0.0625
        for block in member.cut.blocks:
            block.scale = 2.0
    ran = [*(each.ran for each in members[:-1]), (0, 0)]
    *_, found = together(members, lambda mesh, each: gathered(mesh, each.remembers, ran, range(BLOCKS), (0,)))
    model = members[-1].model
    for moment, scale, heat in ((BEGAN, 0.5, 0.25), ("", 2.0, 0.0625)):
        members[-1].remembers.lay(found, moment=moment)
        assert [each.calls for each in model.blocks] == [10, 11, 12]
        assert ({each.scale for each in model.blocks}, model.heat, model.pace) == ({scale}, heat, 2)
        assert (model.first.note, model.last.note) == ("before", "after")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6), st.randoms())
@settings(deadline=None)
def test_each_block_is_told_of_by_one_who_runs_it_if_there_is_any(ran, dice):
    among = dice.sample(range(len(ran)), dice.randint(1, len(ran)))
    found = owners(ran, among, 5)
    assert [*found] == [*range(5)]
    for block, rank in found.items():
        runs = [each for each in among if ran[each][0] <= block < ran[each][1]]
        assert rank == (runs or among)[0]


def test_a_state_is_the_same_after_its_bytes():
    state = {"plain": {"a": {"b": 1.5, "c": None}}, "buffers": {"x": torch.arange(5), "y": torch.ones(2, 2)}}
    again = unpacked(packed(state))
    assert again["plain"] == state["plain"]
    assert all(torch.equal(again["buffers"][name], state["buffers"][name]) for name in "xy")
    assert len(packed({"plain": {}, "buffers": {}})) == 0


def test_what_a_forward_changes_and_no_keeper_has_is_said_once(capsys):
    member, unkept = Member(0, BLOCKS), Unkept()

    def steps(count, *, kept=True):
        for _ in range(count):
            with unkept.watched(member.remembers, range(2), kept=kept):
                member.block(0).calls += 1
                member.block(2).calls += 1

    steps(1)
    steps(8, kept=False)
    assert capsys.readouterr().err == ""
    steps(7)  # to the 16th
    said = capsys.readouterr().err
    assert said.count("blocks.0.calls") == 1
    assert "blocks.2" not in said
    steps(16)
    assert capsys.readouterr().err == ""


def test_what_only_the_script_sets_is_not_said(capsys):
    member, unkept = Member(0, BLOCKS), Unkept()
    for number in range(8):
        member.block(0).scale = number
        with unkept.watched(member.remembers, range(3), kept=True):
            pass
    assert capsys.readouterr().err == ""
