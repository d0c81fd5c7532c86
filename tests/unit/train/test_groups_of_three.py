"""What three workers of a group measure and compare at a step: noise of the samples that count, and their dice."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.train.samples import mixed  # noqa: E402
from tests.rigs.group_of_three import together  # noqa: E402
from tests.rigs.little_network import data, loss_of, network  # noqa: E402

CASES = ((2, "nobody"), (6, "all"), (6, "rank 0"), (7, "samples"), (6, "samples"))


@pytest.fixture(scope="module")
def found():
    return dict(zip(CASES, together(*CASES), strict=True))


def test_who_has_a_sample_of_another_measures_no_noise(found):
    """Three workers have two samples: the gradient of each, and that of both, are all that is measured."""
    order = torch.randperm(50, generator=torch.Generator().manual_seed(mixed(0, 0)))
    gradients = [_gradient(order[:1]), _gradient(order[1:2])]
    small = sum(float((each**2).sum()) for each in gradients) / 2
    large = float((_gradient(order[:2]) ** 2).sum())
    scatter = (small - large) / (1.0 - 1.0 / 2)
    for each in found[2, "nobody"]:
        assert each["noise"] == pytest.approx((1, large - scatter / 2, scatter), rel=1e-4)


def _gradient(samples):
    model = network().eval()
    loss_of(model, data()[samples]).backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


def test_dice_that_differ_are_thrown_alike_and_rank_0_says_so_once(found):
    for case in ((6, "rank 0"), (7, "samples")):
        said = [each["said"] for each in found[case]]
        assert said[0].count("the dice of Python or numpy differ between workers") == 1, case
        assert said[1:] == ["", ""]
    first, *others = found[6, "rank 0"]
    assert first["dice"] != others[0]["dice"] == others[1]["dice"]  # it drew once more since


def test_nothing_is_said_where_all_draw_equally_often(found):
    for case in ((2, "nobody"), (6, "all"), (6, "samples")):
        assert {each["said"] for each in found[case]} == {""}
        assert len({each["dice"] for each in found[case]}) == 1
