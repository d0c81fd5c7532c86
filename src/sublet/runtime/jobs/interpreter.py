"""Which Python runs a job: found where it is submitted, as the shell there would find it, and told to its owner.

A job keeps the interpreter that was active (`JobSpec.python`). A path in the command is the user's own choice, and
stays. A node that does not see the interpreter has what `setup` made there, else its own (`agent.interpreter`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sublet.runtime.jobs.command import PYTHON, SHELLS, only, plain
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["Interpreter", "python_lines", "with_python"]

NAMES = ("python", "python3")
ANSWERS_S = 20.0  # a Python on a disk that sleeps
LOOK = (
    "import sys; sys.path.pop(0); import importlib.util as u, json, os; p = sys.prefix; "
    "e = p != sys.base_prefix or os.path.isdir(os.path.join(p, 'conda-meta')); "
    "print(json.dumps([sys.executable, e, u.find_spec('sublet') is not None]))"
)


class Interpreter(NamedTuple):
    """An interpreter's own facts."""

    path: str
    active: bool  # of a virtual or conda environment, and not the system's
    has_sublet: bool


def with_python(spec: JobSpec, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """The job with the interpreter that is active here, unless it has one, or runs in a container.

    The system's Python is left where the script needs `sublet` and only Sublet's own environment has it.
    """
    if spec.python or spec.image:
        return spec
    names = (shutil.which(name, path=environment.get("PATH", "")) for name in NAMES)
    found = next((_look(path, spec.cwd) for path in names if path), None)
    if found is None or (spec.sdk and not found.active and not found.has_sublet):
        return spec
    return replace(spec, python=found.path)


def python_lines(spec: JobSpec) -> list[str]:
    """Lines on it at submit, and a warning where it is seen to lack what the script imports."""
    if spec.image:
        return ["python: that of the image"]
    named = _named(spec)
    path = named or spec.python
    if not path:
        return ["python: that of its nodes, or what setup makes there"]
    lines = [f"python: {path} ({'named by the command' if named else _active(spec)})"]
    found = _look(path, spec.cwd)
    if spec.sdk and found is not None and not found.has_sublet:
        lines.append(f"warning: {path} has no sublet, which the script imports; install it there, or let setup do so")
    return lines


def _active(spec: JobSpec) -> str:
    """That it was active here, and what of the job may yet choose another where it runs."""
    may = [name for name, there in (("setup", spec.setup), ("PATH in envs", "PATH" in spec.env)) if there]
    words = only(spec.argv)
    if any(word.startswith("PATH=") for word in spec.argv) or (words and Path(words[0]).name in SHELLS):
        may.append("a line of the command")
    return f"active here, unless {' or '.join(may)} chooses another" if may else "active here"


def _named(spec: JobSpec) -> str:
    """The path in the command, where one word of it is an interpreter's; "" for a plain `python`."""
    words = plain(spec.argv)
    if not words or "/" not in words[0] or not PYTHON.search(Path(words[0]).name):
        return ""
    return os.path.normpath(Path(spec.cwd) / words[0])  # of a link it is the link: a virtual environment is one


@cache
def _look(path: str, cwd: str) -> Interpreter | None:
    """None where it does not answer: it is of another machine, or no Python."""
    place = cwd if Path(cwd).is_dir() else "/"
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [path, "-c", LOOK], cwd=place, capture_output=True, text=True, check=True, timeout=ANSWERS_S
        )
        executable, active, has_sublet = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(executable, active, has_sublet) if os.path.isabs(executable) else None  # noqa: PTH117 - a text
