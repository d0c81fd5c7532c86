"""Write the golden logs anew: `python -m tests.golden.record [NAME ...]`."""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

from tests.golden.scenarios import SCENARIOS

LOGS = Path(__file__).parent / "logs"


def record(name: str) -> None:
    """One scenario; the same bytes for the same life."""
    with tempfile.TemporaryDirectory() as folder:
        lines = SCENARIOS[name](Path(folder))
    packed = gzip.compress("\n".join(lines).encode(), mtime=0)
    (LOGS / f"{name}.jsonl.gz").write_bytes(packed)
    print(f"{name}: {len(lines):,} lines, {len(packed):,} bytes", file=sys.stderr)  # noqa: T201 - it is a script


if __name__ == "__main__":
    for scenario in sys.argv[1:] or SCENARIOS:
        record(scenario)
