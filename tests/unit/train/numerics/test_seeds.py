"""Random numbers: Python's and NumPy's are alike in all workers from each epoch on, torch's are each worker's own."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.train.checkpoint.saving import Saver  # noqa: E402
from sublet.train.numerics.seeds import random_state, restore_random, rng_kept  # noqa: E402
from tests.rigs.little_network import adam, data, loss_of, network  # noqa: E402

STEPS = 4  # in an epoch of 50 samples in steps of 16


class Cut(Exception):
    """The run ends here."""


def drawn():
    return random.random(), float(np.random.rand())  # noqa: NPY002 - as scripts do


def choices(*, before=0, seed=3, cut=None, by_epochs=True, **more):
    """What a script draws with each batch, by the number of the step; whatever it drew before."""
    model, found = network(), {}
    random.seed(before)
    np.random.seed(before)  # noqa: NPY002 - as scripts do
    with train.session(model, adam(model), data(), global_batch=16, epochs=3, seed=seed, **more) as s:
        for _ in s.epochs() if by_epochs else range(1):
            for batch in s:
                if s.steps == cut:
                    raise Cut
                found[s.steps] = drawn()
                s.step(loss_of(model, batch))
    return found


def test_they_follow_from_the_seed_and_the_epoch_whatever_was_drawn_before():
    found = choices()
    assert choices(before=7) == choices(by_epochs=False) == found
    assert len(set(found.values())) == 3 * STEPS
    assert set(choices(seed=4).values()).isdisjoint(found.values())


@pytest.mark.parametrize("cut", [STEPS + 1, 2 * STEPS])
def test_a_start_that_goes_on_draws_what_it_would_have_drawn(tmp_path, monkeypatch, cut):
    at_every_step = lambda saver, _, tree, progress, world, **__: saver.save(tree(), progress, world)  # noqa: E731
    monkeypatch.setattr(Saver, "tick", at_every_step)
    whole = choices()
    with pytest.raises(Cut):
        choices(cut=cut, checkpoint_dir=tmp_path)
    again = choices(before=9, checkpoint_dir=tmp_path)
    assert again == {step: each for step, each in whole.items() if step >= cut}


def test_a_newcomer_takes_over_what_is_alike_and_draws_its_own_from_torch():
    model = network()
    session = train.session(model, adam(model), data(), global_batch=16, epochs=1)
    state, progress = session._strategy.state, session._progress
    tree = copy.deepcopy(state.tree(progress))
    alike, own = [], []
    for steps, rank in ((3, 0), (3, 1), (4, 1)):
        tree["progress"]["steps"] = steps
        state.restore(tree, progress, rank=rank)
        alike.append(drawn())
        own.append(float(torch.rand(())))
    assert len(set(alike)) == 1
    assert len(set(own)) == 3
    state.restore(tree, progress, rank=1)
    assert float(torch.rand(())) == own[2]


def test_what_is_drawn_aside_was_not_drawn():
    state = random_state()
    expected = (*drawn(), float(torch.rand(())))
    restore_random(state)
    with rng_kept():
        drawn(), torch.rand(3)
    assert (*drawn(), float(torch.rand(()))) == expected
