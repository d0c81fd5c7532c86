"""The time at the cloud, by the dates of its own answers: people set the clock of our machine as they like.

EC2 says when an instance began and ended by its own clock. A bill that compares this with ours is wrong by the error of
ours: an hour, if it is set back by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from sublet.machine.wall import WALL, Wall

__all__ = ["ServerTime"]

AGREES_S = 3.0  # answers have whole seconds, and take one or two to come
BELIEVED_S = 600.0  # that an answer counts for: our monotonic clock may run a little faster than EC2's


class ServerTime:
    """An answer was made before it came, so that the one which is ahead of all others is the nearest to the truth."""

    def __init__(self, wall: Wall = WALL) -> None:
        self._wall = wall
        self._ahead_s = -math.inf  # of EC2's clock before our monotonic one
        self._heard_s = -math.inf

    def unix(self) -> float:
        """Seconds since 1970 at EC2; by our own clock, which is finer, unless the answers say that it is wrong."""
        ours_s, theirs_s = self._wall.unix(), self._wall.monotonic() + self._ahead_s
        return theirs_s if math.isfinite(theirs_s) and abs(ours_s - theirs_s) > AGREES_S else ours_s

    def hear(self, answer: Any) -> None:
        """An answer of boto3, or the one in an error of it; one without a date says nothing."""
        metadata = answer.get("ResponseMetadata") if isinstance(answer, Mapping) else None
        headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
        date = headers.get("date") if isinstance(headers, Mapping) else None
        if not date:
            return
        try:
            found = parsedate_to_datetime(date)
        except (TypeError, ValueError):
            return
        now_s = self._wall.monotonic()
        ahead_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() - now_s
        if ahead_s > self._ahead_s or now_s - self._heard_s > BELIEVED_S:
            self._ahead_s, self._heard_s = ahead_s, now_s
