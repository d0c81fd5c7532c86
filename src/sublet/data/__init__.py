"""The files that ship with Sublet, and where the others are read from.

Only data whose licence allows it is bundled. Data without a licence is read from the folder that the environment
variable SUBLET_DATA names (default: `../shared/data` beside the current directory's project).
"""

from __future__ import annotations

import os
from pathlib import Path

from sublet.errors import MissingData

__all__ = ["bundled", "external", "locate"]

_HERE = Path(__file__).parent


def bundled(relative: str) -> Path:
    """A file inside the package, for example `bundled("jobs/philly.csv.gz")`."""
    return _HERE / relative


def external() -> Path:
    """The folder with data that is not ours to ship; it need not exist."""
    return Path(os.environ.get("SUBLET_DATA", "../shared/data"))


def locate(relative: str) -> Path:
    """The bundled file if there is one, else the external one; MissingData names both remedies."""
    for path in (bundled(relative), external() / relative):
        if path.exists():
            return path
    how = "'sublet data' says how to get it (it is not ours to ship); or give a path, or set SUBLET_DATA to its folder"
    raise MissingData(relative, hint=how)
