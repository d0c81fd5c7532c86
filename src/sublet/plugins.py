"""Names to objects, registered under a Sublet entry-point group, with help for typos; and extras that are missing."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from importlib.util import find_spec

from sublet.errors import MissingExtra, UnknownName

SERVER = ("fastapi", "prometheus_client", "pydantic", "uvicorn", "yaml")  # modules of the extra `server`


@cache
def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=group)}


def names(group: str) -> list[str]:
    """All names registered under `group`, sorted."""
    return sorted(_entry_points(group))


def load(group: str, name: str) -> object:
    """The object registered as `name`, imported on first use; a typo gets a suggestion."""
    points = _entry_points(group)
    if name not in points:
        kind = group.rpartition(".")[2].rstrip("s").replace("ie", "y") or group
        raise UnknownName(kind, name, points)
    return points[name].load()


def load_from_lab(group: str, name: str, what: str) -> object:
    """A part of sublet-lab; MissingExtra says how to get `what` it is called."""
    if name not in _entry_points(group):
        raise MissingExtra(f"sublet-lab, with which {what!r} comes,", "lab", place="./{}")
    return load(group, name)


def refuse_without(extra: str, *modules: str) -> None:
    """MissingExtra names the first of these modules that is not installed."""
    for name in modules:
        if find_spec(name) is None:
            raise MissingExtra(name, extra)
