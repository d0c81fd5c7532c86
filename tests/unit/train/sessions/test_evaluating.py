"""The mean over a held-out dataset: the same by one worker and by many, and without a trace in training."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue, RanksDiffer  # noqa: E402
from sublet.train.data.loading import HeldOut  # noqa: E402
from sublet.train.link.peers import PeerGroup  # noqa: E402
from sublet.train.numerics.drift import Drift  # noqa: E402
from sublet.train.numerics.gradients import Control  # noqa: E402
from sublet.train.state.state import Progress  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402


def held_out():
    return data(37)


def in_one(model, most=37):
    model.eval()
    with torch.no_grad():
        return float(loss_of(model, [tensor[:most] for tensor in held_out().tensors]))


@pytest.mark.parametrize("world", [1, 2, 3, 5, 40])
def test_the_shares_of_all_ranks_add_up_to_the_mean(world):
    model = network()
    seen = HeldOut(held_out(), None, None, None)
    found = sum(seen.mean(model, lambda batch: loss_of(model, batch), rank, world, 4) for rank in range(world))
    assert found == pytest.approx(in_one(model), rel=1e-5)


@pytest.mark.parametrize("given", [held_out, lambda: DataLoader(held_out(), 5, num_workers=1)], ids=["data", "loader"])
def test_an_evaluation_leaves_no_trace_in_training(given):
    def run(*, evaluates):
        model, found = network(), []
        model[0].eval()  # as the script wants it
        with train.session(model, adam(model), data(), global_batch=16, micro_batch=8, steps=6) as s:
            for batch in s:
                s.step(loss_of(model, batch))
                if evaluates and s.updated and s.steps % 3 == 0:
                    found.append(s.evaluate(lambda each: loss_of(model, each), given()))
                    assert model.training
                    assert not model[0].training
        return flat(model), found, in_one(model)

    plain, evaluated = run(evaluates=False), run(evaluates=True)
    assert torch.equal(plain[0], evaluated[0])
    assert len(evaluated[1]) == 2
    assert evaluated[1][-1] == pytest.approx(evaluated[2], rel=1e-5)


def test_a_limit_counts_micro_batches():
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, micro_batch=8, epochs=1) as s:
        found = s.evaluate(lambda batch: loss_of(model, batch), held_out(), limit=2)
    assert found == pytest.approx(in_one(model, 16), rel=1e-5)


def test_an_evaluation_within_a_step_is_refused():
    model = network()

    def run():
        with train.session(model, adam(model), data(), global_batch=16, micro_batch=8, steps=2) as s:
            for batch in s:
                s.step(loss_of(model, batch))
                s.evaluate(lambda each: loss_of(model, each), held_out())

    with pytest.raises(InvalidValue, match=r"where s\.updated is true"):
        run()


def said(**counts):
    return [counts.get(each.name, 0.0) for each in Control]


def test_a_rank_that_evaluates_or_leaves_while_others_train_on_is_an_error():
    model, group = network(), PeerGroup(world=2)
    drift, progress = Drift(model.parameters(), adam(model)), Progress(samples=50, batch=16)
    with pytest.raises(RanksDiffer, match=r"1 of 2 evaluate, and the others train on"):
        drift.require_together(group, progress, said(EVALUATED=1.0))
    with pytest.raises(RanksDiffer, match=r"1 of 2 have left their loop"):
        drift.require_together(group, progress, said(LEFT=1.0))
    drift.require_together(group, progress, said(EVALUATED=2.0))
    drift.require_together(group, progress, said(LEFT=2.0))
