"""Several models and optimizers in one session: the same as a plain loop, whatever breaks between their turns."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.checkpoint.saving import Saver  # noqa: E402
from sublet.train.link.following import Entry  # noqa: E402
from tests.rigs.little_network import FEATURES, data, flat  # noqa: E402


def gan():
    """Generator and judge, with an optimizer each; what is generated follows from the sample."""
    torch.manual_seed(4)
    nets = {"D": nn.Linear(FEATURES, 1), "G": nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, FEATURES))}
    optimizers = {name: torch.optim.Adam(net.parameters(), lr=0.01) for name, net in nets.items()}
    return nets, optimizers


def judges_loss(nets, real, seed):
    right, wrong = nets["D"](real), nets["D"](nets["G"](seed).detach())
    return F.softplus(-right).mean() + F.softplus(wrong).mean()


def generators_loss(nets, seed):
    return F.softplus(-nets["D"](nets["G"](seed))).mean()


def weights(nets):
    return torch.cat([flat(net) for net in nets.values()])


def plainly(steps):
    """Over the batches that a session gives."""
    nets, optimizers = gan()
    for real, seed in batches(steps):
        optimizers["D"].zero_grad()
        judges_loss(nets, real, seed).backward()
        optimizers["D"].step()
        optimizers["G"].zero_grad()
        generators_loss(nets, seed).backward()
        optimizers["G"].step()
    return weights(nets)


def batches(steps):
    model = nn.Linear(1, 1)
    with train.session(model, torch.optim.SGD(model.parameters(), 0.0), data(), global_batch=16, steps=steps) as s:
        for batch in s:
            yield batch
            s.step(model.weight.sum() * 0.0)


def in_a_session(steps, disturb=lambda s: None, **more):
    nets, optimizers = gan()
    with train.session(nets, optimizers, data(), global_batch=16, steps=steps, **more) as s:
        disturb(s)
        for real, seed in s:
            s.step(judges_loss(nets, real, seed), "D")
            assert not s.updated
            s.step(generators_loss(nets, seed), "G")
        assert s.steps == steps
    return weights(nets)


def test_a_gan_in_a_session_has_the_weights_of_a_plain_loop():
    assert torch.equal(in_a_session(9), plainly(9))


@pytest.mark.parametrize("turn", ["D", "G"])
def test_a_group_that_breaks_at_either_turn_applies_each_update_once(turn):
    """The judge's update stays where the generator's sum breaks; its loss is passed by when the samples come again."""
    broke = []

    def disturb(s):
        update, turns = s._strategy.steps._update, s._strategy.steps._turns
        s._strategy.members.recover = lambda why: Entry(source="peer")  # our own state is the newest there is

        def breaks_once():
            if s.steps == 5 and turns.now(s._progress).name == turn and not broke:
                broke.append(s._progress.turn)
                s._strategy.steps.broken = "somebody is gone"
            else:
                update()

        s._strategy.steps._update = breaks_once

    assert torch.equal(in_a_session(9, disturb), plainly(9))
    assert broke == [0 if turn == "D" else 1]


def test_a_gan_goes_on_from_a_checkpoint(tmp_path, monkeypatch):
    at_every_step = lambda saver, _, tree, progress, world, **__: saver.save(tree(), progress, world)  # noqa: E731
    monkeypatch.setattr(Saver, "tick", at_every_step)
    in_a_session(4, checkpoint_dir=tmp_path)
    assert torch.equal(in_a_session(9, checkpoint_dir=tmp_path), plainly(9))


def test_each_optimizer_may_have_a_scheduler_of_the_same_kind(capsys):
    nets, optimizers = gan()
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in optimizers.values()]
    with train.session(nets, optimizers, data(), global_batch=16, epochs=2) as s:
        s.keep(first=schedulers[0], second=schedulers[1])
        for _ in s.epochs():
            for real, seed in s:
                s.step(judges_loss(nets, real, seed), "D")
                s.step(generators_loss(nets, seed), "G")
            for scheduler in schedulers:
                scheduler.step()
    assert [each.param_groups[0]["lr"] for each in optimizers.values()] == [0.0025, 0.0025]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("calls", "why"),
    [(["G"], "for every batch s.step"), ([None], "no name"), (["D"], "no call"), (["D", "D"], "'D', as number 2")],
    ids=["wrong order", "no name", "one missing", "one twice"],
)
def test_a_batch_in_which_not_everybody_has_its_turn_is_refused(calls, why):
    nets, optimizers = gan()

    def run():
        with train.session(nets, optimizers, data(), global_batch=16, epochs=1) as s:
            for _, seed in s:
                for name in calls:
                    s.step(generators_loss(nets, seed), name)

    with pytest.raises(InvalidValue, match=why):
        run()


def test_a_parameter_has_one_optimizer():
    nets, optimizers = gan()
    both = torch.optim.SGD([*nets["D"].parameters(), *nets["G"].parameters()], 0.1)
    with pytest.raises(InvalidValue, match=r"without the parameters of 'D'"):
        train.session(nets, optimizers | {"both": both}, data(), global_batch=16)


@pytest.mark.parametrize(
    "more", [{"micro_batch": 4}, {"batch_range": (8, 32)}, {"scaler": torch.amp.GradScaler("cpu")}]
)
def test_what_several_optimizers_cannot_have_is_refused_at_once(more):
    nets, optimizers = gan()
    with pytest.raises(InvalidValue, match="with several optimizers"):
        train.session(nets, optimizers, data(), global_batch=16, **more)
