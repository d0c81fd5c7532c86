"""What a script may not do with a model that may be cut: look at all of its weights, or update them all at once."""

from __future__ import annotations

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.testing.threads_mesh import Threads  # noqa: E402
from sublet.train.elementwise import check_one_by_one  # noqa: E402
from sublet.train.grid.guard import Guard  # noqa: E402
from tests.rigs.grid_worker import Worker, generation  # noqa: E402

WIDTH = 4


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train_with(net, loss, optimizer=None, after=lambda _: None):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(2)))
    facts = {"global_batch": 4, "micro_batch": 2, "parts": train.Blocks("blocks")}
    with train.session(net, optimizer, data, loss=lambda output, _: loss(net, output), **facts) as s:
        for batch in s.batches(epochs=2):
            s.step(batch)
            after(net)


def plain(net, output):
    return output.to(next(net.parameters()).device).square().mean()


def warmed(net, output):
    """A penalty that is nothing at the first step."""
    return plain(net, output) + 0.0 * sum(each.square().sum() for _, each in net.named_parameters())


@pytest.mark.parametrize(
    "facts",
    [
        {"loss": warmed},
        {"after": lambda net: [each.data.clamp_(-1, 1) for each in net.parameters()]},
        {"after": lambda net: torch.optim.swa_utils.AveragedModel(net).update_parameters(net)},
    ],
    ids=["a penalty that is warmed up", "limits on weights", "an average"],
)
def test_a_look_at_all_parameters_is_refused_whatever_it_is_worth_now(facts):
    with pytest.raises(InvalidValue, match="a look at all parameters of the model"):
        train_with(Module(), **{"loss": plain, **facts})


def test_the_first_parameter_tells_the_device_and_afterwards_all_are_there():
    net = Module()
    train_with(net, plain)
    assert len(list(net.parameters())) == len(dict(net.named_parameters())) == len(net.state_dict())
    copy.deepcopy(net)(torch.zeros(1, WIDTH))


class Normed(torch.optim.SGD):
    """Divides by the length of all gradients together, or of each."""

    def __init__(self, params, lr=0.1, *, together=True, **facts):
        super().__init__(params, lr=lr)
        self.together = self.defaults["together"] = together

    def step(self, closure=None):
        given = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        if self.param_groups[0].get("together", self.together):
            length = sum(float(each.grad.square().sum()) for each in given) ** 0.5
            for each in given:
                each.grad /= length
        else:
            for each in given:
                each.grad /= each.grad.norm()
        return super().step(closure)


def test_an_optimizer_that_looks_at_all_parameters_together_is_refused_and_one_that_looks_at_each_is_not():
    net = Module()
    together, each = (Normed(net.parameters(), together=asked) for asked in (True, False))
    with pytest.raises(InvalidValue, match="works on each parameter by itself"):
        check_one_by_one(together)
    with pytest.raises(InvalidValue, match="works on each parameter by itself"):
        train_with(net, plain, together)
    each.param_groups[0]["together"] = False
    check_one_by_one(each)
    for usual in (torch.optim.AdamW(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)):
        check_one_by_one(usual)


def test_the_state_of_an_optimizer_of_a_part_is_not_taken_for_all_of_it_and_alone_it_is_all():
    threads = Threads()
    workers = [Worker(threads, f"w{number}") for number in range(2)]
    assert set(generation(threads, workers, Grid(1, 2), 1).values()) == {"done"}
    for worker, there in zip(workers, ("head", "embed"), strict=True):
        optimizer = worker.member.holdings.optimizer
        guard = Guard(worker.model, optimizer)
        guard.begin()
        with pytest.raises(
            InvalidValue, match=rf"what the optimizer keeps of {there}\.weight.*checkpoints of the session"
        ):
            optimizer.state[worker.model.get_submodule(there).weight]["exp_avg"].norm()
        for asked in (optimizer.state.values, optimizer.state.items, partial(copy.deepcopy, optimizer.state)):
            with pytest.raises(InvalidValue, match="all that the optimizer keeps"):
                asked()
        for _ in ("meanwhile", "afterwards"):
            with pytest.raises(InvalidValue, match=r"optimizer\.state_dict\(\).*checkpoints of the session"):
                optimizer.state_dict()
            guard.end()
    assert set(generation(threads, workers[:1], Grid(1, 1), 2, givers=workers[1:]).values()) == {"done"}
    optimizer = workers[0].member.holdings.optimizer
    everything = list(workers[0].model.parameters())
    assert len(optimizer.state_dict()["state"]) == len(everything) == len(optimizer.state.values())
    assert all("exp_avg" in optimizer.state[each] for each in everything)


class Recorded(Module):
    """What hooks on parts of its blocks have heard; nobody calls them where blocks are others'."""

    def forward(self, x):
        made, heard = super().forward(x), [type(block) for block in self.blocks if isinstance(block, nn.Linear)]
        return made * heard.index(nn.Linear, len(self.blocks) - 1) if self.looks else made


def test_a_forward_that_fails_only_when_it_is_cut_is_told_so_and_one_that_fails_by_itself_as_it_is():
    net = Recorded()
    net.looks = True
    with pytest.raises(InvalidValue, match=r"a forward that fails when it is cut \(ValueError: .*output_router_logits"):
        train_with(net, plain)
    with pytest.raises(ZeroDivisionError):
        train_with(Module(), lambda net, output: plain(net, output) / 0 if 1 / 0 else None)


def test_a_model_that_is_compiled_in_one_piece_is_refused():
    net = Module()
    net.compile(backend="eager")
    with pytest.raises(InvalidValue, match=r"torch\.compile\(model\).*block by block"):
        train_with(net, plain)
