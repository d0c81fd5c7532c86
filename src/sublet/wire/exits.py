"""Exit codes by which a worker tells its controller how it ended; every other code is the script's own."""

from __future__ import annotations

__all__ = ["EXIT_LEFT", "EXIT_LOST", "EXIT_MEMORY"]

EXIT_LEFT = 83  # it left its group as it was told to
EXIT_MEMORY = 84  # a step of it did not fit into memory: it is started again, and takes fewer samples at a time
EXIT_LOST = 75  # without word any more what to do (sysexits.h: EX_TEMPFAIL)
