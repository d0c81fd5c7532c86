"""Jobs whose files lie on this machine alone: where nodes saw its disk, nothing of them was packed for others."""

from __future__ import annotations

import json
from pathlib import Path

from sublet.errors import BadInput
from sublet.runtime.store import Store

__all__ = ["refuse_to_strand"]

SHARED = "local"  # the provider whose nodes see the controller's disk


def refuse_to_strand(state_dir: Path, before: str, after: str) -> None:
    """BadInput where jobs that have not ended would find neither files nor checkpoints on nodes of another provider."""
    if before != SHARED or after == SHARED or not (state_dir / "log.sqlite").is_file():
        return
    store = Store(state_dir / "log.sqlite")
    try:
        names = [
            json.loads(spec).get("name", job_id) for job_id, spec, facts in store.jobs() if not facts.get("outcome")
        ]
    finally:
        store.close()
    if names:
        why = f"files and checkpoints of jobs that have not ended are on this machine alone: {', '.join(names)}"
        hint = "let them end here, or 'sublet cancel' them; then change, and submit them again, from their beginning"
        raise BadInput(state_dir, why, hint=hint)
