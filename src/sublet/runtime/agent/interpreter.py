"""Which Python a worker finds: one for `python x.py`, for every line of a script of bash, for `env` and for `setup`.

A path in the command is taken as it is. Else it is what `setup` has activated; the environment that was active where
the job was submitted, if this node sees it; a `.venv` that `setup` made; and else the agent's own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

NAMES = ("python", "python3")
BIN = "SUBLET_BIN"  # for a shell that reads a ~/.bashrc with another environment in it
TELL = """\
SUBLET_BEFORE="$(command -v python || :)"; sublet_tell() {
local now; now="$(command -v python || :)";
if [ "$now" != "$SUBLET_BEFORE" ]; then printf '%s' "$now" >&"$SUBLET_CONTROL_FD";
elif [ -z "${VIRTUAL_ENV:-}" ] && [ ! -d "${now%/bin/*}/conda-meta" ] && [ -x OWN ];
then printf '%s' OWN >&"$SUBLET_CONTROL_FD"; fi
}"""


def is_this_python(name: str) -> bool:
    """Whether a command of this name runs the very environment that we run in.

    Environments of one base have the same file behind their links: it is the folder that tells them apart.
    """
    found = name if "/" in name else shutil.which(name)
    if found is None:
        return name in NAMES  # there is none on the PATH, so that it is ours
    mine, other = Path(sys.executable), Path(found)
    return other.parent.resolve() == mine.parent.resolve() and other.resolve() == mine.resolve()


def is_environment(python: str) -> bool:
    """Whether it is of a virtual or conda environment, which is whole wherever its folder is seen."""
    prefix = Path(python).parent.parent
    return (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()


def enter(python: str, variables: MutableMapping[str, str]) -> str:
    """From now on `python` is this one, or the agent's where it is not here; its path."""
    given = bool(python) and os.access(python, os.X_OK)
    python = python if given else sys.executable
    folder, found = str(Path(python).parent), shutil.which("python", path=variables.get("PATH", ""))
    if found is None or str(Path(found).parent) != folder:
        variables["PATH"] = os.pathsep.join(part for part in (folder, variables.get("PATH", "")) if part)
    variables.pop("VIRTUAL_ENV", None)  # of the shell that the agent was started in
    variables.pop("PYTHONHOME", None)
    variables.pop(BIN, None)
    if given:
        variables[BIN] = folder
    if given and (Path(folder).parent / "pyvenv.cfg").is_file():
        variables["VIRTUAL_ENV"] = str(Path(folder).parent)
    return python


def program(argv: Sequence[str], python: str) -> tuple[str, ...]:
    """The command; a `python` that no folder of the PATH has by this name is the one that was entered."""
    missing = bool(argv) and argv[0] in NAMES and shutil.which(argv[0]) is None
    return (python, *argv[1:]) if missing else tuple(argv)


def telling(setup: str, cwd: str) -> str:
    """The text of a setup that says at its end, on the line of its process, which Python it made; nothing if none."""
    own = shlex.quote(f"{cwd}/.venv/bin/python")
    tell = TELL.replace("OWN", own).replace("\n", " ")  # on one line: errors name the lines of the setup
    return f"{tell}; trap 'sublet_tell || :' EXIT; {setup}"
