"""What a job may ask for and nodes cannot do yet: the one list of it. Better refused than run without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sublet.errors import InvalidValue
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["asks_too_much", "refuse_unready"]

# By the key of a job file: whether the job asks for it, and what to do instead.
UNREADY: Final[Mapping[str, tuple[Callable[[JobSpec], bool], str]]] = {
    "resources.image_id": (lambda spec: bool(spec.image), "left out, if the nodes have what setup and run need"),
}


def asks_too_much(spec: JobSpec) -> tuple[str, ...]:
    """The keys for which a job is not taken."""
    return tuple(key for key, (asks, _) in UNREADY.items() if asks(spec))


def refuse_unready(spec: JobSpec) -> None:
    """A job that would run without something that it asks for is not taken."""
    for key in asks_too_much(spec):
        raise InvalidValue(key, "what it says", f"{UNREADY[key][1]} (nodes cannot do this yet)")
