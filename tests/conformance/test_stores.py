"""Every place for checkpoints passes the suite for stores: a directory, objects in memory, and S3 as moto plays it."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from obstore.store import MemoryStore

from sublet.machine.remote import RemoteObjects, open_uri
from sublet.testing.conformance.stores import StoreSuite
from tests.rigs.moto_bucket import a_bucket, environment
from tests.rigs.stores import DirectoryRig, ObjectsRig

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - memory, if there is any
NAMES = itertools.count()


class TestDirectory(StoreSuite):
    examples = 10
    moments = 5  # tests/unit/train/test_checkpoint_kills.py kills real processes at each

    @pytest.fixture(autouse=True)
    def _home(self):
        with tempfile.TemporaryDirectory(dir=MEMORY) as name:
            self._folder = Path(name)
            yield

    def make_rig(self):
        return DirectoryRig(self._folder / str(next(NAMES)))


class TestMemory(StoreSuite):
    examples = 25

    def make_rig(self):
        return ObjectsRig(RemoteObjects("memory://here", MemoryStore()))


class TestS3(StoreSuite):
    """The same orders as in memory, answered by a server: few moments, since each takes many requests."""

    examples = 1
    moments = 17

    @pytest.fixture(autouse=True)
    def _account(self, monkeypatch):
        for name, value in environment().items():
            monkeypatch.setenv(name, value)
        self._uri = a_bucket("suite")

    def make_rig(self):
        return ObjectsRig(open_uri(f"{self._uri}/{next(NAMES)}"))
