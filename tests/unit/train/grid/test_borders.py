"""Ways of calling a block: what works is trained as in one piece, and what does not is refused in words."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.testing.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from sublet.train.following import Broken  # noqa: E402
from sublet.train.grid.atoms import Atom  # noqa: E402
from sublet.train.grid.borders import carried  # noqa: E402
from sublet.train.grid.pipeline import Pipeline  # noqa: E402
from sublet.train.grid.seat import Seat  # noqa: E402
from tests.rigs.cut_models import ALONE, IN_TWO, a_model, batch_of, learned, loss_of, proved, trained  # noqa: E402

BY_NAMES = {
    "the tensor first": lambda block, x, mask: block(x=x, mask=mask),
    "the mask first": lambda block, x, mask: block(mask=mask, x=x),
    "the tensor by its place": lambda block, x, mask: block(x, mask=mask),
}


def called(way, quirks=("dropout",), blocks=3):
    """A model whose blocks are called so."""
    model = a_model(blocks, quirks)

    def forward(ids):
        x, mask = model.embed(ids) + model.place, (ids != 3).float()[..., None]
        for block in model.blocks:
            x = way(block, x, mask)
        return model.head(model.norm(x))

    model.forward = forward
    return model


def assert_trained_alike(make):
    proved(make())
    whole, parts = trained(make, ALONE), trained(make, IN_TWO)
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


@pytest.mark.parametrize("way", BY_NAMES)
def test_blocks_may_be_called_by_names_in_any_order(way):
    assert_trained_alike(lambda: called(BY_NAMES[way]))


class MaskFirst(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.quirks = inner, ()

    def forward(self, mask, x):
        return self.inner(x, mask)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_block_whose_forward_names_the_mask_first_is_refused(by_name):
    model = called(lambda block, x, mask: block(mask=mask, x=x) if by_name else block(mask, x))
    for number, block in enumerate(model.blocks):
        model.blocks[number] = MaskFirst(block)
    with pytest.raises(InvalidValue, match="parts = "):
        proved(model)


def test_of_a_block_that_names_nothing_the_first_is_taken():
    class Any(nn.Module):
        def forward(self, **facts):
            return facts

    assert carried(Any(), (), {"b": 1, "a": 2}) == "b"
    assert carried(Any(), (1,), {"b": 1}) is None
    assert carried(Any(), (), {}) is None


@pytest.mark.filterwarnings("ignore")  # of torch: where nothing is trained, it says that nothing will be
def test_activations_may_be_computed_again_and_a_block_that_hides_what_it_takes_is_refused():
    assert_trained_alike(lambda: called(lambda block, x, mask: checkpoint(block, x, mask, use_reentrant=False)))
    with pytest.raises(InvalidValue, match=r"without gradients in a step.*use_reentrant=False"):
        proved(called(lambda block, x, mask: checkpoint(block, x, mask, use_reentrant=True)))


def test_several_blocks_may_be_computed_again_together():
    """The border is within them: what is before it is a shadow in the backward pass as well."""

    def all_of(model, x, mask):
        for block in model.blocks:
            x = block(x * 1.0, mask)
        return x

    def make():
        model = called(None)
        model.forward = lambda ids: model.head(
            model.norm(checkpoint(all_of, model, model.embed(ids), (ids != 3).float()[..., None], use_reentrant=False))
        )
        return model

    whole, parts = trained(make, ALONE), trained(make, IN_TWO)
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about its own looks at gradients
def test_blocks_may_be_compiled_in_one_graph():
    def make():
        model = called(lambda block, x, mask: block(x, mask))
        for block in model.blocks:
            block.compile(backend="eager", fullgraph=True)
        return model

    assert_trained_alike(make)


def test_who_evaluates_is_never_taken_for_one_who_trains():
    """A script that evaluates on one worker alone: the other waits, and is not given numbers of another pass."""
    threads = Threads()
    meshes, work = ThreadsMesh.all_of(threads, 2), (Atom(0, 2),)

    def pipeline(rank):
        model = a_model(2, ())
        cut, seat = learned(model), Seat.of(rank, IN_TWO, 2)
        cut.become(seat.parts[rank])
        return seat, Pipeline(cut, 5, torch.device("cpu"), lambda _: None), lambda atom: loss_of(model, batch_of(atom))

    def evaluates():
        seat, passes, of = pipeline(0)
        passes.judge(meshes[0], seat, 0, work, 2, of)
        meshes[0].hang_up()

    def trains():
        seat, passes, of = pipeline(1)
        passes.train(meshes[1], seat, 0, work, 2, of)

    outcomes = threads.run({"evaluates": evaluates, "trains": trains})
    assert outcomes["evaluates"] is None
    assert isinstance(outcomes["trains"], Broken), outcomes["trains"]
