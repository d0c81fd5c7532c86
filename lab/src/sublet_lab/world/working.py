"""The working directory of every job of the world, for those whose machines do not see the controller's disk."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path

from sublet.runtime.file_sync.content import Content
from sublet.runtime.file_sync.packing import pack_texts
from sublet_lab.world.machine import MemoryFiles

WORK: Mapping[str, bytes] = {  # more than is under way at a time, of what cannot be packed
    "train.py": b"train()\n",
    "model/__init__.py": b"",
    "model/layers.py": b"class Layer: ...\n" * 50,
    "data/tokens.bin": random.Random("tokens").randbytes(700_000),  # noqa: S311 - no secret
}


def pack_work(content: Content, folder: Path, mounts: Mapping[str, Path], *, besides: Collection[Path] = ()) -> str:
    """As what is shipped does with a folder of the disk."""
    del folder, mounts, besides
    return pack_texts(content, WORK)


def torn_files(files: MemoryFiles, cwd: str) -> list[str]:
    """Files that a worker there does not find as submitted; nothing of a directory that did not travel."""
    if "/work/" not in cwd:
        return []
    return [name for name, data in WORK.items() if files.contents.get(Path(cwd) / name) != data]
