"""Ray's errors in our own words, and the names of Ray that are not public: nothing else here uses one.

Every call to Ray is made within `calling_ray`:

    it is dead, says Ray           StewardGone    an actor died, or can never be placed
    one of ours, from an actor     itself         what a steward raised on purpose
    not allowed                    NoAccess       a token of Ray's that is missing or wrong
    everything else                NoAnswer       out of memory, a time-out, a lost object, a head that is away: it may
                                                  have been done, or not, and asking again does no harm
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sublet.errors import MissingExtra, NoAccess, NoAnswer, StewardGone, SubletError
from sublet.wire.text import plain_text

__all__ = ["calling_ray", "free_resources", "gcs_client", "import_ray"]


def free_resources(ray: Any) -> Mapping[str, Mapping[str, float]]:
    """Free resources of each node, by its id: the public call adds all nodes up."""
    found: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()  # noqa: SLF001 - above
    return found


def gcs_client(ray: Any) -> Any:
    """A client of Ray's head, as Ray Serve has one: nothing public tells which nodes are drained."""
    return ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)  # noqa: SLF001 - above


def import_ray() -> Any:
    """The library, which is an extra."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


@contextmanager
def calling_ray(what: str) -> Iterator[None]:
    """Errors of Ray within come out as errors of our own; `what` was asked of it."""
    try:
        yield
    except Exception as error:
        ours = _ours(what, error)
        if ours is error:
            raise
        raise ours from error


def _ours(what: str, error: Exception) -> SubletError:
    kinds = import_ray().exceptions
    why = plain_text(f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}")
    if isinstance(error, kinds.RayTaskError) and isinstance(error.cause, SubletError):
        return error.cause  # Ray's own looks like one of ours, but is a page long
    if isinstance(error, SubletError):
        return error
    if isinstance(error, (kinds.ActorDiedError, kinds.ActorUnschedulableError)):
        return StewardGone(what, why)
    if (denied := getattr(kinds, "AuthenticationError", None)) is not None and isinstance(error, denied):
        return NoAccess(what, why, hint="give this process the token of the Ray cluster (RAY_AUTH_TOKEN)")
    if isinstance(error, kinds.OutOfMemoryError):
        why = f"Ray's memory monitor ended it, the machine is short of memory: {why}"
    return NoAnswer(what, why)
