"""A forward in which something goes past the blocks is refused before anything is trained; any other is not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.awaited import awaited  # noqa: E402
from sublet.train.grid.cutting import Cut  # noqa: E402
from sublet.train.grid.probing import check_flow  # noqa: E402

WIDTH = 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x, *more, add=0.0):
        self.calls += 1  # of a cache, nobody asks
        return x + torch.tanh(self.up(x)) + add


class Counts(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class Replaces(Counts):
    """Another one in place of it, which nobody has written to."""

    def forward(self, x):
        self.seen = self.seen + 1
        return Block.forward(self, x)


class CountsLate(Counts):
    def forward(self, x):
        if self.calls > 2:
            self.seen += 1
        return Block.forward(self, x)


class Pairs(Block):
    def forward(self, x):
        return super().forward(x), x.square().mean()


class Net(nn.Module):
    """`through` is the forward, from the first module to the last."""

    def __init__(self, through, block=Block):
        super().__init__()
        self.first, self.last = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks, self.through = nn.ModuleList(block() for _ in range(3)), through

    def forward(self, x):
        return self.through(self, self.first(x), x)


def plain(net, x, _batch):
    for block in net.blocks:
        x = block(x)
    return net.last(x)


def by_facts_of_the_batch(net, x, batch):
    for number, block in enumerate(net.blocks):
        x = block(x, "a word", object(), {"number": number}, add=batch.mean())
    return net.last(x)


def with_what_nobody_uses(net, x, _batch):
    for block in net.blocks:
        x, _ = block(x)
    return net.last(x)


def computed_again(net, x, _batch):
    for block in net.blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    return net.last(x)


def added_outside(net, x, _batch):
    for block in net.blocks:
        x = x + block(x)
    return net.last(x)


def with_the_embedding(net, x, _batch):
    first = x
    for block in net.blocks:
        x = block(x, add=first)
    return net.last(x)


def with_the_embedding_at_the_end(net, x, batch):
    return net.last(plain_blocks(net, x) + x)


def plain_blocks(net, x):
    for block in net.blocks:
        x = block(x)
    return x


def with_the_last_but_one(net, x, _batch):
    before = net.blocks[1](net.blocks[0](x))
    return net.last(net.blocks[2](before) + before)


def transposed_between(net, x, _batch):
    for block in net.blocks:
        x = block(x[:, None].expand(4, WIDTH, WIDTH).contiguous() if x.dim() == 2 else x.transpose(1, 2))
    return net.last(x.mean(1))


def detached_between(net, x, _batch):
    return net.last(net.blocks[2](net.blocks[1](net.blocks[0](x)).detach()))


def written_in_place_between(net, x, batch):
    for block in net.blocks:
        x = block(x)
        x += batch.mean()
    return net.last(x)


def with_a_term_of_each(net, x, _batch):
    terms = 0.0
    for block in net.blocks:
        x, term = block(x)
        terms = terms + term
    return net.last(x) + terms


class Both(Block):
    def forward(self, both):
        return super().forward(both[0]), both[1]


def in_a_tuple(net, x, _batch):
    both = x, x
    for block in net.blocks:
        both = block(both)
    return net.last(both[0])


def twice(net, x, _batch):
    return net.last(plain_blocks(net, x) + plain_blocks(net, -x))


def without_one(net, x, _batch):
    return net.last(net.blocks[2](net.blocks[0](x)))


def without_the_last(net, x, _batch):
    return net.last(net.blocks[1](net.blocks[0](x)))


def flow_of(net):
    cut = Cut(net, "blocks")
    call = lambda: functional.mse_loss(net(torch.ones(4, 3)), torch.ones(4, 1))  # noqa: E731 - said once
    cut.learn(call)
    check_flow(cut, call)


@pytest.mark.parametrize(
    ("through", "block"),
    [(plain, Block), (by_facts_of_the_batch, Block), (with_what_nobody_uses, Pairs), (computed_again, Block)],
)
def test_what_goes_from_block_to_block_may_be_cut(through, block):
    net = Net(through, block)
    before = {name: each.clone() for name, each in net.state_dict().items()}
    flow_of(net)
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())
    assert [type(each) for each in net.blocks] == [block] * 3


@pytest.mark.parametrize(
    ("through", "block", "match"),
    [
        (added_outside, Block, r"block 1 that gets something else than block 0 gives.*into the blocks"),
        (with_the_embedding, Block, r"block 0 that also gets what another part"),
        (with_the_embedding_at_the_end, Block, r"a loss that takes more than the last block gives"),
        (with_the_last_but_one, Block, r"a loss that takes more than the last block gives"),
        (transposed_between, Block, r"block 1 that gets something else than block 0 gives.*into the blocks"),
        (detached_between, Block, r"block 2 that gets something else than block 1 gives.*into the blocks"),
        (written_in_place_between, Block, r"block 1 that gets something else than block 0 gives.*into the blocks"),
        (with_a_term_of_each, Pairs, r"a loss that takes more than the last block gives"),
        (in_a_tuple, Both, r"block 0 that gets no tensor first"),
        (twice, Block, r"block 0 after block 2"),
        (without_one, Block, r"block 2 after block 0"),
        (without_the_last, Block, r"2 of 3 blocks run"),
    ],
)
def test_what_goes_past_the_blocks_is_refused(through, block, match):
    with pytest.raises(InvalidValue, match=match):
        flow_of(Net(through, block))


def test_a_loss_that_is_no_number_without_a_forward_is_the_scripts_own():
    flow_of(Net(lambda net, x, _: torch.log(-plain(net, x, None).abs() - 1.0)))


def in_parts(net, optimizer=None, parts=None):
    data = TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
    optimizer, parts = optimizer or torch.optim.SGD(net.parameters(), lr=0.1), parts or train.Blocks("blocks")
    facts = {"loss": lambda output, batch: functional.mse_loss(output, batch[1]), "parts": parts}
    with train.session(net, optimizer, data, global_batch=4, micro_batch=2, **facts) as s:
        for batch in s.batches(epochs=1):
            s.step(batch)


def test_a_session_looks_at_its_first_step():
    with pytest.raises(InvalidValue, match="into the blocks"):
        in_parts(Net(added_outside))
    in_parts(Net(plain))


@pytest.mark.parametrize("block", [Counts, Replaces, CountsLate])
def test_a_buffer_that_a_forward_changes_is_refused_unless_it_is_a_cache(block):
    with pytest.raises(InvalidValue, match=r"blocks\.0\.seen.*persistent=False"):
        in_parts(Net(plain, block))


def test_what_a_session_of_parts_cannot_take_is_refused_when_it_is_made():
    net = Net(plain)
    one, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (net.first, net.last))
    for given, match in (
        ((net, {"a": one, "b": other}), r"2 by name.*parameter groups"),
        ((net, [one, other]), "a list of 2"),
        (({"a": net, "b": net}, one), "2 by name"),
        ((net, one, ["blocks"]), r"train\.Blocks"),
        ((nn.DataParallel(net), one), "the module that it wraps"),
    ):
        with pytest.raises(InvalidValue, match=match):
            in_parts(*given)


def test_who_waits_for_the_others_is_told_once_that_it_may_be_for_ever(capfd):
    with awaited("all of them call it", after_s=60.0):
        pass
    said = ""
    with awaited("rank 0 alone", after_s=0.0):
        while not said.endswith("\n"):
            said += capfd.readouterr().err
    assert said == "sublet: rank 0 alone\n"
