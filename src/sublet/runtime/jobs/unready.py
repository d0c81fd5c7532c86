"""What a job may ask for and nodes cannot do yet: the one list of it. Better refused than run without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sublet.errors import InvalidValue
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["refuse_unready"]

# By the key of a job file: whether the job asks for it, and what to do instead.
UNREADY: Final[Mapping[str, tuple[Callable[[JobSpec], bool], str]]] = {
    "setup": (lambda spec: bool(spec.setup), "left out: do it before you submit, or at the start of run"),
    "file_mounts": (lambda spec: bool(spec.mounts), "left out: workers see the files of the controller's machine"),
    "run": (lambda spec: bool(spec.per_node), "a command that can run once per GPU: torchrun train.py, or a script"),
}


def refuse_unready(spec: JobSpec) -> None:
    """A job that would run without something that it asks for is not taken."""
    for key, (asks, instead) in UNREADY.items():
        if asks(spec):
            raise InvalidValue(key, "what it says", f"{instead} (nodes cannot do this yet)")
