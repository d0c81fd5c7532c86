"""Lines to look at, as `convert` and `inspect` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    class Look(Protocol):
        """One kind of thing, with the lines that show it."""

        @property
        def lines(self) -> tuple[int, ...]:
            """Lines of the script, counted from 1."""

        @property
        def what(self) -> str:
            """It is."""

        @property
        def do(self) -> str:
            """In its place."""


def look_lines(looks: Iterable[Look], title: str) -> list[str]:
    """Nothing if there is nothing."""
    found = [
        f"  - line{'s' * (len(look.lines) > 1)} {', '.join(map(str, look.lines))}: {look.what}\n    next: {look.do}"
        for look in looks
    ]
    return [title, *found] if found else []
