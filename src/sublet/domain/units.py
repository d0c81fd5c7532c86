"""Units that are no base unit here: times are in seconds, sizes in bytes, unless a name says otherwise."""

from __future__ import annotations

MINUTE_S = 60.0
SECONDS_PER_H = 3600.0
DAY_S = 24 * SECONDS_PER_H
GB = 1e9
GIB = 1024.0**3
BYTES_PER_GBIT = GB / 8
