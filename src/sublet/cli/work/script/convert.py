"""The change that makes a script elastic, as a diff, with the lines to look at; or why there is none."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sublet.cli.work.script.frameworks import known, of_framework
from sublet.cli.work.script.looks import Look, looks_of
from sublet.cli.work.script.loops import the_training
from sublet.cli.work.script.reading import CannotConvert, Script
from sublet.cli.work.script.session import to_session
from sublet.errors import BadInput
from sublet.machine.files import FILES

if TYPE_CHECKING:
    from sublet.runtime.rehearsal.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The new text, and the lines to look at in it."""

    how: str  # "session", or the framework whose integration it has
    text: str
    looks: tuple[Look, ...]

    def diff(self, script: Script) -> str:
        """As `diff -u` has it."""
        name = script.path.name
        lines = difflib.unified_diff(script.lines, self.text.splitlines(keepends=True), f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def convert(script: Script) -> Converted:
    """CannotConvert with what to do by hand."""
    if script.is_elastic:
        raise CannotConvert("it imports sublet already", 1, "try it: sublet rehearse -- python train.py")
    known(script)
    if (made := of_framework(script)) is not None:
        return Converted(how=made[0], text=made[1], looks=())
    text, lost = to_session(script, the_training(script))
    return Converted(how="session", text=text, looks=looks_of(Script(script.path, text), lost))


def found_in(script: Script) -> tuple[Script, Converted]:
    """The same, of the script or of the file with its loop, which it imports."""
    try:
        return script, convert(script)
    except CannotConvert as error:
        if error.elsewhere is None:
            raise
        other = Script.read(error.elsewhere)
        try:
            return other, convert(other)
        except CannotConvert as refused:
            why = f"the training loop is in {other.path}, line {refused.line}: {refused.why}"
            raise CannotConvert(why, 1, refused.do) from None


def inspect(script: Script) -> tuple[Converted | CannotConvert | None, tuple[Look, ...]]:
    """The result of `convert`, or why there is none; of a script with a session, only the lines to look at."""
    if script.is_elastic:
        return None, looks_of(script, [])
    try:
        _, made = found_in(script)
    except CannotConvert as error:
        return error, ()
    return made, made.looks


def tried(
    script: Path, changed: Script, text: str, arguments: Sequence[str], cwd: Path, tell: Callable[[str], None]
) -> Report:
    """The script is run in a copy of its folder; the file that has the new text may be another, which it imports."""
    from sublet.runtime.rehearsal.rehearse import rehearse
    from sublet.runtime.rehearsal.running import SCRATCH, copied

    script, path, here = script.resolve(), changed.path.resolve(), cwd.resolve()
    inside = script.is_relative_to(here) and path.is_relative_to(here)
    folder = here if inside else Path(os.path.commonpath([script.parent, path.parent]))
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
        copy = copied(folder, Path(scratch) / "work" / folder.name).folder
        new = copy / path.relative_to(folder)
        new.unlink(missing_ok=True)
        new.write_bytes(text.encode())
        return rehearse([sys.executable, str(script.relative_to(folder)), *arguments], copy, tell=tell)


def write_beside(script: Script, text: str) -> Path:
    """Where the old text is; one that is there already is never replaced."""
    path = script.path.resolve()  # a link stays one
    backup = path.with_name(f"{path.name}.orig")
    if backup.exists():
        hint = "move it away: it may be the only copy of the script as it was"
        raise BadInput(str(backup), "is there already", hint=hint)
    if path.read_bytes() != script.source.encode():
        raise BadInput(str(path), "was changed meanwhile", hint="try again")
    mode = path.stat().st_mode & 0o777
    FILES.write(backup, script.source.encode(), mode=mode)
    FILES.write(path, text.encode(), mode=mode)
    return backup
