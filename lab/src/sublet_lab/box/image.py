"""The base of all hosts: this machine's programs, our Python and its packages, read-only, and files to add.

Nothing else of this machine is there: a host has what is named here, and a filesystem in memory for the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import sublet
import sublet_lab

PACKAGES = ("site-packages", "dist-packages")
SOURCES = [str(Path(each.__file__ or "").parents[1]) for each in (sublet, sublet_lab)]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")


@dataclass(frozen=True, slots=True)
class Image:
    """`files` are put into every host, by path; `env` is what everything there starts with."""

    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    shown: tuple[str, ...] = ()  # folders of this machine that are there, too
    sublet: bool = True  # our own code is there; else it has to come from somewhere

    def paths(self) -> list[str]:
        """Visible paths of this machine; none within another."""
        packages = [path for path in sys.path if Path(path).name in PACKAGES]  # not the user's own folder
        python = (
            sys.prefix,
            sys.base_prefix,
            sys.exec_prefix,
            sys.base_exec_prefix,
            *packages,
            *(SOURCES if self.sublet else []),
        )
        return _outermost(path for path in (*SYSTEM, *python, *self.shown) if Path(path).is_dir())


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[Path] = []
    for path in sorted({Path(path) for path in paths}, key=lambda each: len(each.parts)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return [str(path) for path in kept]
