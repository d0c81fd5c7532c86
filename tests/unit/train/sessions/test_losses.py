"""`loss=`: the session calls the model, and computes the loss of each micro-batch itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.sessions.options import model_input  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402


def mse(output, batch):
    return nn.functional.mse_loss(output, batch[1])


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_a_session_that_is_given_the_loss_trains_as_one_whose_script_computes_it(micro_batch):
    options = {"global_batch": 16, "steps": 6, "micro_batch": micro_batch}
    theirs, ours = network(), network()
    torch.manual_seed(1)
    with train.session(theirs, adam(theirs), data(), **options) as s:
        for batch in s:
            expected = s.step(loss_of(theirs, batch))
    torch.manual_seed(1)
    with train.session(ours, adam(ours), data(), loss=mse, **options) as s:
        for batch in s:
            found = s.step(batch)
    assert torch.equal(flat(ours), flat(theirs))
    assert found == expected == s.loss


def test_a_loss_that_is_counted_returns_the_sum_and_what_it_is_over():
    options = {"global_batch": 16, "steps": 6, "micro_batch": 5}
    counted, mean = network().eval(), network().eval()
    with train.session(counted, adam(counted), data(), loss=pair, reduction="counted", **options) as s:
        for batch in s:
            s.step(batch)
    with train.session(mean, adam(mean), data(), loss=mse, **options) as s:
        for batch in s:
            s.step(batch)
    torch.testing.assert_close(flat(counted), flat(mean), rtol=1e-4, atol=1e-5)


def pair(output, batch):
    return ((output - batch[1]) ** 2).sum(), batch[1].numel()


@pytest.mark.parametrize(("returns", "given"), [(mse, {}), (pair, {"counted": 16})])
def test_a_counted_loss_without_its_count_or_with_two_is_refused(returns, given):
    model = network()
    options = {"global_batch": 16, "steps": 1, "loss": returns, "reduction": "counted"}

    def run():
        with train.session(model, adam(model), data(), **options) as s:
            for batch in s:
                s.step(batch, **given)

    with pytest.raises(InvalidValue, match="pair"):
        run()


def test_a_model_is_called_with_the_first_of_a_tuple_or_with_the_batch_itself():
    x, y = torch.zeros(2), torch.ones(2)
    assert model_input((x, y)) is x
    assert model_input([x, y]) is x
    assert model_input(x) is x
    mapping = {"x": x, "y": y}
    assert model_input(mapping) is mapping


def test_something_that_is_no_function_is_no_loss():
    with pytest.raises(InvalidValue, match="a function of the output and the batch"):
        train.session(network(), None, data(), global_batch=16, loss=3)
