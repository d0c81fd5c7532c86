"""A converted script is tried: `sublet rehearse` in a copy of its folder, so that the user's files stay as they are."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sublet.cli.work.script.reading import Script

if TYPE_CHECKING:
    from sublet.runtime.rehearsal.report import Report

__all__ = ["tried"]


def tried(
    script: Path, changed: Script, text: str, arguments: Sequence[str], cwd: Path, tell: Callable[[str], None]
) -> Report:
    """The script is run; the file that has the new text may be another, which it imports."""
    from sublet.runtime.rehearsal.copying import copied
    from sublet.runtime.rehearsal.rehearse import rehearse

    script, path, here = script.resolve(), changed.path.resolve(), cwd.resolve()
    inside = script.is_relative_to(here) and path.is_relative_to(here)
    folder = here if inside else Path(os.path.commonpath([script.parent, path.parent]))
    with tempfile.TemporaryDirectory(prefix="sublet-converted-") as scratch:
        copy = copied(folder, Path(scratch) / "work").folder
        new = copy / path.relative_to(folder)
        new.unlink(missing_ok=True)
        new.write_bytes(text.encode())
        return rehearse([sys.executable, str(script.relative_to(folder)), *arguments], copy, tell=tell)
