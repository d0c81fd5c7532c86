"""Text from outside, fit for one line of a log."""

from __future__ import annotations

__all__ = ["LONGEST_TEXT", "LONGEST_WORDS", "plain_text", "shortened"]

LONGEST_TEXT = 200  # characters: enough to see what it was, too few to fill a disk with
LONGEST_WORDS = 8_192  # characters of a peer's own words: as many as the last lines of an output may have


def plain_text(text: object) -> str:
    """One line: whatever is not printable is escaped, and the rest of a long one is left out."""
    whole = str(text)
    cut = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole[: LONGEST_TEXT + 1])
    return cut if len(cut) <= LONGEST_TEXT else cut[: LONGEST_TEXT - 3] + "..."


def shortened(text: str, most: int = LONGEST_WORDS) -> str:
    """As it is, or its begin and its end, with how much is left out between them.

    It is cut between lines, or between words where it has one line: half a secret would not be hidden.

    >>> shortened("what was " + "very " * 10 + "long", 20)
    'what was ... 46 characters left out ... very long'
    """
    if len(text) <= most:
        return text
    begin, end = text[: most // 2], text[-(most // 2) :]
    between = "\n" if "\n" in begin and "\n" in end else " "
    begin, end = begin.rpartition(between)[0], end.partition(between)[2]
    left_out = f"... {len(text) - len(begin) - len(end):,} characters left out ..."
    return between.join(part for part in (begin, left_out, end) if part)
