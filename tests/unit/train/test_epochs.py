"""Loops over epochs without a controller: where they begin, schedules of the script's own, and what is refused."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import BadInput, InvalidValue  # noqa: E402
from sublet.train.checkpoint.saving import Saver  # noqa: E402
from sublet.train.link.following import Entry  # noqa: E402
from sublet.train.numerics.seeds import restore_rng  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402

STEPS = 4  # in an epoch of 50 samples in steps of 16
SCHEDULES = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.7**epoch),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 2), lr_scheduler.ExponentialLR(optimizer, 0.5)], [2]
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.8)]
    ),
}


class Cut(Exception):
    """The run ends here."""


def by_epoch(schedule=SCHEDULES["step"], epochs=4, cut=None, **more):
    """Train; the weights, the learning rate at each step of it, and the epochs whose ends were reached."""
    model = network()
    optimizer = adam(model)
    scheduler = schedule(optimizer)
    rates, ends = [], []
    with train.session(model, optimizer, data(), global_batch=16, epochs=epochs, **more) as s:
        s.keep(scheduler=scheduler)
        for epoch in s.epochs():
            for batch in s:
                if s.steps == cut:
                    raise Cut
                rates.append(optimizer.param_groups[0]["lr"])
                s.step(loss_of(model, batch))
            scheduler.step()
            ends.append(epoch)
    return flat(model), rates, ends


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("cut", [STEPS * 2 + 1, STEPS * 3], ids=["within an epoch", "between two"])
def test_a_schedule_by_epoch_goes_on_where_it_was_after_a_resume(tmp_path, monkeypatch, schedule, cut):
    at_every_step = lambda saver, _, tree, progress, world, **__: saver.save(tree(), progress, world)  # noqa: E731
    monkeypatch.setattr(Saver, "tick", at_every_step)
    weights, rates, ends = by_epoch(schedule)
    assert ends == [0, 1, 2, 3]
    assert len(set(rates)) > 1
    with pytest.raises(Cut):
        by_epoch(schedule, cut=cut, checkpoint_dir=tmp_path)
    resumed, rates_again, ends_again = by_epoch(schedule, checkpoint_dir=tmp_path)
    assert rates_again == rates[cut:]
    assert ends_again == ends[cut // STEPS :]
    assert torch.equal(resumed, weights)
    again, _, nothing = by_epoch(schedule, checkpoint_dir=tmp_path)
    assert nothing == []
    assert torch.equal(again, weights)


def test_epochs_are_the_same_training_as_one_loop_over_all_batches():
    model = network()
    with train.session(model, adam(model), data(), global_batch=16) as s:
        for batch in s.batches(epochs=4):
            s.step(loss_of(model, batch))
    twin = network()
    with train.session(twin, adam(twin), data(), global_batch=16, epochs=4) as s:
        for epoch in s.epochs():
            for batch in s.batches():
                s.step(loss_of(twin, batch))
            assert s.epoch == epoch + 1
    assert torch.equal(flat(model), flat(twin))


def test_whoever_missed_the_last_step_of_an_epoch_does_not_count_its_end_twice():
    """A group may break so that one rank has applied the last step and another has not; here both are one process."""
    weights, _, _ = by_epoch()
    model = network()
    optimizer = adam(model)
    scheduler = SCHEDULES["step"](optimizer)
    ahead = network()
    aheads = adam(ahead)
    aheads_scheduler = SCHEDULES["step"](aheads)
    with train.session(ahead, aheads, data(), global_batch=16, epochs=4) as first:  # is through with the epoch
        first.keep(scheduler=aheads_scheduler)
        for _ in first.epochs():
            for batch in first:
                if first.steps == STEPS:
                    break
                first.step(loss_of(ahead, batch))
            else:
                aheads_scheduler.step()
                continue
            handed = copy.deepcopy(first._strategy.state.tree(first._progress))
            break
    with train.session(model, optimizer, data(), global_batch=16, epochs=4) as s:
        s.keep(scheduler=scheduler)

        def recover(_):
            s._strategy.state.restore(copy.deepcopy(handed), s._progress)
            s._strategy.members.handed = handed
            restore_rng(handed["random"]["own"])  # dropout as in the run that was not disturbed
            return Entry(source="peer")

        s._strategy.members.recover = recover
        update = s._strategy.steps._update
        for epoch in s.epochs():
            if epoch == 1:
                restore_rng(handed["random"]["own"])
            for batch in s:
                if s.steps == STEPS - 1:
                    s._strategy.steps._update = lambda: setattr(s._strategy.steps, "broken", "somebody is gone")
                s.step(loss_of(model, batch))
                s._strategy.steps._update = update
            scheduler.step()
    assert scheduler.last_epoch == 4
    assert torch.equal(flat(model), weights)


def test_whoever_missed_the_last_step_of_a_training_of_so_many_does_not_count_its_end_twice():
    """As above, amid an epoch: with `steps=N` its last one ends where training does."""
    handed, after = {}, {}

    def trained(*, missed):
        model = network()
        optimizer = adam(model)
        scheduler = SCHEDULES["lambda"](optimizer)
        with train.session(model, optimizer, data(), global_batch=16, steps=STEPS + 2) as s:
            s.keep(scheduler=scheduler)

            def recover(_):
                s._strategy.state.restore(copy.deepcopy(handed), s._progress)
                s._strategy.members.handed = handed
                return Entry(source="peer")

            s._strategy.members.recover = recover
            update = s._strategy.steps._update
            for _ in s.epochs():
                for batch in s:
                    if missed and s.steps == STEPS + 1:
                        s._strategy.steps._update = lambda: setattr(s._strategy.steps, "broken", "somebody is gone")
                    s.step(loss_of(model, batch))
                    s._strategy.steps._update = update
                scheduler.step()
            if not missed:  # it waits for the others at the end of its session
                handed.update(copy.deepcopy(s._strategy.state.tree(s._progress)))
        after[missed] = flat(model), scheduler.last_epoch, optimizer.param_groups[0]["lr"]

    trained(missed=False)
    trained(missed=True)
    assert torch.equal(after[True][0], after[False][0])
    assert after[True][1:] == after[False][1:]
    assert after[False][1] == 2


def test_a_loop_that_was_left_goes_on_where_it_was():
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, epochs=2) as s:
        for batch in s:
            s.step(loss_of(model, batch))
            if s.steps == 3:
                break
        for batch in s:
            s.step(loss_of(model, batch))
        assert s.steps == 2 * STEPS
        with pytest.raises(InvalidValue, match="called once, for the whole training"):
            next(iter(s))


def by_the_guide_of_old(s, step, _):
    for epoch in (1, 2):
        for batch in s.batches(epochs=epoch):
            step(batch)


def not_of_the_session(s, step, _):
    for _ in s.epochs():
        pass


def left_in_a_step(s, step, _):
    for _ in s.epochs():
        for batch in s:
            step(batch)
            break


def twice_over_an_epoch(s, step, _):
    for _ in s.epochs():
        for _ in range(2):
            for batch in s:
                step(batch)


def schedule_by_batch(s, step, scheduler):
    for batch in s.batches(epochs=2):
        step(batch)
        scheduler.step()


def schedule_by_epoch(s, step, scheduler):
    for _ in s.epochs():
        for batch in s:
            step(batch)
        scheduler.step()


@pytest.mark.parametrize("cut", [None, 3, 4, 5])
@pytest.mark.parametrize("early", [True, False], ids=["before the step", "after it"])
@pytest.mark.parametrize("scheduler_every", ["epoch", None])
def test_an_epoch_that_is_left_early_is_over_and_the_next_begins(tmp_path, monkeypatch, cut, early, scheduler_every):
    """Two of its four batches, three times; and the same where another process goes on from any step."""
    at_every_step = lambda saver, _, tree, progress, world, **__: saver.save(tree(), progress, world)  # noqa: E731
    monkeypatch.setattr(Saver, "tick", at_every_step)

    def trained(place, until=None):
        model = network()
        optimizer = adam(model)
        scheduler = SCHEDULES["step"](optimizer)
        ours = {} if scheduler_every is None else {"scheduler": scheduler, "scheduler_every": "epoch"}
        numbers = []
        with train.session(
            model, optimizer, data(), global_batch=16, epochs=3, checkpoint_dir=tmp_path / place, **ours
        ) as s:
            if not ours:
                s.keep(scheduler=scheduler)
            for epoch in s.epochs():
                for batch in s:
                    if early and s.steps_in_epoch == 2:
                        break
                    numbers.append((epoch, s.steps_in_epoch, s.steps))
                    if s.steps == until:
                        raise Cut
                    s.step(loss_of(model, batch))
                    if s.steps_in_epoch == 2:
                        break
                if scheduler_every is None:
                    scheduler.step()
        return flat(model), optimizer.param_groups[0]["lr"], numbers, s.samples_done

    weights, rate, numbers, done = trained("whole")
    assert numbers == [(epoch, number, 2 * epoch + number) for epoch in range(3) for number in range(2)]
    assert done == 3 * 50
    if cut is not None:
        with pytest.raises(Cut):
            trained("cut", cut)
        again = trained("cut")
        assert torch.equal(again[0], weights)
        assert again[1:] == (rate, numbers[cut:], done)


@pytest.mark.parametrize("left", [STEPS, 2], ids=["whole", "left early"])
@pytest.mark.parametrize("by_session", [True, False], ids=["by the session", "by the script"])
def test_after_its_batches_an_epoch_still_has_its_own_rate(left, by_session):
    """As in a plain loop whose last line is `scheduler.step()`."""
    model, rates = network(), []
    optimizer = adam(model)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    ours = {"scheduler": scheduler, "scheduler_every": "epoch"} if by_session else {}
    with train.session(model, optimizer, data(), global_batch=16, epochs=3, **ours) as s:
        for _ in s.epochs():
            for batch in s:
                s.step(loss_of(model, batch))
                rates.append(scheduler.get_last_lr()[0])
                if s.steps_in_epoch == left:
                    break
            rates.append(scheduler.get_last_lr()[0])
            if not by_session:
                scheduler.step()
    assert rates == [rate for rate in (0.01, 0.005, 0.0025) for _ in range(left + 1)]
    assert scheduler.get_last_lr() == [0.00125]


@pytest.mark.parametrize(("left", "rate"), [(STEPS, 0.005), (2, 0.01)], ids=["between two epochs", "amid one"])
def test_a_training_that_was_stopped_goes_on_with_the_rate_of_the_epoch_it_is_in(tmp_path, monkeypatch, left, rate):
    found = []
    for stops in (True, False):
        model = network()
        optimizer = adam(model)
        more = {"scheduler": lr_scheduler.StepLR(optimizer, 1, 0.5), "scheduler_every": "epoch"}
        more |= {"epochs": 3 if stops else 2, "checkpoint_dir": tmp_path}  # of another length: it is to go on
        with train.session(model, optimizer, data(), global_batch=16, **more) as s:
            for _ in s.epochs():
                for batch in s:
                    if not stops:
                        found.append((s.steps, optimizer.param_groups[0]["lr"]))
                    s.step(loss_of(model, batch))
                    if stops and s.steps == left:
                        break
                if stops:
                    break
    assert found == [(step, 0.01 if step < STEPS else 0.005) for step in range(left, 2 * STEPS)]
    assert found[0][1] == rate


@pytest.mark.parametrize(
    ("loop", "more", "why"),
    [
        (by_the_guide_of_old, "", r"for epoch in s\.epochs\(\)"),
        (not_of_the_session, "epochs", "left after 0 of 50 samples.* nothing was taken from the session"),
        (left_in_a_step, "epochs micro_batch", "left after 0 of 50 samples.* s.updated"),
        (twice_over_an_epoch, "epochs", "once for each epoch"),
        (schedule_by_batch, "scheduler", "left to the session"),
        (schedule_by_epoch, "epochs scheduler", "leave scheduler= out"),
    ],
)
def test_a_loop_that_cannot_be_right_is_refused(loop, more, why):
    model = network()
    optimizer = adam(model)
    scheduler = SCHEDULES["step"](optimizer)
    known = {"epochs": 2, "scheduler": scheduler, "micro_batch": 8}
    known = {name: known[name] for name in more.split()}

    def run():
        with train.session(model, optimizer, data(), global_batch=16, **known) as s:
            loop(s, lambda batch: s.step(loss_of(model, batch)), scheduler)

    with pytest.raises(InvalidValue, match=why):
        run()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("registered", ["scheduler=", "keep", ""])
def test_a_scheduler_that_is_in_no_state_is_said_once(registered, strict, capsys):
    model = network()
    optimizer = adam(model)
    scheduler = SCHEDULES["sequential"](optimizer)
    more = {"scheduler": scheduler} if registered == "scheduler=" else {}

    def run():
        with train.session(model, optimizer, data(), global_batch=16, epochs=1, strict=strict, **more) as s:
            if registered == "keep":
                s.keep(scheduler=scheduler)
            for batch in s:
                s.step(loss_of(model, batch))

    if strict and not registered:
        with pytest.raises(InvalidValue, match=r"s\.keep\(scheduler=scheduler\)"):
            run()
        return
    run()
    assert ("a scheduler of this optimizer is not known" in capsys.readouterr().err) == (not registered)


def test_a_checkpoint_without_the_schedule_is_refused(tmp_path):
    def run(**more):
        model = network()
        optimizer = adam(model)
        given = {name: make(optimizer) for name, make in more.items()}
        with train.session(model, optimizer, data(), global_batch=16, checkpoint_dir=tmp_path, **given) as s:
            for batch in s.batches(epochs=1):
                s.step(loss_of(model, batch))

    run()
    with pytest.raises(BadInput, match="of 0 schedulers, this training has 1"):
        run(scheduler=SCHEDULES["step"])


def test_a_session_is_entered():
    model = network()
    s = train.session(model, adam(model), data(), global_batch=16, epochs=1)
    with pytest.raises(InvalidValue, match=r"with train\.session"):
        next(iter(s))
    with s:
        for batch in s:
            s.step(loss_of(model, batch))
    with pytest.raises(InvalidValue, match=r"called once|with train\.session"):
        next(iter(s))


def test_the_number_of_epochs_is_said_once():
    model = network()
    with train.session(model, adam(model), data(), global_batch=16) as s:
        with pytest.raises(InvalidValue, match="given to the session"):
            next(s.epochs())
        with pytest.raises(InvalidValue, match="epochs"):
            next(iter(s))
    with (
        pytest.raises(InvalidValue, match="said once"),
        train.session(model, adam(model), data(), global_batch=16, epochs=3) as s,
    ):
        next(s.batches(epochs=4))
