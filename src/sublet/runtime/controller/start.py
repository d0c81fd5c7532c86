"""One start of a script without a session that has ended, and whose work is unknown."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Start"]


class Start(NamedTuple):
    """Times are of the cloud; its work is taken to be even over them."""

    began_s: float
    wrote_s: float | None  # when it was last seen to write
    ended_s: float
    grains: int

    def grains_by(self, at_s: float) -> int:
        """What it had cost by then."""
        if at_s >= self.ended_s:
            return self.grains
        return round(self.grains * max(0.0, at_s - self.began_s) / max(self.ended_s - self.began_s, 1e-9))
