"""Every command that README, tutorial and guides show: found by the form of their blocks, not by a list.

A block of a shell is commands, with comments. A block of a terminal is commands behind a prompt, each with what it
says; one that says `error:` is expected to fail. In sentences, `sublet ...` between backticks is a mention: with ` -- `
it is a whole command, else a verb with some of its options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELLS = ("bash", "sh", "shell", "zsh")
PROMPT = re.compile(r"[$#] (?=\S)")
MENTION = re.compile(r"`(sublet [^`]+)`")
ALTERNATIVE = re.compile(r"# or: (sublet [^;]+)")  # in the comment behind a command


@dataclass(frozen=True, slots=True)
class Command:
    """`line` counts from 1; a command whose `said` begins with an error is to fail."""

    line: int
    text: str
    fails: bool = False
    mention: bool = False

    @property
    def words(self) -> list[str]:
        """Without comments."""
        return shlex.split(self.text, comments=True)

    @property
    def program(self) -> str:
        """`sublet` however it is called."""
        return Path(self.words[0]).name

    @property
    def plain(self) -> str:
        """As it is typed, without comments and spaces that say nothing."""
        return " ".join(re.sub(r"(^|\s)#.*", "", self.text).split())


def commands_of(text: str) -> list[Command]:
    """Of a page, in the order in which they stand there."""
    found: list[Command] = []
    for fence in FENCE.finditer(text):
        first = text.count("\n", 0, fence.start()) + 2
        lines = fence[3].split("\n")[:-1]
        if fence[2] in SHELLS or (not fence[2] and lines and lines[0].startswith("sublet ")):
            found += _typed(enumerate(lines, first))
        else:
            found += _prompted(list(enumerate(lines, first)), root=fence[2] == "console")
    prose = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    for mention in MENTION.finditer(prose):
        line = prose.count("\n", 0, mention.start()) + 1
        found += [Command(line, one, mention=" -- " not in one) for one in _alternatives(mention[1])]
    return sorted(found, key=lambda command: command.line)


def _typed(lines: Iterator[tuple[int, str]]) -> Iterator[Command]:
    for number, line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            yield from _each(number, line.strip())


def _prompted(lines: list[tuple[int, str]], *, root: bool) -> Iterator[Command]:
    for at, (number, line) in enumerate(lines):
        if PROMPT.match(line) and (root or line.startswith("$ sublet")):
            said = lines[at + 1][1] if at + 1 < len(lines) else ""
            yield from _each(number, line[2:], fails=said.startswith("error:"))


def _each(number: int, text: str, *, fails: bool = False) -> Iterator[Command]:
    """The commands of one line, and the one that its comment offers instead."""
    code, *comment = re.split(r"(?=(?:^|\s)# )", text, maxsplit=1)
    *before, last = code.split("; ")
    yield from (Command(number, one.strip()) for one in before)
    yield Command(number, last.strip(), fails)  # what was said is the last one's
    for offer in comment:
        yield from (Command(number, one[1].strip()) for one in ALTERNATIVE.finditer(offer.strip()))


def _alternatives(text: str) -> list[str]:
    """`sublet cancel JOB | sublet pause JOB` are two."""
    return [part.strip() for part in text.replace(" ...", "").split(" | ")]
