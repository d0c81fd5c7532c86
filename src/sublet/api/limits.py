"""How much may be said at once, for both ends: a client need not import the server to know it."""

from __future__ import annotations

LONGEST_BODY = 1 << 20  # bytes: a job is a page
MOST_ASKED = 8000  # names of parts in one question
MOST_BYTES = 700_000  # of parts in one request, before they are written as text
