"""What stands in place of modules is what it stands for, for scripts that set, apply and list between two steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.seat import parts_of  # noqa: E402
from tests.rigs.cut_models import ALONE, IN_TWO, a_model, learned, trained  # noqa: E402

STEPS = 4


class Scaled(nn.Module):
    """Its attributes have names that a stand-in might have too."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale, self.seen, self.keep = inner, 1.0, 0, 1.0

    def forward(self, x):
        return x + self.scale * self.keep * (self.inner(x) - x)


class Head(nn.Linear):
    heat = 1.0

    def forward(self, x):
        return super().forward(x) * self.heat


def scaled(blocks=4):
    model = a_model(blocks, ("dropout",))
    for number, block in enumerate(model.blocks):
        model.blocks[number] = Scaled(block)
    model.head = Head(model.head.in_features, model.head.out_features, bias=False)
    return model


def a_schedule(model, step):
    for number, block in enumerate(model.blocks):
        block.scale, block.keep = 1.0 - 0.2 * step, 0.9**number
        block.seen += 1
        assert block.seen == step + 1
    model.head.heat = 1.0 + step


def set_once(model, step):
    if step == 1:
        a_schedule(model, 0)
        for block in model.blocks:
            block.train(False)
            assert not block.training
            block.inner.training = True
            block.note = "once"
    if step == 2:
        for block in model.blocks:
            assert block.note == "once"
            del block.note
            assert not hasattr(block, "note")


def dropout_off(model, step):
    def off(module):
        if isinstance(module, nn.Dropout):
            module.p = 0.0

    if step == 2:
        assert model.apply(off) is model


def by_children(model, step):
    def leaves(module):
        within = list(module.children())
        return [leaf for each in within for leaf in leaves(each)] if within else [module]

    if step == 1:
        dropouts = [each for each in leaves(model) if isinstance(each, nn.Dropout)]
        assert len(dropouts) == len(model.blocks) + 1
        for each in dropouts:
            each.p = 0.4


def by_class(model, step):
    found = [block for block in model.blocks if isinstance(block, Scaled)]
    assert len(found) == len(model.blocks)
    assert not any(isinstance(block, Head) for block in found)
    for block in found:
        block.scale = 1.0 - 0.1 * step


def hooked(model, step):
    if step == 1:
        for block in model.blocks:
            model.handles = [*getattr(model, "handles", ()), block.register_forward_hook(lambda *made: 0.5 * made[-1])]
    if step == 3:
        for handle in model.handles:
            handle.remove()


@pytest.mark.parametrize("grid", [IN_TWO, Grid(1, 4)], ids=str)
@pytest.mark.parametrize("script", [a_schedule, set_once, dropout_off, by_children, by_class, hooked])
def test_what_a_script_changes_in_modules_between_steps_is_changed_in_parts_as_in_one_piece(script, grid):
    whole, parts = (trained(scaled, each, STEPS, before=script) for each in (ALONE, grid))
    untouched = trained(scaled, ALONE, STEPS)
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())
    assert not all(torch.equal(weight, untouched[name]) for name, weight in whole.items()), "it does something"


def test_a_limit_on_weights_by_apply_is_refused():
    def limit(module):
        if isinstance(module, nn.Linear):
            module.weight.data.clamp_(-0.01, 0.01)

    with pytest.raises(InvalidValue, match=r"the numbers of blocks\.\d\.inner\.up\.weight, for clamp_"):
        trained(scaled, IN_TWO, before=lambda model, _: model.apply(limit))


def test_what_stands_in_trains_as_the_other_says():
    """`train` of a block may leave some of it frozen."""
    model = a_model(3, ("dropout",))
    for block in model.blocks:
        block.train = lambda mode=True, block=block: nn.Module.train(block, False)
    cut = learned(model)
    for part in parts_of(3, 3):
        cut.become(part)
        model.train()
        assert model.training
        assert not any(block.training or block.drop.training for block in model.blocks)
