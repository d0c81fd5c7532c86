"""The module that makes certificates needs an extra; without it there is a message."""

from __future__ import annotations

from types import ModuleType

from sublet.errors import MissingExtra


def certificates() -> ModuleType:
    """The module that makes them; MissingExtra where it cannot."""
    try:
        from sublet.runtime.identity import certificates as found
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("cryptography"):
            raise
        raise MissingExtra("cryptography, which lines between machines need,", "tls") from None
    return found
