"""Gradients have the memory format of their parameters, so that backward adds them up as they are."""

from __future__ import annotations

import warnings

import torch

from sublet.train.numerics.gradients import Gradients


def test_gradients_of_a_network_in_channels_last_are_added_up_in_that_format():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 3)).to(
        memory_format=torch.channels_last
    )
    batch = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    model(batch).square().mean().backward()
    alone = [parameter.grad.clone() for parameter in model.parameters()]
    gradients = Gradients(model.parameters())
    gradients.attach()
    gradients.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a gradient in another format than its parameter's
        model(batch).square().mean().backward()
    for parameter, expected in zip(model.parameters(), alone, strict=True):
        assert parameter.grad.stride() == parameter.stride()
        assert torch.equal(parameter.grad, expected)
    weight = model[0].weight.grad
    assert weight.untyped_storage().data_ptr() == gradients.tensors[0].untyped_storage().data_ptr()
