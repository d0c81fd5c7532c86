"""Text of strangers, fit for one line of a log."""

from __future__ import annotations

__all__ = ["LONGEST_TEXT", "plain_text"]

LONGEST_TEXT = 200  # characters: enough to see what it was, too few to fill a disk with


def plain_text(text: object) -> str:
    """One line: whatever is not printable is escaped, and the rest of a long one is left out."""
    whole = str(text)
    cut = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole[: LONGEST_TEXT + 1])
    return cut if len(cut) <= LONGEST_TEXT else cut[: LONGEST_TEXT - 3] + "..."
