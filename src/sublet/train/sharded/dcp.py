"""Torch's format of distributed checkpoints (DCP): made in memory, and read from a folder whose digests are right.

    __0_0.distcp ...   the shards of each rank, one after the other
    .metadata          where each piece of each tensor is

Torch reads `.metadata` by pickle. Here it may name nothing but torch's own descriptions, so reading it runs no code.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sublet.errors import DamagedCheckpoint
from sublet.train.checkpoint.disk import Folder
from sublet.train.checkpoint.manifest import WHAT_PARSING_RAISES, Manifest, read_file

METADATA = ".metadata"
DESCRIBES = {
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.serialization": {"_get_layout"},
}


def files_of(state: Mapping[str, Any]) -> dict[str, memoryview]:
    """This rank's files of a state, by name. All ranks call it, and rank 0 has the metadata, too."""
    files = _Memory()
    writer = FileSystemWriter("", sync_files=False)
    writer.fs, writer.path = files, ""
    save(dict(state), storage_writer=writer)
    return {name: stream.getbuffer() for name, stream in files.streams.items()}


def metadata_in(folder: Folder, manifest: Manifest) -> Metadata:
    """The description of all tensors; DamagedCheckpoint if it is none."""
    return _Reader(folder, manifest).read_metadata()


def fill(state: dict[str, Any], folder: Folder, manifest: Manifest) -> None:
    """Read each tensor, or this rank's part of it, into its place. All ranks call it; a rank reads what it needs."""
    load(state, storage_reader=_Reader(folder, manifest))


class _Stream(io.BytesIO):
    def close(self) -> None:
        """Its content is read afterwards."""


class _Memory(FileSystem):
    """The files that one rank writes."""

    def __init__(self) -> None:
        self.streams: dict[str, _Stream] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb"  # noqa: S101 - of torch
        stream = self.streams[os.fspath(path)] = _Stream()
        yield stream

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self.streams[os.fspath(new_path)] = self.streams.pop(os.fspath(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """There is one folder."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return os.fspath(path) in self.streams


class _Verified(FileSystem):
    """The files of a checkpoint, each read whole and verified: the bytes that were verified are those that are used."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder, self._files = folder, {file.name: file for file in manifest.files}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:  # noqa: ARG002 - to read
        file = self._files.get(os.fspath(path))
        if file is None:
            raise DamagedCheckpoint(self._folder.place, f"{path} is not in the manifest")
        content = bytearray(file.size)
        read_file(self._folder, file, [(0, memoryview(content))])
        yield io.BytesIO(content)


class _Reader(FileSystemReader):
    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        super().__init__("")
        self.fs, self._place = _Verified(folder, manifest), folder.place

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with self.fs.create_stream(METADATA, "rb") as stream:
            try:
                found = _Described(stream).load()
            except (pickle.UnpicklingError, EOFError, *WHAT_PARSING_RAISES) as error:
                raise DamagedCheckpoint(self._place, f"{METADATA} cannot be read: {error}") from error
        if not isinstance(found, Metadata):
            raise DamagedCheckpoint(self._place, f"{METADATA} is a {type(found).__name__}")
        return found


class _Described(pickle.Unpickler):
    """Of `.metadata`: anything else in it is refused."""

    def find_class(self, module: str, name: str) -> Any:
        known = name in DESCRIBES.get(module, ())
        if known or (module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype))):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} describes no tensor")
