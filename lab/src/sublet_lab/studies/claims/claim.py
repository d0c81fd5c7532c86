"""A claim: measure, rival, knowledge of both, source of the figure, data, and the checks that show it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class Source(StrEnum):
    """The source of the other side's figure."""

    PAPER = "paper"
    RERUN = "rerun of the authors' code"
    PROTOTYPE = "our prototype"
    REBUILD = "our rebuild"
    ITSELF = "-"  # there is no other side


class Data(StrEnum):
    """The data of the runs, as to the constants of the policies."""

    TUNED = "tuned on"  # constants were chosen with these in view
    HELD_OUT = "held out"
    FREE = "nothing tuned"  # there is no constant that was chosen on data


class Take(StrEnum):
    """Which of the checks that a pattern names is told."""

    ONLY = "only"
    LEAST = "least"
    MOST = "most"
    HELD = "held"  # none of them: how many hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of the claim: the check of that name, or the least or most of those that match a pattern."""

    check: str  # `*` stands for any text
    label: str = ""
    take: Take = Take.ONLY
    digits: int = 2

    def matches(self, name: str) -> bool:
        """Whether a check of this name is meant."""
        return fnmatchcase(name, self.check)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row of the README."""

    what: str
    study: str
    figures: tuple[Figure, ...]
    over: str = ""
    knows: str = ""  # what each side knows, ours first
    source: Source = Source.ITSELF
    data: Data = Data.FREE

    @property
    def command(self) -> str:
        """The command that runs it anew."""
        return f"sublet study {self.study}"
