"""Names of a framework that are its own business: it may move them in any release, and then nothing here is sure.

What an integration uses of them is written down in a table. It is compared before anything is trained, so that another
version is refused with the name that moved, and never trains something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import version

from sublet.errors import InvalidValue

__all__ = ["Methods", "moved", "require_as_pinned"]

Methods = Mapping[str, tuple[str, ...]]  # the parameters that each is called with


def moved(owner: type, methods: Methods) -> list[str]:
    """What is no longer there, or no longer takes what it took."""
    found = []
    for name, parameters in methods.items():
        method = getattr(owner, name, None)
        if method is None:
            found.append(f"{owner.__name__}.{name}")
            continue
        takes = inspect.signature(method).parameters
        found += [f"{owner.__name__}.{name}({each})" for each in parameters if each not in takes]
    return found


def require_as_pinned(package: str, tested: str, owner: type, methods: Methods) -> None:
    """InvalidValue that names what moved; `tested` are the versions that all of it was tested with."""
    gone = moved(owner, methods)
    if gone:
        raise InvalidValue(package, f"{version(package)}, without {', '.join(gone)}", f"a version {tested}")
