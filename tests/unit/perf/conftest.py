"""Tables that are not ours to ship: tests that read one are skipped where it is absent."""

from __future__ import annotations

import pytest

from sublet.errors import MissingData
from sublet.perf.tables import read_profile


@pytest.fixture
def need_profile():
    def read(name):
        try:
            return read_profile(name)
        except MissingData as missing:
            pytest.skip(str(missing).splitlines()[0])

    return read
