"""Batches that a function draws follow from the seed and the step, whatever the width and however they are cut."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.data.loading import DrawnSamples  # noqa: E402
from sublet.train.data.samples import MicroBatch  # noqa: E402


def get_batch():
    rows = torch.rand(6, 2)
    return {"x": rows, "y": rows.sum(1) + random.random() + np.random.rand(), "scale": torch.tensor(2.0)}  # noqa: NPY002 - as scripts do


def taken(start, count, seed=1):
    samples = DrawnSamples(train.drawn(get_batch), seed, None)
    return samples.load(0, MicroBatch(start=start, count=count, first=True, last=True))


def test_parts_of_a_draw_are_its_rows():
    whole = taken(12, 6)
    for first, count in ((12, 2), (14, 4)):
        part = taken(first, count)
        assert torch.equal(part["x"], whole["x"][first - 12 : first - 12 + count])
        assert torch.equal(part["y"], whole["y"][first - 12 : first - 12 + count])
        assert part["scale"] == 2.0


def test_a_part_may_reach_over_several_draws():
    whole = torch.cat([taken(0, 6)["x"], taken(6, 6)["x"]])
    assert torch.equal(taken(4, 5)["x"], whole[4:9])
    assert torch.equal(taken(4, 5)["y"][:2], taken(0, 6)["y"][4:])


def test_each_draw_is_another_and_so_is_each_seed():
    assert not torch.equal(taken(0, 6)["x"], taken(6, 6)["x"])
    assert not torch.equal(taken(0, 6)["x"], taken(0, 6, seed=2)["x"])


def test_the_scripts_own_random_numbers_stay():
    def next_ones():
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002 - as above
        yield
        yield torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002 - as above

    calm = list(next_ones())[1]
    numbers = next_ones()
    next(numbers)
    taken(0, 6)
    assert next(numbers) == calm


def test_what_has_no_rows_is_refused():
    with pytest.raises(InvalidValue, match="no tensor with rows"):
        train.drawn(lambda: 3)


def test_a_step_is_one_draw_unless_the_batch_says_another_number(tmp_path):
    sizes = []
    for more in ({}, {"global_batch": 12, "micro_batch": 6}):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with train.session(model, optimizer, train.drawn(get_batch), steps=3, **more) as s:
            with pytest.raises(TypeError):
                len(s)
            for batch in s:
                s.step(torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"]))
                sizes.append((len(batch["x"]), s.steps, s.updated))
    assert sizes[:3] == [(6, 1, True), (6, 2, True), (6, 3, True)]
    assert [size for size, _, _ in sizes[3:]] == [6] * 6
    assert [updated for _, _, updated in sizes[3:]] == [False, True] * 3
