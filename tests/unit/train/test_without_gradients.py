"""A parameter that took no part in a step, at any worker of a group, has no gradient, as in one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.rigs.group_without_gradients import OPTIMIZERS, alone, together  # noqa: E402
from tests.rigs.sizes import sized  # noqa: E402

CASES = [
    (ranges, optimizer, seed, freezes)
    for seed in range(sized(1, 8))
    for ranges in (1, 2, 3)
    for optimizer in sorted(OPTIMIZERS)
    for freezes in (False, True)
]


def test_a_group_is_one_process_of_torch_whoever_has_no_gradient_or_is_frozen_and_thawed():
    """With the optimizer's state whole, and in ranges."""
    for (ranges, optimizer, seed, freezes), found in zip(CASES, together(3, CASES), strict=True):
        truth = alone(optimizer, seed, freezes=freezes)
        for each in found:
            assert each["weights"] == found[0]["weights"], "to the bit"
        _assert_close(found[0]["weights"], truth["weights"])
        ours, its = found[0]["kept"], truth["kept"]
        assert ours.keys() == its.keys(), f"{optimizer} in {ranges}: nothing is kept of one that never had a gradient"
        for number, state in its.items():
            _assert_close(ours[number], state)


def _assert_close(ours, its):
    assert ours.keys() == its.keys()
    for name, value in its.items():
        assert torch.allclose(torch.tensor(ours[name]), torch.tensor(value), rtol=0, atol=1e-6), name
