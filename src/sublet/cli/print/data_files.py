"""Whether a data file ships with Sublet, and if it does not, whether it is here."""

from __future__ import annotations

__all__ = ["describe_place", "is_present"]


def is_present(file: str) -> bool:
    """Whether `file`, named from the data folder, can be read here."""
    from sublet import data

    return data.bundled(file).exists() or (data.external() / file).exists()


def describe_place(file: str, *, bundled: bool) -> str:
    """Origin of its file, for a table."""
    if bundled:
        return "bundled"
    return "read from SUBLET_DATA" if is_present(file) else "read from SUBLET_DATA (absent)"
