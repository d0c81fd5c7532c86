"""A unit's state is one piece of memory, and training does not notice."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.train.grid.holdings import ALIGN, LARGE_BYTES, Arena, blank, layout_of  # noqa: E402  # noqa: E402
from sublet.train.numerics.elementwise import kept_by  # noqa: E402


class MakesAnew(torch.optim.Optimizer):
    """Momentum whose tensor is another one after each step, as that of some optimizers is."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for each in self.param_groups[0]["params"]:
            self.state[each]["momentum"] = 0.9 * self.state[each].get("momentum", 0.0) + each.grad
            each.sub_(0.1 * self.state[each]["momentum"])


OPTIMIZERS = {
    "one that makes its moments anew": MakesAnew,
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "Adam, amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD, momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.2),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


def lies_in(arena, optimizer):
    """After a step, as whoever holds arenas has it."""
    layout = layout_of(arena.parameters, [kept_by(optimizer, 0)] * len(arena.parameters))
    return lambda: arena.adopt(optimizer, layout)


def a_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))


def train(model, optimizer, steps, *, after=lambda: None, first=0):
    for step in range(first, first + steps):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        torch.manual_seed(step)
        model(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()
        after()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_is_bitwise_what_it_would_have_been(make):
    plain, ours = a_model(), a_model()
    train(plain, make(plain.parameters()), 6)
    arena = Arena(list(ours.parameters()))
    optimizer = make(ours.parameters())
    train(ours, optimizer, 6, after=lies_in(arena, optimizer))
    for expected, found in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_one_message_carries_a_unit_to_another_worker(make):
    giver, taker = a_model(), a_model()
    arena, optimizer = Arena(list(giver.parameters())), make(giver.parameters())
    train(giver, optimizer, 3, after=lies_in(arena, optimizer))

    torch.nn.init.zeros_(taker[0].weight)  # it has been elsewhere
    others = make(taker.parameters())
    Arena(list(taker.parameters()), (arena.layout, arena.sent(optimizer).clone())).hand_to(others)
    train(giver, optimizer, 3, first=3)
    train(taker, others, 3, first=3)
    for expected, found in zip(giver.parameters(), taker.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_parameters_moments_and_gradients_are_views():
    model = a_model()
    arena, optimizer = Arena(list(model.parameters())), torch.optim.AdamW(model.parameters())
    arena.see_gradients()
    train(model, optimizer, 1, after=lies_in(arena, optimizer))
    memory = arena.memory.data_ptr(), arena.memory.data_ptr() + arena.memory.numel()
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"]):
            assert memory[0] <= tensor.data_ptr() < memory[1]
            assert tensor.data_ptr() % ALIGN == arena.memory.data_ptr() % ALIGN
        assert arena.gradients.data_ptr() <= parameter.grad.data_ptr()
    arena.memory.zero_()
    assert all(not parameter.any() for parameter in model.parameters())


def test_types_may_differ_within_a_unit():
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3, dtype=torch.bfloat16)), torch.nn.Parameter(torch.randn(2, 2))]
    before = [each.detach().clone() for each in parameters]
    arena = Arena(parameters)
    assert [each.dtype for each in parameters] == [torch.bfloat16, torch.float32]
    assert all(torch.equal(*each) for each in zip(before, parameters, strict=True))
    assert arena.memory.numel() == 2 * ALIGN


def test_what_takes_no_gradient_is_carried_and_has_none():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    arena = Arena([frozen], trained=[False])
    arena.see_gradients()
    assert frozen.grad is None
    assert frozen.tolist() == [1.0, 1.0]


def test_what_is_frozen_for_a_while_has_its_place_when_it_is_thawed():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    arena = Arena([frozen])
    arena.see_gradients()
    for thawed in (False, True):
        frozen.requires_grad_(thawed)
        frozen.grad = None
        arena.begin_step()
        if thawed:
            (3.0 * frozen).sum().backward()
        arena.tell_which_came()
        assert arena.without() == ([] if thawed else [frozen])
    assert arena.only_numbers()[0][:2].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("size_bytes", [0, 3, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES + 5])
def test_memory_is_blank_and_of_the_size_that_was_asked_for(size_bytes):
    memory = blank(size_bytes, torch.device("cpu"))
    assert (memory.numel(), memory.dtype, bool(memory.any())) == (size_bytes, torch.uint8, False)
    memory.fill_(7)
    assert size_bytes < LARGE_BYTES or memory.data_ptr() % LARGE_BYTES == 0


def test_memory_lives_as_long_as_what_is_seen_of_it():
    first = blank(LARGE_BYTES, torch.device("cpu"))[8:16].view(torch.float32)
    first.fill_(3.0)
    others = [blank(LARGE_BYTES, torch.device("cpu")).fill_(255) for _ in range(8)]
    assert (first.tolist(), len(others)) == ([3.0, 3.0], 8)


@pytest.mark.parametrize("types", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)], ids=str)
def test_which_gradients_came_is_a_part_of_their_sum(types):
    """Whoever keeps a unit has no more than that to go by."""
    giver, taker = ([torch.nn.Parameter(torch.ones(3, dtype=kind)) for kind in types] for _ in range(2))
    ours, kept = Arena(giver), Arena(taker)
    for arena in (ours, kept):
        arena.see_gradients()
        arena.begin_step()
    (giver[1] * 0.0).sum().backward()
    ours.tell_which_came()
    assert [each is giver[0] for each in ours.without()] == [True], "a gradient of zero is one"
    for here, there in zip(ours.sums(), kept.sums(), strict=True):
        there.copy_(here)
    assert [each is taker[0] for each in kept.without()] == [True]
    assert not any(each.any() for each in kept.only_numbers()), "and it counts in no norm"
    ours.begin_step()
    (giver[0].sum() + giver[1].sum()).backward()
    ours.tell_which_came()
    assert ours.without() == []
