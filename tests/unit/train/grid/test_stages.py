"""A model as a sequence of stages: what of it lies together, and which part has what."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.stages import Staged, Stages, Unit, holders, is_staged, parts_of  # noqa: E402
from sublet_lab.grid.model import a_net  # noqa: E402


def net(blocks=3):
    return train.Stages(nn.Linear(2, 4), [nn.Linear(4, 4) for _ in range(blocks)], nn.Linear(4, 1))


def test_stages_are_a_module_that_calls_one_after_the_other():
    model, x = net(), torch.randn(5, 2)
    whole = nn.Sequential(model.first, *model.blocks, model.last)
    assert torch.equal(model(x), whole(x))
    assert isinstance(model, Stages)
    assert {name.split(".")[0] for name in model.state_dict()} == {"first", "blocks", "last"}


@given(st.integers(1, 6), st.data())
def test_parts_one_after_the_other_run_each_stage_once_in_order(blocks, data):
    model = net(blocks)
    staged, parts = Staged(model), parts_of(blocks, data.draw(st.integers(1, blocks)))
    ran = [number for part in parts for number, _ in staged.of(part)]
    assert ran == list(range(-1, blocks + 1))
    x = given = torch.randn(3, 2)
    for part in parts:
        for _, stage in staged.of(part):
            x = stage(x)
    assert torch.equal(x, model(given))


@given(st.integers(2, 5), st.integers(1, 5), st.booleans())
def test_each_parameter_is_in_one_unit_and_each_unit_with_those_who_run_one_of_its_stages(blocks, parts, tied):
    model = a_net(tied=tied) if tied else net(blocks)
    staged = Staged(model)
    names = [name for unit in staged.units for name in unit.names]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    cut = parts_of(len(staged.blocks), min(parts, len(staged.blocks)))
    for unit in staged.units:
        weights = {id(model.get_parameter(name)) for name in unit.names}
        uses = [any(id(each) in weights for _, stage in staged.of(part) for each in stage.parameters()) for part in cut]
        assert holders(unit, cut) == tuple(number for number, used in enumerate(uses) if used)


def test_units_are_of_one_stage_each_and_what_several_share_comes_behind():
    model = a_net(tied=True)
    assert [unit.stages for unit in Staged(model).units] == [(0,), (1,), (2,), (3,), (4,), (-1, 4)]
    assert Staged(model).units[-1].names == ("first.weight",)
    shared = nn.Linear(3, 3)
    sequence = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(3, 1))
    assert Staged(sequence).units == (Unit((3,), ("3.weight", "3.bias")), Unit((0, 2), ("0.weight", "0.bias")))


def test_only_a_sequence_that_runs_as_one_is_in_stages():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    class Named(Stages):
        def __init__(self):
            super().__init__(nn.Identity(), [nn.Linear(2, 2)], nn.Identity())

    assert all(map(is_staged, (net(), Named(), nn.Sequential(nn.Linear(2, 2)))))
    others = (Own(nn.Linear(2, 2)), nn.Linear(2, 2), nn.Sequential(), net(0), {"one": net()}, None)
    assert not any(map(is_staged, others))


def test_what_is_no_sequence_has_no_stages():
    with pytest.raises(InvalidValue, match=r"train\.Stages"):
        Staged(nn.Linear(2, 2))


def test_a_weight_of_no_stage_is_refused():
    model = net()
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(InvalidValue, match="scale"):
        Staged(model)


def test_train_has_no_other_names_that_come_late():
    with pytest.raises(AttributeError, match="Sages"):
        _ = train.Sages
