"""`resources.image_id`: the container that a job runs in, where it names one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sublet.errors import InvalidValue

__all__ = ["image_of"]

FIELD: Final = "resources.image_id"
CONTAINER, SYSTEM = "docker:", "skypilot:"
ENGINE: Final = "docker or podman of its nodes runs it; a node that has neither ends the job with that"
KEPT: Final = "the system of the nodes is the one that the controller rents them with"


def image_of(given: Any, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """The container's image, "" for none, and what is to be noted; an image of another machine is refused."""
    from sublet.runtime.jobs.mounts import with_variables

    if given is None:
        return "", []
    texts = list(given.values()) if isinstance(given, Mapping) else given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidValue(FIELD, str(given), "docker: and the name of an image")
    filled = [with_variables(FIELD, text, variables).strip() for text in texts]
    if all(text.startswith(SYSTEM) for text in filled):
        return "", [f"{FIELD} = {', '.join(filled)}: {KEPT}"]
    if len(set(filled)) > 1:
        raise InvalidValue(FIELD, ", ".join(filled), "one image for all places: the job runs in any of them")
    name = filled[0].removeprefix(CONTAINER)
    if not filled[0].startswith(CONTAINER) and ("/" not in name or name.startswith(("projects/", "ocid"))):
        allowed = "docker: and an image; that of a machine is set for all nodes, by the provider's settings"
        raise InvalidValue(FIELD, filled[0], allowed)
    if not name or any(letter.isspace() for letter in name) or name.startswith("-"):
        raise InvalidValue(FIELD, filled[0], "docker: and the name of an image")
    return name, [f"{FIELD} = {name}: {ENGINE}"]
