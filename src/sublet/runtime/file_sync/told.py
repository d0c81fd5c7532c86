"""Notes at submit on files that travel, or stay, so that a surprise later is avoided."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from sublet.runtime.file_sync.keys import may_be_key
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["file_notes"]

NAMED = 5  # of those that may be keys


def file_notes(spec: JobSpec, names: Iterable[str]) -> list[str]:
    """`names` are those that its files have on a node."""
    stay = [
        f"{Path(path).name} stays on this machine: secrets are written in it. Without values (secrets: {{NAME: }}) they"
        f" come from your environment, and it travels as other files do"
        for path in spec.unsent
        if Path(path).is_relative_to(spec.cwd)
    ]
    return [*stay, *_of_keys(spec, names)]


def _of_keys(spec: JobSpec, names: Iterable[str]) -> list[str]:
    meant = {str(PurePosixPath(there)) for there in spec.mounts}  # a file that was named by itself
    found = sorted(name for name in names if name not in meant and may_be_key(name))
    if not found:
        return []
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    shown = ", ".join(found[:NAMED])
    return [f"warning: {shown}{more} may hold keys, and go to every node; name in .subletignore what is to stay"]
