"""Clocks that a test sets."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["WallOf"]


class WallOf:
    """A wall whose time is whatever `monotonic` says; people's clock shows `unix_s` as long as nobody changes it."""

    def __init__(self, monotonic: Callable[[], float], *, unix_s: float = 1.75e9) -> None:
        self._monotonic, self.unix_s = monotonic, unix_s

    def monotonic(self) -> float:
        """As the test says."""
        return self._monotonic()

    def unix(self) -> float:
        """As the test says."""
        return self.unix_s

    def since_boot(self) -> tuple[str, float]:
        """Nobody knows."""
        return "", 0.0
