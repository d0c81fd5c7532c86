"""Models that know nothing of parts are cut, and every gradient is bitwise that of the whole (oracle E4)."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.absent import Absent  # noqa: E402
from sublet.train.grid.cutting import Cut, Part, holders  # noqa: E402

WIDTH, VOCAB, LENGTH = 12, 17, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.ln(x))))


class Gpt(nn.Module):
    """As nanoGPT: a dictionary of modules, tied weights, the loss within."""

    def __init__(self, *, tied=True):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "h": nn.ModuleList(Block() for _ in range(4)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.transformer.wte.weight = self.head.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        logits = self.head(self.transformer.ln_f(x))
        return functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))


class MaskedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states, *, mask, turn):
        q, k, v = (self.qkv(hidden_states) * turn).chunk(3, dim=-1)
        weights = (q @ k.transpose(1, 2) / WIDTH**0.5).masked_fill(mask, -1e9).softmax(-1)
        return hidden_states + self.out(weights @ v), weights


class Llama(nn.Module):
    """Masks and rotations made in the forward, blocks called by name, tuples given back, a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.layers = nn.ModuleList(MaskedBlock() for _ in range(5))
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        turn = torch.cos(torch.arange(ids.shape[1]))[:, None]
        x, seen = self.embed_tokens(ids) * self.scale, []
        for layer in self.layers:
            x, weights = layer(hidden_states=x, mask=mask, turn=turn)
            seen.append(weights)
        assert len(seen) == len(self.layers)
        return functional.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), ids.flatten())


class ByHand(Gpt):
    """The words' table is read once more at the end, by no module."""

    def __init__(self):
        super().__init__(tied=False)
        del self.head

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        logits = self.transformer.ln_f(x) @ self.transformer.wte.weight.T
        return functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))


def shared(*, modules):
    """As ALBERT: blocks that are one, or that share one weight."""
    model = Gpt(tied=False)
    if modules:
        model.transformer.h = nn.ModuleList([model.transformer.h[0]] * 3 + [Block()])
    else:
        model.transformer.h[3].up.weight = model.transformer.h[1].up.weight
    return model


MODELS = {
    "tied by hand": (ByHand, "transformer.h"),
    "tied": (Gpt, "transformer.h"),
    "untied": (lambda: Gpt(tied=False), "transformer.h"),
    "masked": (Llama, "layers"),
    "blocks that share a weight": (lambda: shared(modules=False), "transformer.h"),
}


def parts_of(blocks, count):
    borders = [number * blocks // count for number in range(count + 1)]
    return [Part(borders[at], borders[at + 1], first=at == 0, last=at == count - 1) for at in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("make", "name"), MODELS.values(), ids=MODELS)
def test_loss_and_all_gradients_are_bitwise_those_of_the_whole(make, name, count):
    torch.manual_seed(1)
    whole, ids = make(), torch.randint(0, VOCAB, (3, LENGTH))
    models = [copy.deepcopy(whole) for _ in range(count)]
    loss = whole(ids)
    loss.backward()

    cuts = [Cut(model, name) for model in models]
    parts = parts_of(len(cuts[0].blocks), count)
    received, passed = None, []
    for cut, part in zip(cuts, parts, strict=True):
        cut.learn(lambda cut=cut: cut.model(ids))
        cut.become(part)
        end = cut.run(lambda cut=cut: cut.model(ids), received)
        passed.append((received, end.value))
        received = None if end.last else end.value.detach().requires_grad_()
    assert end.last
    assert torch.equal(end.value, loss)

    gradient = None
    for came, out in reversed(passed):
        out.backward(gradient)
        gradient = None if came is None else came.grad
    for cut in cuts:
        cut.restore()
    names = dict(whole.named_parameters())
    told = [name for unit in cuts[0].units for name in unit.names]
    assert sorted(told) == sorted(names)
    for unit in cuts[0].units:
        for each in unit.names:
            found = [dict(cuts[at].model.named_parameters())[each].grad for at in holders(unit, parts)]
            found = [gradient for gradient in found if gradient is not None]
            assert torch.equal(sum(found), names[each].grad), each


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_block_that_runs_in_several_places_is_with_all_of_them(count):
    """Three terms are added in another order then: within rounding."""
    torch.manual_seed(1)
    whole = shared(modules=True).double()
    cut, parts = Cut(whole, "transformer.h"), parts_of(4, count)
    cut.learn(lambda: whole(torch.zeros((2, LENGTH), dtype=torch.long)))
    [unit] = [unit for unit in cut.units if "transformer.h.0.up.weight" in unit.names]
    assert holders(unit, parts) == tuple(range(count))


def test_others_hold_nothing_of_a_unit():
    model = Gpt(tied=False)
    cut = Cut(model, "transformer.h")
    ids = torch.zeros((2, LENGTH), dtype=torch.long)
    cut.learn(lambda: model(ids))
    cut.become(Part(1, 2, first=False, last=False))
    ours = {name for name, each in model.named_parameters() if not isinstance(each, Absent)}
    assert ours == {f"transformer.h.1.{name}" for name, _ in model.transformer.h[1].named_parameters()}
    assert [*model.state_dict()] == [*Gpt(tied=False).state_dict()]
    with cut.whole():
        assert len(list(model.parameters())) == len(list(Gpt(tied=False).parameters()))
    cut.restore()
    assert not any(isinstance(each, Absent) for each in model.parameters())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Gpt(tied=False).named_parameters()]


@pytest.mark.parametrize("make", [Gpt, ByHand])
def test_units_name_each_parameter_once_and_say_who_holds_it(make):
    cut = Cut(model := make(), "transformer.h")
    cut.learn(lambda: model(torch.zeros((2, LENGTH), dtype=torch.long)))
    assert [unit.kind for unit in cut.units] == ["before", "0", "1", "2", "3", "after", "tied"]
    parts = parts_of(4, 3)
    assert [holders(unit, parts) for unit in cut.units] == [(0,), (0,), (1,), (2,), (2,), (2,), (0, 2)]
    assert all(holders(unit, parts_of(4, 1)) == (0,) for unit in cut.units)


def test_learning_computes_nothing_and_leaves_the_model_as_it_was():
    model = Gpt()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    dice = torch.get_rng_state()
    Cut(model, "transformer.h").learn(lambda: model(torch.zeros((2, LENGTH), dtype=torch.long)))
    assert torch.equal(torch.get_rng_state(), dice)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_name_that_is_no_list_is_refused_and_those_that_are_lists_are_named():
    with pytest.raises(InvalidValue, match=r"transformer\.h"):
        Cut(Gpt(), "transformer.blocks")
    with pytest.raises(InvalidValue, match="ModuleList"):
        Cut(Gpt(), "head")


def test_a_part_that_is_called_twice_in_one_pass_says_so():
    model = Gpt()
    cut = Cut(model, "transformer.h")
    ids = torch.zeros((2, LENGTH), dtype=torch.long)
    cut.learn(lambda: model(ids))
    cut.become(Part(2, 4, first=False, last=True))
    with pytest.raises(InvalidValue, match="call the model once"):
        cut.run(lambda: model(ids) + model(ids), torch.zeros(2, LENGTH, WIDTH))


class LeavesOut(Gpt):
    def forward(self, ids):
        x = self.transformer.wte(ids)
        for number, block in enumerate(self.transformer.h):
            x = x if number == getattr(self, "left_out", None) else block(x)
        return self.head(self.transformer.ln_f(x)).mean()


@pytest.mark.parametrize("part", [Part(0, 2, first=True, last=False), Part(2, 4, first=False, last=True)])
def test_a_border_that_a_forward_does_not_come_by_is_told_whenever_that_is(part):
    """At the first step all ran."""
    model, ids = LeavesOut(tied=False), torch.zeros((2, LENGTH), dtype=torch.long)
    cut, came = Cut(model, "transformer.h"), None if part.first else torch.zeros(2, LENGTH, WIDTH)
    cut.learn(lambda: model(ids))
    cut.become(part)
    cut.run(lambda: model(ids), came)
    model.left_out = 2
    with pytest.raises(InvalidValue, match=r"block 2 that is left out of a forward.*LayerDrop"):
        cut.run(lambda: model(ids), came)


class WrittenInto(Gpt):
    def forward(self, ids):
        x = self.transformer.wte(ids)
        x += 1.0
        for block in self.transformer.h:
            x = block(x)
            if self.between:
                x *= 2.0
        return self.head(self.transformer.ln_f(x)).mean()


@pytest.mark.parametrize("between", [False, True])
def test_blocks_of_others_take_memory_only_where_what_they_give_is_written_into(between):
    model, ids, seen = WrittenInto(tied=False), torch.zeros((2, LENGTH), dtype=torch.long), []
    model.between = between
    cut = Cut(model, "transformer.h")
    cut.learn(lambda: model(ids))
    cut.become(Part(1, 4, first=False, last=True))
    stands_in = model.transformer.h[1]
    nn.Module.register_forward_pre_hook(stands_in, lambda _, args: seen.append(args[0]))  # on itself
    cut.run(lambda: model(ids), torch.zeros(2, LENGTH, WIDTH))
    assert (seen[0].untyped_storage().nbytes() > seen[0].element_size()) == between
