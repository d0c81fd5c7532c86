"""Whatever a state_dict() may hold comes back as it was, to the bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from sublet.train.checkpoint import snapshot as checkpoint_snapshot
from sublet.train.checkpoint.checkpoints import Checkpoints
from sublet.train.checkpoint.snapshot import DTYPES

MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - an fsync costs nothing there

shapes = st.lists(st.integers(0, 5), max_size=4)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text(st.characters(), max_size=8)
)
keys = st.one_of(st.text(max_size=6), st.integers(-3, 200), st.floats(allow_nan=False), st.booleans(), st.none())


@st.composite
def tensors(draw):
    name = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(shapes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size = DTYPES[name].itemsize * torch.Size(shape).numel()
    raw = torch.randint(0, 2 if name == "bool" else 256, (size,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(DTYPES[name]).view(shape)  # any bit pattern, NaNs with payload included
    way = draw(st.sampled_from(["as it is", "transposed", "every other", "expanded", "parameter"]))
    if way == "transposed":
        return tensor.transpose(0, -1) if tensor.dim() else tensor
    if way == "every other":
        return tensor[::2] if tensor.dim() else tensor
    if way == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if way == "parameter" and name in {"float32", "bfloat16", "complex64"}:
        return torch.nn.Parameter(tensor)
    return tensor


states = st.dictionaries(
    keys,
    st.recursive(
        st.one_of(scalars, tensors()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(keys, inner, max_size=4),
            st.lists(inner, max_size=3).map(tuple),
        ),
        max_leaves=12,
    ),
    max_size=5,
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert other.is_contiguous()
        return bits(one) == bits(other)
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(
            same(a, b) for a, b in zip(one.values(), other.values(), strict=True)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def bits(tensor):
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@given(first=states, second=states)
def test_any_state_comes_back_to_the_bit_also_out_of_reused_buffers(first, second):
    with tempfile.TemporaryDirectory(dir=MEMORY) as name, Checkpoints(Path(name), writer="w", generation=0) as kept:
        for step, state in enumerate((first, second, first)):
            kept.save(step, state, {"step": step}).wait()
            loaded = kept.newest()
            assert loaded.step == step
            assert same(state, loaded.state)


@given(state=states, small=st.integers(64, 512))
def test_how_the_state_is_cut_into_files_makes_no_difference(state, small):
    whole = checkpoint_snapshot.SEGMENT_BYTES
    checkpoint_snapshot.SEGMENT_BYTES = small
    try:
        with tempfile.TemporaryDirectory(dir=MEMORY) as name, Checkpoints(Path(name), writer="w", generation=0) as kept:
            kept.save(7, state, {}).wait()
            assert same(state, kept.newest().state)
    finally:
        checkpoint_snapshot.SEGMENT_BYTES = whole
