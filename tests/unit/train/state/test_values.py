"""Values of a script come back from a checkpoint as they were, of the same kinds, and into the same objects."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sublet.train.checkpoint.snapshot import HostCopy  # noqa: E402
from sublet.train.state.kept import described, laid, load_state, state_of  # noqa: E402

NUMBERS = st.integers(-5, 5) | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(max_size=3)
KEYS = st.integers(-5, 5) | st.text(max_size=3)
SHAPES = st.lists(st.integers(0, 3), max_size=2)
TENSORS = SHAPES.map(lambda shape: torch.arange(float(np.prod(shape))).reshape(shape))
ARRAYS = SHAPES.map(lambda shape: np.arange(int(np.prod(shape))).reshape(shape))


def containers(inner):
    some = st.lists(inner, max_size=3)
    return st.one_of(some, some.map(tuple), st.dictionaries(KEYS, inner, max_size=3))


VALUES = st.recursive(NUMBERS | TENSORS | ARRAYS, containers, max_leaves=8)


def same(a, b):
    """Of the same kind, with the same in it, in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list | tuple) else a == b


def through_a_checkpoint(value):
    return HostCopy().take({"value": described("value", value)}).state()["value"]


@given(VALUES)
def test_what_was_saved_is_what_comes_back(value):
    assert same(laid(through_a_checkpoint(value)), value)


@given(VALUES, VALUES)
def test_it_is_laid_into_whatever_is_there(value, there):
    assert same(laid(through_a_checkpoint(value), there), value)


@given(VALUES)
def test_a_copy_is_no_part_of_what_it_was_made_from(value):
    copied = described("value", value)
    before = laid(copied)
    for each in _all(value):
        if isinstance(each, torch.Tensor | np.ndarray):
            each[...] = 7
    if isinstance(value, list | dict):
        value.clear()
    assert same(laid(copied), before)


def _all(value):
    yield value
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _all(each)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [1, torch.ones(2)],
        lambda: {"a": torch.ones(2)},
        lambda: torch.ones(2),
        lambda: np.ones(2),
    ],
)
def test_objects_of_the_same_kind_stay_themselves(make):
    value, there = make(), make()
    assert laid(through_a_checkpoint(value), there) is there


def test_the_state_of_a_model_that_was_put_aside_is_a_dict_then():
    given = OrderedDict(b=torch.ones(2), a=torch.zeros(1))
    assert same(laid(through_a_checkpoint(given)), dict(given))


def test_what_cannot_be_written_to_is_replaced():
    wide = torch.zeros(1).expand(3)
    assert laid(torch.ones(3), wide).tolist() == [1.0, 1.0, 1.0]
    assert laid(torch.ones(3), torch.zeros(2)).tolist() == [1.0, 1.0, 1.0]
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    assert laid(described("value", np.ones(2)), frozen).tolist() == [1.0, 1.0]


def test_milestones_of_a_scheduler_are_a_counter_when_they_come_back():
    def made():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 2, 5], gamma=0.5)

    saved = state_of(made())
    saved["items"]["milestones"] = dict(saved["items"]["milestones"])  # as a checkpoint has it
    back = made()
    load_state("kept.scheduler", saved, back)
    back.optimizer.step()
    with pytest.warns(UserWarning, match="epoch"):
        back.step(3)
    assert back.get_last_lr() == [0.25]
