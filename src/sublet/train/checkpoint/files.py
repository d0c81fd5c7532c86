"""The files of one checkpoint from a state and back: tensors as bytes, everything else as a tree (`manifest`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sublet.errors import DamagedCheckpoint
from sublet.train.checkpoint.folder import Folder
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
from sublet.train.checkpoint.snapshot import Snapshot, TensorPlace, Tree, state_from

__all__ = ["data_name", "read_state", "write"]


def write(
    folder: Folder,
    snapshot: Snapshot,
    *,
    step: int,
    generation: int,
    writer: str,
    meta: Mapping[str, Any],
    beside: Sequence[NamedFile] = (),
) -> Manifest:
    """Fill a folder: data, tree, manifest, in this order, each there for good before the next is begun.

    Segments that others have written are `beside` these.
    """
    contents = {data_name(index): segment for index, segment in enumerate(snapshot.segments, snapshot.first)}
    contents[TREE] = memoryview(snapshot.tree.to_json())
    return write_files(folder, contents, step=step, generation=generation, writer=writer, meta=meta, beside=beside)


def data_name(segment: int) -> str:
    """Of the file of a segment."""
    return f"data-{segment:04}.bin"


def read_state(folder: Folder, step: int) -> tuple[Manifest, dict[str, Any]]:
    """The state of step `step`, verified, on the CPU, each tensor in memory of its own; or DamagedCheckpoint."""
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
        pieces[_file_of(place)].append((place.start, _bytes_of(memory)))
    in_parallel(lambda name: read_file(folder, files[name], pieces[name]), list(pieces))
    return manifest, state


def _bytes_of(memory: torch.Tensor) -> memoryview:
    found: memoryview = memory.numpy().data
    return found


def _file_of(place: TensorPlace) -> str:
    return data_name(place.segment)


def _refuse_overlaps(places: Sequence[TensorPlace], files: Mapping[str, NamedFile]) -> None:
    """Tensors must come one after the other, inside of their files: files are read from end to end."""
    ends: dict[str, int] = {}
    for place in places:
        name = _file_of(place)
        end = place.start + place.size
        if place.start < ends.get(name, 0) or end > files[name].size:
            raise ValueError(f"a tensor has bytes {place.start} to {end} of {name}, which is not possible")
        ends[name] = end
