"""A script that is replaced by its new text: whole or not at all, with the old one beside it."""

from __future__ import annotations

from pathlib import Path

from sublet.cli.work.script.reading import Script
from sublet.errors import BadInput
from sublet.machine.files import FILES

__all__ = ["write_beside"]


def write_beside(script: Script, text: str) -> Path:
    """Where the old text is; one that is there already is never replaced."""
    path = script.path.resolve()  # a link stays one
    backup = path.with_name(f"{path.name}.orig")
    if backup.exists():
        raise BadInput(
            str(backup), "is there already", hint="move it away: it may be the only copy of the script as it was"
        )
    if path.read_bytes() != script.source.encode():
        raise BadInput(str(path), "was changed meanwhile", hint="try again")
    mode = path.stat().st_mode & 0o777
    FILES.write(backup, script.source.encode(), mode=mode)
    FILES.write(path, text.encode(), mode=mode)
    return backup
