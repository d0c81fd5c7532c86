"""Checks of a framework's private names, which may change in any release.

An integration lists the names that it uses in a table. They are compared before training, so that another version is
refused with the name that changed, and never trains something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import version

from sublet.errors import InvalidValue

__all__ = ["Methods", "moved", "require_as_pinned"]

Methods = Mapping[str, tuple[str, ...]]  # the parameters that each is called with


def moved(owner: type, methods: Methods) -> list[str]:
    """Names or parameters that no longer exist."""
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
    """InvalidValue that names them; `tested` are the versions that all of it was tested with."""
    gone = moved(owner, methods)
    if gone:
        raise InvalidValue(package, f"{version(package)}, without {', '.join(gone)}", f"a version {tested}")
