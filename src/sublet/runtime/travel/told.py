"""What is said at submit of files that travel, or stay, so that nobody finds out later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sublet.runtime.jobs.spec import JobSpec

__all__ = ["file_notes"]


def file_notes(spec: JobSpec, names: Iterable[str]) -> list[str]:
    """`names` are those that its files have on a node."""
    del names
    return [
        f"{Path(path).name} stays on this machine: secrets are written in it. Without values (secrets: {{NAME: }}) they"
        f" come from your environment, and it travels as other files do"
        for path in spec.unsent
        if Path(path).is_relative_to(spec.cwd)
    ]
