"""Places for checkpoints of the suite for stores: a directory, and whatever is an object store."""

from __future__ import annotations

from pathlib import Path

from sublet.testing.interrupted import interrupted_disk, interrupted_objects
from sublet.train.checkpoint.bucket import Bucket
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.disk import DISK
from sublet.train.checkpoint.manifest import TREE


class DirectoryRig:
    """On a filesystem."""

    def __init__(self, path: Path):
        self.path = path

    def open(self, orders):
        return Directory(self.path, disk=interrupted_disk(DISK, orders))

    def flip(self, step):
        file = self.path / f"step-{step}" / TREE
        file.write_bytes(flipped(file.read_bytes()))


class ObjectsRig:
    """On objects that are there already, and empty."""

    def __init__(self, objects):
        self.objects = objects

    def open(self, orders):
        return Bucket(interrupted_objects(self.objects, orders))

    def flip(self, step):
        key = f"{Bucket(self.objects).folder(step).name}/{TREE}"
        self.objects.put(key, flipped(self.objects.get(key).data))


def flipped(content: bytes) -> bytes:
    """With one other bit in its middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
