"""A model that `fully_shard` has cut, in a loop of its own: any number of ranks goes on with the bits of any other."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import BadInput, DamagedCheckpoint, InvalidValue  # noqa: E402
from sublet.train.checkpoint.checkpoints import newest  # noqa: E402
from sublet.train.checkpoint.disk import DiskFolder  # noqa: E402
from sublet.train.checkpoint.manifest import Manifest, NamedFile, write_contents  # noqa: E402
from sublet.train.sharded.dcp import metadata_in  # noqa: E402
from sublet.wire.rehearsal import REHEARSAL, Cue  # noqa: E402
from tests.rigs.mlp_in_shards import (  # noqa: E402
    a_model,
    alone,
    an_optimizer,
    cut,
    lived,
    lived_in_a_bucket,
    opened,
    state_of,
    step_of,
)
from tests.rigs.ranks import in_group  # noqa: E402


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_one_two_four_and_two_ranks_go_on_with_the_bits_of_those_before(kind, tmp_path):
    losses, left = {}, None
    for world, until in ((1, 3), (2, 9), (4, 14), (2, 20)):  # the first before a layer has its first gradient
        found = in_group(world, lived, tmp_path, until, kind)
        began, made, at_first, at_last, _ = found[0]
        assert [code for *_, code in found] == [train.EXIT_LEFT] * world
        assert [sorted(each) for _, each, *_ in found] == [sorted(made)] * world
        assert left is None or equal(at_first, left)
        left, losses = at_last, losses | made
        assert newest(tmp_path).step == until == began + len(made)
    expected, state = alone(20, kind)
    assert [losses[step] for step in range(20)] == pytest.approx(expected, rel=1e-9)
    assert left.keys() == state.keys()
    for name, each in state.items():
        np.testing.assert_allclose(left[name], each, rtol=1e-7, atol=1e-12)


def test_a_bucket_has_the_parts_of_all_ranks_under_one_commit():
    pytest.importorskip("moto")
    from tests.rigs.moto_bucket import a_bucket, environment, newest_in

    uri = a_bucket("in-shards")
    *_, left, code = in_group(2, lived_in_a_bucket, uri, environment(), 3)[0]
    began, _, at_first, *_ = in_group(1, lived_in_a_bucket, uri, environment(), 4)[0]
    assert (began, code) == (3, train.EXIT_LEFT)
    assert equal(at_first, left)
    assert newest_in(uri).step == 4


def read_by_torch(_, folder):
    """As torch's documentation has it."""
    model = cut(a_model())
    optimizer = an_optimizer(model)
    weights, moments = get_state_dict(model, optimizer)
    known = set(state_of(model, optimizer))
    state = {"model": weights, "optimizer": moments}
    load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return known, state_of(model, optimizer), optimizer.param_groups[0]["lr"]


def test_torch_s_own_functions_load_what_was_saved(tmp_path):
    *_, left, _ = in_group(2, lived, tmp_path, 12)[0]
    (known, found, rate), _ = in_group(2, read_by_torch, newest(tmp_path).path)
    assert known == left.keys()
    assert equal(found, left)
    assert rate == 0.01 * 0.9


def cut_off(rank, directory, how):
    """A checkpoint of step 2 that is committed, and one of step 4 that is not; what comes next is that of step 2."""
    ck, *parts = opened(directory)
    ck._saver.is_due = lambda *_, **__: ck._progress.steps in (2, 4)
    for step in range(ck.resume(), 5):
        step_of(*parts, step)
        if how == "a folder that not all see" and step == 3 and rank:
            ck._saver.store.share_staging = lambda *_: DiskFolder(directory / "elsewhere")
        ck.tick(step + 1)
        if step == 3 and how == "an end":
            return ck._together.under_way
        if step in (1, 3):
            ck._together._files.exception()  # waits
        ck._saver.settle()
    return str(ck._saver._failure)


@pytest.mark.parametrize("how", ["an end", "a folder that not all see"])
def test_a_checkpoint_that_not_all_have_written_is_none(how, tmp_path):
    found = in_group(2, cut_off, tmp_path, how)
    assert newest(tmp_path).step == 2
    if how == "an end":
        assert found == [True, True]
    else:
        assert "rank 1: " in found[0]
        assert "a place that all nodes see" in found[0]
    assert in_group(2, lived, tmp_path, 5)[0][0] == 2
    assert newest(tmp_path).step == 5


def test_ranks_go_back_to_the_checkpoint_before_a_damaged_one(tmp_path):
    *_, left, _ = in_group(2, lived, tmp_path, 3)[0]
    in_group(2, lived, tmp_path, 5)
    shard = newest(tmp_path).path / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    began, _, at_first, *_ = in_group(2, lived, tmp_path, 7)[0]
    assert began == 3
    assert equal(at_first, left)


class Runs:
    def __reduce__(self):
        return print, ("this is run",)


def test_metadata_that_names_anything_but_descriptions_is_refused_before_it_runs(tmp_path, capsys):
    folder = DiskFolder(tmp_path)
    for number, what in enumerate((Runs(), {"a": 1}, torch.float32)):
        content = memoryview(pickle.dumps(what))
        (tmp_path / ".metadata").unlink(missing_ok=True)
        files = write_contents(folder, {".metadata": content})
        manifest = Manifest(step=number, generation=0, writer="w", meta={}, files=tuple(files))
        with pytest.raises(DamagedCheckpoint, match=r"\.metadata"):
            metadata_in(folder, manifest)
    assert capsys.readouterr().out == ""
    with pytest.raises(DamagedCheckpoint, match="not in the manifest"):
        metadata_in(folder, Manifest(step=1, generation=0, writer="w", meta={}, files=()))
    with pytest.raises(InvalidValue, match="a file of DCP"):
        NamedFile(name="../__0_0.distcp", size=1, sha256="")


def refused(_, directory):
    """What is said, of each that cannot be."""
    words = []

    def said(kind, work):
        try:
            work()
        except kind as error:
            words.append(str(error))
        else:
            words.append("")

    model, other = cut(a_model()), cut(a_model())
    said(InvalidValue, lambda: train.checkpointed(model=model, optimizer=an_optimizer(other)))
    said(InvalidValue, lambda: train.checkpointed(model=model).keep(weights=model["in"].weight))
    ck = train.checkpointed(model=model)
    ck.keep(best=1.0)  # of a model whose storages cannot be asked for
    smaller = cut(nn.ModuleDict({"in": nn.Linear(6, 13)}).double())
    wider = a_model()
    wider["in"] = nn.Linear(6, 26).double()
    for each in (smaller, cut(wider)):
        parts = {"model": each, "optimizer": an_optimizer(each), "scheduler": torch.nn.Linear(1, 1)}
        said(BadInput, train.checkpointed(directory=directory, **parts).resume)
    Cue(folder=str(directory / "rehearsal"), steps=3, workers=2).write()
    os.environ[REHEARSAL] = str(directory / "rehearsal")
    said(InvalidValue, lambda: train.checkpointed(model=model))
    return words


def test_what_cannot_be_is_refused_in_words(tmp_path):
    in_group(1, lived, tmp_path, 3)
    ((others, kept, smaller, wider, rehearsed),) = in_group(1, refused, tmp_path)
    assert "of parameters of a model that is given, too" in others
    assert "a tensor in shards" in kept
    assert "optimizer is of other parameters" in smaller
    assert "of another model: model.in.weight is (13, 6), not (26, 6)" in wider
    assert "shards cannot be compared at two widths" in rehearsed
