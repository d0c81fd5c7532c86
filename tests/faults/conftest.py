"""Lives leave garbage, and only theirs is looked for: all that other tests have imported and kept is not."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()
