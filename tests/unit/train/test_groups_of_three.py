"""What three workers of a group measure at a step: noise of the samples that count."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.train.samples import mixed  # noqa: E402
from tests.rigs.group_of_three import together  # noqa: E402
from tests.rigs.little_network import data, loss_of, network  # noqa: E402


def test_who_has_a_sample_of_another_measures_no_noise():
    """Three workers have two samples: the gradient of each, and that of both, are all that is measured."""
    order = torch.randperm(50, generator=torch.Generator().manual_seed(mixed(0, 0)))
    gradients = [_gradient(order[:1]), _gradient(order[1:2])]
    small = sum(float((each**2).sum()) for each in gradients) / 2
    large = float((_gradient(order[:2]) ** 2).sum())
    scatter = (small - large) / (1.0 - 1.0 / 2)
    (found,) = together(2)
    for each in found:
        assert each == pytest.approx((1, large - scatter / 2, scatter), rel=1e-4)


def _gradient(samples):
    model = network().eval()
    loss_of(model, data()[samples]).backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
