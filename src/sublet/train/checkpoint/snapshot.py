"""A state in host memory: tensors as bytes in reused buffers, everything else as a tree of JSON.

    {"w": tensor, "lr": 0.1}  ->  tree.json   {"dict": [["w", {"tensor": 0}], ["lr", 0.1]]}, and the place of tensor 0
                                  data-0000   the bytes of tensor 0, then of tensor 1, ... each on a 64-byte border

There is no pickle in it, so reading one runs no code. A tensor that stands in the state twice (tied weights) is kept
once, and is one tensor again after loading.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from sublet.errors import DamagedCheckpoint, InvalidValue
from sublet.train.checkpoint.disk import Folder
from sublet.train.checkpoint.manifest import (
    TREE,
    WHAT_PARSING_RAISES,
    Manifest,
    NamedFile,
    in_parallel,
    read_file,
    read_manifest,
    write_files,
)
from sublet.train.link.devices import host_memory

SEGMENT_BYTES = 1 << 28  # one buffer and one file; a power of two, because pinned memory is handed out in such
BORDER_BYTES = 64  # a cache line, and a multiple of every item size
DEEPEST = 64  # levels; a state_dict has about five, a state that contains itself has no end
DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
}
PLAIN = (bool, int, float, str)  # and None: as they are in JSON
EMPTY = torch.empty(0, dtype=torch.uint8)
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """The place of one tensor's bytes: `size` of them in segment `segment`, from `start`."""

    dtype: str
    shape: tuple[int, ...]
    segment: int
    start: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidValue("dtype", self.dtype, "one of " + ", ".join(DTYPES))
        if any(length < 0 for length in self.shape):
            raise InvalidValue("shape", self.shape, "without negative lengths")
        if self.segment < 0 or self.start < 0 or self.start % BORDER_BYTES:
            raise InvalidValue(
                "start", (self.segment, self.start), f"at least 0 and on a border of {BORDER_BYTES} bytes"
            )

    @property
    def size(self) -> int:
        """How many bytes the tensor takes."""
        return DTYPES[self.dtype].itemsize * math.prod(self.shape)

    def seen_in(self, memory: torch.Tensor) -> torch.Tensor:
        """These bytes as a tensor."""
        return memory.view(DTYPES[self.dtype]).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A state without the contents of its tensors."""

    root: Any  # JSON, see above
    places: tuple[TensorPlace, ...]

    def to_json(self) -> bytes:
        """The bytes of tree.json."""
        rows = [[place.dtype, list(place.shape), place.segment, place.start] for place in self.places]
        return json.dumps({"tensors": rows, "root": self.root}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Tree:
        """Counterpart of `to_json`; ValueError, TypeError or KeyError if this is something else."""
        facts = json.loads(text)
        places = tuple(
            TensorPlace(dtype=dtype, shape=tuple(map(int, shape)), segment=int(segment), start=int(start))
            for dtype, shape, segment, start in facts["tensors"]
        )
        return cls(root=facts["root"], places=places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A state at one moment; its segments are valid until the next snapshot is taken into the same buffers."""

    tree: Tree
    segments: tuple[memoryview, ...]
    first: int = 0  # number of the first of these segments: those before are written by others

    def state(self) -> Any:
        """All of it, in the memory of the segments; of one that is whole."""
        memory = [torch.frombuffer(each, dtype=torch.uint8) if len(each) else EMPTY for each in self.segments]
        tensors = [
            place.seen_in(memory[place.segment][place.start : place.start + place.size]) for place in self.tree.places
        ]
        return state_from(self.tree.root, tensors)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """In a state, in place of a tensor that another writer has: an index of the places that are given beside it."""

    index: int


class HostCopy:
    """Buffers in host memory that take one snapshot after another; as large as the largest state so far."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._layout: object = None  # what the three below were made for
        self._places: tuple[TensorPlace, ...] = ()
        self._views: list[torch.Tensor] = []
        self._segments: tuple[memoryview, ...] = ()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def reserve(self, state: Mapping[str, Any]) -> None:
        """Have the memory ready for states like this one, so that the first snapshot need not wait for it."""
        self._lay_out(_take_apart(state)[1])

    def take(self, state: Mapping[str, Any], elsewhere: Sequence[TensorPlace] = ()) -> Snapshot:
        """Copy all tensors; when this returns they may change again.

        Copies from a GPU run on a stream of their own, after what has been asked of the GPU so far. Tensors that are
        `Elsewhere` in the state are in segments before ours.
        """
        root, tensors = _take_apart(state, first=len(elsewhere))
        self._lay_out(tensors)
        with torch.no_grad():
            self._copy(tensors)
        first = 1 + max((place.segment for place in elsewhere), default=-1)
        ours = [replace(place, segment=first + place.segment) for place in self._places] if first else self._places
        return Snapshot(tree=Tree(root=root, places=(*elsewhere, *ours)), segments=self._segments, first=first)

    def _lay_out(self, tensors: list[torch.Tensor]) -> None:
        pinned = any(tensor.is_cuda for tensor in tensors)
        layout = [pinned, *((tensor.dtype, tensor.shape) for tensor in tensors)]
        if layout == self._layout:  # the same model: nearly always
            return
        self._layout = None  # nothing is valid while we allocate, which may fail
        places = tuple(_place_tensors(tensors))
        sizes = segment_sizes(places)
        old, self._buffers = self._buffers, []
        for index, size in enumerate(sizes):
            if index < len(old) and old[index].numel() >= size and old[index].is_pinned() == pinned:
                self._buffers.append(old[index])
            else:
                self._buffers.append(host_memory([size], torch.uint8, pinned=pinned).zero_())
        spans = [(self._buffers[place.segment], place) for place in places]
        self._views = [place.seen_in(buffer[place.start : place.start + place.size]) for buffer, place in spans]
        pairs = zip(self._buffers, sizes, strict=True)
        self._segments = tuple(buffer[:size].numpy().data for buffer, size in pairs)
        self._places, self._layout = places, layout

    def _copy(self, tensors: list[torch.Tensor]) -> None:
        by_device: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for tensor, view in zip(tensors, self._views, strict=True):
            by_device.setdefault(tensor.device, []).append((view, tensor))
        copying: list[torch.cuda.Stream] = []
        for device, pairs in sorted(by_device.items(), key=lambda item: item[0].type != "cuda"):  # GPUs first: they
            if device.type == "cuda":  # copy while we go on
                if device not in self._streams:
                    self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch gives it no type
                stream = self._streams[device]
                stream.wait_stream(torch.cuda.current_stream(device))
                copying.append(stream)
                with torch.cuda.stream(stream):
                    for view, tensor in pairs:
                        view.copy_(tensor, non_blocking=True)
            else:
                for view, tensor in pairs:
                    view.copy_(tensor)
        for stream in copying:
            stream.synchronize()


def require_storable(state: Mapping[str, Any]) -> None:
    """InvalidValue if a snapshot cannot hold something in it."""
    _take_apart(state)


def state_from(root: Any, tensors: list[torch.Tensor]) -> Any:
    """The state that `root` describes, with these tensors."""
    if not isinstance(root, dict):
        if root is None or isinstance(root, PLAIN):
            return root
        raise TypeError(f"{root!r} is not part of a state")
    [(kind, inside)] = root.items()
    match kind:
        case "dict":
            return {key: state_from(value, tensors) for key, value in inside}
        case "list":
            return [state_from(value, tensors) for value in inside]
        case "tuple":
            return tuple(state_from(value, tensors) for value in inside)
        case "tensor":
            return tensors[inside]
        case _:
            raise TypeError(f"{kind!r} is not a kind of thing in a state")


class _Where(NamedTuple):
    """The path to a value; formatted only for an error, because every save builds it."""

    above: _Where | None
    key: object
    depth: int

    def __str__(self) -> str:
        return "state" if self.above is None else f"{self.above}[{self.key!r}]"


def _take_apart(state: Mapping[str, Any], first: int = 0) -> tuple[Any, list[torch.Tensor]]:
    found = _Found(first)
    root = _describe_value(state, _Where(None, None, 0), found)
    return root, found.tensors


class _Found:
    """Tensors of a state, each once; their numbers count from `first`."""

    def __init__(self, first: int) -> None:
        self._first, self._numbers, self.tensors = first, dict[object, int](), list[torch.Tensor]()

    def number(self, tensor: torch.Tensor) -> int:
        key = _identity(tensor)
        if key not in self._numbers:
            self._numbers[key] = self._first + len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[key]


def _describe_value(value: Any, where: _Where, found: _Found) -> Any:
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, Elsewhere):
        return {"tensor": value.index}
    depth = where.depth + 1
    if depth > DEEPEST:
        raise InvalidValue(f"{where}"[:80], "...", f"at most {DEEPEST} levels deep (does it contain itself?)")
    if isinstance(value, torch.Tensor):
        _refuse_unlike_bytes(value, where)
        return {"tensor": found.number(value)}
    if isinstance(value, Mapping):
        rows = []
        for key, item in value.items():
            if key is not None and not isinstance(key, PLAIN):
                raise InvalidValue(f"a key of {where}", key, "a number, a string or None")
            rows.append([key, _describe_value(item, _Where(where, key, depth), found)])
        return {"dict": rows}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe_value(item, _Where(where, i, depth), found) for i, item in enumerate(value)]}
    allowed = "a dict, list, tuple, tensor, number, string or None; make it one of these in your state_dict()"
    raise InvalidValue(f"{where}", f"a {type(value).__module__}.{type(value).__qualname__}", allowed)


def _refuse_unlike_bytes(tensor: torch.Tensor, where: _Where) -> None:
    """Refuse tensors whose values are not their bytes on one device: sparse, quantised, distributed."""
    strange = type(tensor) not in {torch.Tensor, torch.nn.Parameter} and hasattr(tensor, "full_tensor")
    if strange or tensor.is_meta or tensor.layout != torch.strided or tensor.dtype not in NAMES:
        allowed = "a whole, dense tensor of one of " + ", ".join(DTYPES)
        raise InvalidValue(f"{where}", f"{tensor.layout} {tensor.dtype} on {tensor.device}", allowed)


def _identity(tensor: torch.Tensor) -> object:
    """Equal for two tensors that see the same memory in the same way, so must always be equal themselves."""
    if tensor.numel() == 0 or tensor.is_conj() or tensor.is_neg():
        return id(tensor)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _place_tensors(tensors: list[torch.Tensor]) -> Iterator[TensorPlace]:
    segment = start = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.dtype.itemsize
        if start and start + size > SEGMENT_BYTES:  # a tensor is never split: a larger one has a segment of its own
            segment, start = segment + 1, 0
        yield TensorPlace(dtype=NAMES[tensor.dtype], shape=tuple(tensor.shape), segment=segment, start=start)
        start += -(-size // BORDER_BYTES) * BORDER_BYTES


def segment_sizes(places: tuple[TensorPlace, ...]) -> list[int]:
    """The size of each segment."""
    ends = [0] * (1 + max((place.segment for place in places), default=-1))
    for place in places:
        ends[place.segment] = max(ends[place.segment], place.start + place.size)
    return ends


def write_state(folder: Folder, snapshot: Snapshot, **facts: Any) -> Manifest:
    """Fill a folder: data, tree, manifest, in this order; `facts` of the manifest as `write_files` takes them."""
    contents = {data_name(index): segment for index, segment in enumerate(snapshot.segments, snapshot.first)}
    contents[TREE] = memoryview(snapshot.tree.to_json())
    return write_files(folder, contents, **facts)


def data_name(segment: int) -> str:
    """The file of a segment."""
    return f"data-{segment:04}.bin"


def read_state(folder: Folder, step: int, *, whole: bool = True) -> tuple[Manifest, dict[str, Any]]:
    """The state of step `step`, verified, on the CPU, each tensor in memory of its own; or DamagedCheckpoint.

    `whole`: files that hold none of these tensors are read and verified, too.
    """
    manifest = read_manifest(folder, step)
    files = {file.name: file for file in manifest.files}
    text = torch.empty(files[TREE].size, dtype=torch.uint8)
    read_file(folder, files[TREE], [(0, _bytes_of(text))])
    try:
        tree = Tree.from_json(text.numpy().tobytes())
        _refuse_overlaps(tree.places, files)
        memories = [torch.empty(place.size, dtype=torch.uint8) for place in tree.places]
        tensors = [place.seen_in(memory) for place, memory in zip(tree.places, memories, strict=True)]
        state = state_from(tree.root, tensors)
        if not isinstance(state, dict):
            raise TypeError(f"the state is a {type(state).__name__}, not a dict")
    except WHAT_PARSING_RAISES as error:
        raise DamagedCheckpoint(folder.place, f"{TREE} cannot be read: {error}") from error
    pieces: dict[str, list[tuple[int, memoryview]]] = {name: [] for name in files if name != TREE}
    for place, memory in zip(tree.places, memories, strict=True):
        pieces[data_name(place.segment)].append((place.start, _bytes_of(memory)))
    in_parallel(
        lambda name: read_file(folder, files[name], pieces[name]), [name for name in pieces if whole or pieces[name]]
    )
    return manifest, state


def _bytes_of(memory: torch.Tensor) -> memoryview:
    found: memoryview = memory.numpy().data
    return found


def _refuse_overlaps(places: Sequence[TensorPlace], files: Mapping[str, NamedFile]) -> None:
    """Tensors must come one after the other, inside of their files: files are read from end to end."""
    ends: dict[str, int] = {}
    for place in places:
        name = data_name(place.segment)
        end = place.start + place.size
        if place.start < ends.get(name, 0) or end > files[name].size:
            raise ValueError(f"a tensor has bytes {place.start} to {end} of {name}, which is not possible")
        ends[name] = end
