"""Question to the process that simulates futures."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from sublet.runtime.controller_api.trials import Standing

GRACE_S = 10.0  # beyond the limit of a question


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How far to look, how often, over which record, and with how much more money."""

    hours: float
    futures: int
    market: str = ""  # "" = what the provider replays, else the longest record
    more_usd_per_h: float = 0.0
    more_usd: float = 0.0
    seed: int = 0
    limit_s: float = 30.0  # wall


def packed(standing: Standing, question: Question) -> bytes:
    """For the pipe to our own child: policies and speeds are objects, of plug-ins too."""
    return pickle.dumps((standing, question))


def unpacked(sent: bytes) -> tuple[Standing, Question]:
    """The message of our own parent, the only writer of that pipe."""
    standing, question = pickle.loads(sent)  # noqa: S301 - as above
    return standing, question
