"""Clocks that a test sets."""

from __future__ import annotations

from collections.abc import Callable


class WallOf:
    """A wall whose time is that of `monotonic`; people's clock shows `unix_s` until it is changed."""

    def __init__(self, monotonic: Callable[[], float], *, unix_s: float = 1.75e9) -> None:
        self._monotonic, self.unix_s = monotonic, unix_s

    def monotonic(self) -> float:
        """As the test says."""
        return self._monotonic()

    def unix(self) -> float:
        """As the test says."""
        return self.unix_s

    def since_boot(self) -> tuple[str, float]:
        """Unknown."""
        return "", 0.0
