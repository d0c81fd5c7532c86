"""What three workers of a group make of a step: its loss, and the noise of the samples that count."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.train.data.samples import mixed  # noqa: E402
from sublet.train.link.peers import PeerGroup  # noqa: E402
from tests.rigs.group_of_three import together, trained  # noqa: E402
from tests.rigs.little_network import data, loss_of, network  # noqa: E402

CASES = [(2, "mean"), *((samples, reduction) for samples in (2, 7) for reduction in ("sum", "counted")), (7, "mean")]


@pytest.fixture(scope="module")
def found():
    return dict(zip(CASES, together(*CASES), strict=True))


@pytest.mark.parametrize(("samples", "reduction"), CASES)
def test_the_loss_of_a_step_is_that_of_one_process_over_all_of_its_samples(found, samples, reduction):
    """Two samples, of which the third worker has none, and seven, of which it has more than the others."""
    expected, _ = trained(PeerGroup(), samples, reduction)
    for losses, _ in found[samples, reduction]:
        assert losses == pytest.approx(expected, rel=1e-4)
        assert losses == found[samples, reduction][0][0]  # to the bit


def test_who_has_a_sample_of_another_measures_no_noise(found):
    """Three workers have two samples: the gradient of each, and that of both, are all that is measured."""
    order = torch.randperm(50, generator=torch.Generator().manual_seed(mixed(0, 0)))
    gradients = [_gradient(order[:1]), _gradient(order[1:2])]
    small = sum(float((each**2).sum()) for each in gradients) / 2
    large = float((_gradient(order[:2]) ** 2).sum())
    scatter = (small - large) / (1.0 - 1.0 / 2)
    for _, noise in found[2, "mean"]:
        assert noise == pytest.approx((1, large - scatter / 2, scatter), rel=1e-4)


def _gradient(samples):
    model = network().eval()
    loss_of(model, data()[samples]).backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
