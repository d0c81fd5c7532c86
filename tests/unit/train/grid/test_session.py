"""A session of a model in stages, alone: what the plain session makes, to the bit; and what it refuses."""

from __future__ import annotations

import random
from functools import partial
from time import sleep

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import Subset, default_collate  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue, RanksDiffer  # noqa: E402
from sublet.train.grid import in_stages  # noqa: E402
from sublet.train.grid.holdings import sizes_of  # noqa: E402
from sublet.train.grid.in_stages import awaited  # noqa: E402
from sublet.train.grid.stages import Staged  # noqa: E402
from tests.rigs.numbers_in_stages import BATCH, MICRO, WIDTH, a_net, adam, data, loss_on, squared  # noqa: E402


class Again(nn.Module):
    """Computed once more in its backward."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


def nothing(_):
    """Is done."""


def cut(model, optimizer=None, dataset=None, **more):
    facts = {"global_batch": BATCH, "micro_batch": MICRO, "loss": squared, **more}
    return train.session(model, optimizer or adam(model), dataset or data(), **facts)


def in_parts(model, optimizer=None, epochs=2, after=nothing, before=nothing, until=nothing, dataset=None, **more):
    with cut(model, optimizer, dataset, **more) as s:
        for batch in s.batches(epochs=epochs):
            before(s)
            s.step(batch)
            after(s)
            if until(s):
                break
    return s


def plainly(model, optimizer=None, epochs=2, **more):
    optimizer = optimizer or adam(model)
    with train.session(model, optimizer, data(), global_batch=BATCH, micro_batch=MICRO, **more) as s:
        for batch in s.batches(epochs=epochs):
            s.step(loss_on(model)(batch))
    return s


def assert_equal(one, other):
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_who_is_at_other_samples_than_its_weights_makes_no_step():
    with pytest.raises(RanksDiffer, match="3 in place of 2"):
        in_parts(a_net(), before=lambda s: s.steps == 2 and s._progress.advance())


@pytest.mark.parametrize("make", [adam, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)])
def test_a_grid_of_one_is_the_plain_session_to_the_bit(make):
    whole, cut = a_net(), a_net()
    ours, theirs = make(cut), make(whole)
    plainly(whole, theirs, scheduler=torch.optim.lr_scheduler.StepLR(theirs, 3, 0.5))
    s = in_parts(cut, ours, scheduler=torch.optim.lr_scheduler.StepLR(ours, 3, 0.5))
    assert_equal(whole, cut)
    assert (s.steps, s.epoch, s.samples_done, s.rank, s.world, s.grid, s.place) == (10, 2, 80, 0, 1, (1, 1), (0, 0))
    assert [group["lr"] for group in ours.param_groups] == [group["lr"] for group in theirs.param_groups]


@pytest.mark.parametrize(("first", "second"), [(in_parts, plainly), (plainly, in_parts), (in_parts, in_parts)])
def test_a_checkpoint_is_the_same_in_stages_and_without(tmp_path, first, second):
    """One epoch by one kind of session and another by the other: two epochs of the plain one, to the bit."""
    whole, one, other = a_net(), a_net(), a_net()
    theirs = adam(whole)
    plainly(whole, theirs, scheduler=torch.optim.lr_scheduler.StepLR(theirs, 3, 0.5))
    for model, session, epochs in ((one, first, 1), (other, second, 2)):
        optimizer = adam(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        s = session(model, optimizer, epochs=epochs, scheduler=schedule, checkpoint_dir=tmp_path)
    assert_equal(whole, other)
    assert (s.steps, [group["lr"] for group in optimizer.param_groups]) == (10, [g["lr"] for g in theirs.param_groups])


def test_one_that_goes_on_from_a_checkpoint_draws_as_if_it_had_not_ended(tmp_path):
    whole = a_net(0.5)
    in_parts(whole)
    in_parts(a_net(0.5), epochs=1, checkpoint_dir=tmp_path)
    torch.rand(3)
    resumed = a_net(0.5)
    in_parts(resumed, checkpoint_dir=tmp_path)
    assert_equal(whole, resumed)


def test_a_gradient_that_is_too_long_is_clipped_as_the_plain_session_does_within_rounding():
    whole, cut = a_net(), a_net()
    plainly(whole, clip_norm=0.1)
    in_parts(cut, clip_norm=0.1)
    for a, b in zip(whole.parameters(), cut.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("frozen", ["first", "blocks.1"])
def test_what_was_frozen_when_it_began_is_not_trained_later_without_a_word(frozen):
    model = a_net()
    model.get_submodule(frozen).requires_grad_(False)
    in_parts(model)  # frozen to the end: trained around
    with pytest.raises(InvalidValue, match=r"requires_grad = 'True' .* 2 parameters were frozen then.*lr=0"):
        in_parts(model, after=lambda s: model.get_submodule(frozen).requires_grad_(s.steps == 2))


@pytest.mark.parametrize("clip", [None, 1e9])
def test_what_is_frozen_in_its_first_step_is_trained_from_when_it_is_thawed(clip):
    """Clipping takes gradients to where all units' are, though there is nothing to clip. Truth is a loop of torch's."""
    model, cut = a_net(), a_net()
    optimizer, batch = adam(model), default_collate([data()[number] for number in range(BATCH)])
    for step in range(6):
        model.first.requires_grad_(step % 3 > 0)
        optimizer.zero_grad()
        loss_on(model)(batch).backward()
        optimizer.step()
    only = Subset(data(), range(BATCH))
    in_parts(cut, epochs=6, dataset=only, before=lambda s: cut.first.requires_grad_(s.steps % 3 > 0), clip_norm=clip)
    for ours, its in zip(cut.parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, its, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_grid_of_one_draws_what_the_plain_session_draws(dropout):
    whole = a_net(dropout)
    plainly(whole)
    cut = a_net(dropout)
    in_parts(cut)
    assert_equal(whole, cut)


class Own(train.Stages):
    def forward(self, x):
        return super().forward(x)


def test_a_sequence_is_in_stages_where_the_job_says_so_and_other_forwards_never_are(monkeypatch):
    layers = [nn.Linear(3, 3), nn.Linear(3, 1)]
    found = {}
    for told in (None, "1", "3", "auto"):
        monkeypatch.delenv("SUBLET_STAGES", raising=False)
        if told is not None:
            monkeypatch.setenv("SUBLET_STAGES", told)
        for name, model in {
            "stages": a_net(),
            "sequence": nn.Sequential(*layers),
            "own": Own(nn.Identity(), layers, nn.Identity()),
        }.items():
            found[told, name] = type(cut(model)._strategy) is in_stages.InStages
        assert type(cut(a_net(), loss=None)._strategy) is not in_stages.InStages
    assert [each for each, is_grid in found.items() if is_grid] == [
        (None, "stages"),
        ("1", "stages"),
        ("3", "stages"),
        ("3", "sequence"),
        ("auto", "stages"),
        ("auto", "sequence"),
    ]


def summed(output, batch):
    return nn.functional.mse_loss(output, batch[1], reduction="sum")


def test_a_loss_that_is_no_mean_is_told_before_the_first_step(capsys):
    in_parts(a_net(0.5), loss=summed, epochs=1)
    assert "it looks like a sum" in capsys.readouterr().err
    seen = []
    with pytest.raises(InvalidValue, match="it looks like a sum"):
        in_parts(a_net(), loss=summed, strict=True, after=lambda s: seen.append(s.steps))
    assert seen == []


def test_of_a_mean_nothing_is_told_and_the_look_at_it_does_not_count(capsys):
    one = a_net(0.5)
    in_parts(one, epochs=1)
    assert capsys.readouterr().err == ""
    other = a_net(0.5)
    in_parts(other, epochs=1, probe=False)
    assert_equal(one, other)


def test_what_a_script_draws_by_python_and_numpy_begins_alike_with_each_epoch():
    drawn, others = [], []
    in_parts(a_net(), before=lambda s: drawn.append((random.random(), np.random.random())))  # noqa: NPY002 - what scripts use
    random.random()
    in_parts(a_net(), before=lambda s: others.append((random.random(), np.random.random())))  # noqa: NPY002 - as above
    assert drawn == others
    assert len(set(drawn)) == 10


def test_weights_that_belong_to_no_stage_are_refused():
    model = a_net()
    model.more = nn.Parameter(torch.zeros(2))
    with pytest.raises(InvalidValue, match="more"):
        cut(model)


def test_an_evaluation_is_the_mean_over_all_samples_in_eval_mode():
    model, seen = a_net(0.5), []
    in_parts(model, after=lambda s: seen.append(s.evaluate(data(10))), epochs=1)
    again = a_net(0.5)
    in_parts(again, epochs=1)
    assert_equal(model, again), "evaluations change nothing"
    model.eval()
    with torch.no_grad():
        whole = loss_on(model)(data(10).tensors)
    assert seen[-1] == pytest.approx(float(whole), rel=1e-6)
    assert again.training


def test_an_evaluation_may_be_of_a_loader_in_the_order_of_its_sampler():
    model, seen = a_net(), []
    loader = torch.utils.data.DataLoader(data(10), batch_size=7, sampler=torch.utils.data.SequentialSampler(range(4)))
    in_parts(model, epochs=1, after=lambda s: seen.append(s.evaluate(loader)))
    with torch.no_grad():
        whole = loss_on(model)([each[:4] for each in data(10).tensors])
    assert seen[-1] == pytest.approx(float(whole), rel=1e-6)


def test_an_evaluation_leaves_each_module_in_the_mode_that_it_was_in():
    model, modes = a_net(0.5), []
    model.blocks[1].eval()

    def after(s):
        s.evaluate(data(10))
        modes.append([block[0].drop.training for block in model.blocks])

    in_parts(model, after=after, epochs=1)
    assert modes == [[True, False, True]] * 5


def test_an_evaluation_may_be_of_a_few_batches():
    model, seen = a_net(), []
    in_parts(model, epochs=1, after=lambda s: seen.append(s.evaluate(data(), limit=2)))
    with torch.no_grad():
        whole = loss_on(model)([each[: 2 * MICRO] for each in data().tensors])
    assert seen[-1] == pytest.approx(float(whole), rel=1e-6)


def test_activations_may_be_computed_again():
    plain = a_net(0.5)
    in_parts(plain, epochs=1)
    checked = a_net(0.5, Again)
    in_parts(checked, epochs=1)
    for ours, its in zip(plain.parameters(), checked.parameters(), strict=True):
        assert torch.equal(ours, its)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about its own looks at gradients
def test_blocks_may_be_compiled():
    plain = a_net()
    in_parts(plain, epochs=1)
    compiled = a_net()
    for block in compiled.blocks:
        block.compile(backend="aot_eager")
    in_parts(compiled, epochs=1)
    assert_equal(plain, compiled)


def test_bfloat16_is_the_scripts_own_business():
    """Around a step, or around all of them: the weights that autocast has kept are those of now."""
    one, other, third = a_net(), a_net(), a_net()
    with cut(one, epochs=1, micro_batch=8) as s:
        for batch in s:
            with torch.autocast("cpu", torch.bfloat16):
                s.step(batch)
    with torch.autocast("cpu", torch.bfloat16):
        in_parts(third, epochs=1, micro_batch=8)
    with train.session(other, adam(other), data(), global_batch=8) as s:
        for batch in s.batches(epochs=1):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_on(other)(batch)
            s.step(loss)
    assert_equal(one, other)
    assert_equal(third, other)


def test_what_a_model_in_stages_cannot_do_is_refused_with_the_way_out():
    model = a_net()
    for more, match in (
        ({"micro_batch": None}, "micro_batch"),
        ({"batch_range": (4, 16)}, "batch_range"),
        ({"reduction": "sum"}, "reduction"),
        ({"clip_value": 1.0}, "clip_value"),
        ({"scaler": torch.amp.GradScaler("cpu")}, "scaler"),
        ({"optimizer": {"one": adam(model)}}, "several parameter groups"),
    ):
        with pytest.raises(InvalidValue, match=match):
            in_parts(model, **more)
    with pytest.raises(InvalidValue, match="layer or group norm"):
        in_parts(train.Stages(nn.BatchNorm1d(3), [nn.Linear(3, 1)], nn.Identity()))
    model.compile(backend="eager")
    with pytest.raises(InvalidValue, match="of each stage"):
        in_parts(model)


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda s, model, optimizer: optimizer.step(), "left to the session"),
        (lambda s, model, _: s.step(torch.zeros(())), "what batches"),
        (lambda s, model, _: next(s.epochs()), "epochs"),
        (lambda s, model, _: next(s.batches(epochs=1)), "called once"),
    ],
)
def test_what_is_the_sessions_to_do_is_refused(act, match):
    model = a_net()
    optimizer = adam(model)
    with pytest.raises(InvalidValue, match=match):
        in_parts(model, optimizer, after=lambda s: act(s, model, optimizer))


def test_a_batch_without_a_step_is_refused():
    model = a_net()
    with (
        pytest.raises(InvalidValue, match="once for every batch"),
        cut(model) as s,
    ):
        for _ in s.batches(epochs=1):
            pass


def test_a_worker_says_how_large_its_blocks_are():
    """Weights and two moments of each, in single precision; what is around blocks counts to the next."""
    model = a_net()
    block, first, last = WIDTH * WIDTH + WIDTH, 3 * WIDTH + WIDTH, WIDTH + 1
    found = sizes_of(Staged(model), adam(model))
    assert found == tuple(12 * count for count in (first + block, block, block + last))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    assert sum(sizes_of(Staged(model), plain)) * 3 == sum(found)


def test_a_second_step_for_one_batch_is_refused_in_words():
    with cut(a_net(), epochs=1) as s:
        for batch in s:
            s.step(batch)
            with pytest.raises(InvalidValue, match="a second call for one batch"):
                s.step(batch)
    assert s.steps == 5


def test_a_loop_of_the_scripts_own_takes_its_batches_one_by_one():
    model, other = a_net(), a_net()
    with cut(model) as s:
        batches = s.batches(epochs=2)
        while s.epoch < 2:
            s.step(next(batches))
    in_parts(other)
    assert_equal(model, other)


def by_epochs(model, seen, *, leaves=False, **more):
    with cut(model, epochs=2, **more) as s:
        for epoch in s.epochs():
            for batch in s:
                s.step(batch)
                seen.append((epoch, s.epoch, s.steps))
                if leaves:
                    break
    return s


def test_epochs_give_those_that_are_left_and_their_batches():
    model, other, seen = a_net(), a_net(), []
    s = by_epochs(model, seen)
    in_parts(other)
    assert_equal(model, other)
    assert (s.steps, s.epoch) == (10, 2)
    assert seen == [(0, 0, 1), (0, 0, 2), (0, 0, 3), (0, 0, 4), (0, 1, 5)] + [
        (1, 1 + at // 5, 5 + at) for at in range(1, 6)
    ]


def test_an_epoch_is_not_left_before_its_samples_are_through():
    with pytest.raises(InvalidValue, match="left after 8 of 40 samples"):
        by_epochs(a_net(), [], leaves=True)


def test_a_training_is_so_many_steps_long_where_the_script_says_so():
    seen = []
    with cut(a_net(), steps=7) as s:
        for batch in s:
            s.step(batch)
            seen.append((s.steps, s.epoch))
    assert seen[-1] == (7, 1)


def test_a_scheduler_may_go_by_the_epoch():
    model = a_net()
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    rates = []
    by = {"scheduler": schedule, "scheduler_every": "epoch", "after": lambda s: rates.append(schedule.get_last_lr()[0])}
    in_parts(model, optimizer, **by)
    assert rates == [0.05] * 5 + [0.025] * 5


def test_what_is_kept_and_how_far_it_is_come_back_with_a_checkpoint(tmp_path):
    for epochs, first in ((1, 0), (2, 5)):
        with cut(a_net(), epochs=epochs, checkpoint_dir=tmp_path) as s:
            kept = s.keep(steps=0)
            for batch in s:
                assert kept.steps == s.steps >= first
                s.step(batch)
                kept.steps += 1
        assert kept.steps == s.steps == 5 * epochs


def test_a_loop_that_is_left_ends_the_training_and_an_error_does_not(tmp_path):
    with pytest.raises(ZeroDivisionError):
        in_parts(a_net(), checkpoint_dir=tmp_path, until=lambda s: s.steps == 2 and 1 / 0)
    s = in_parts(a_net(), checkpoint_dir=tmp_path, until=lambda s: s.steps == 3)
    assert s.steps == 3
    assert in_parts(a_net(), checkpoint_dir=tmp_path).steps == 3  # nothing is left to train


@pytest.mark.parametrize("early", [True, False])
def test_who_leaves_its_loop_early_says_that_it_waits_for_those_who_train_on(monkeypatch, capsys, early):
    """Before anything is saved as the last. At the end of all epochs nobody has to be waited for by a word."""
    said, sums, left = "", [], False
    monkeypatch.setattr(in_stages, "awaited", partial(awaited, after_s=0.0))

    def waits(tensor, _):
        nonlocal said
        sums.append(tensor)
        for _ in range(12_000 if left else 10):
            said += capsys.readouterr().err
            if "waits" in said:
                break
            sleep(0.01)

    def leave(s):
        nonlocal left
        if s.steps == 1:
            s._strategy.mesh.sum = waits
        left = early and s.steps == 3
        return left

    in_parts(a_net(), epochs=1, until=leave)
    assert sums
    assert ("the end of the session waits for the other workers" in said) == early
