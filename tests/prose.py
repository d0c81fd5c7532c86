"""Figures of the prose: sentences of the documentation and of docstrings, by area, and words that are not used."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NOT_HELD", "Area", "areas_of", "docstrings_of", "sentences_of"]

MOST_WORDS = 40
MOST_WHO = 3  # in 10,000 words
WHO = re.compile(r"\b(?:who|whoever|whom|nobody)\b", re.IGNORECASE)
AVOIDED = re.compile(
    r"\b(?:anchors?|anchored|dice(?! loss)|hearken\w*|keepers?|purses?|strangers?|strikes?|struck|vouch\w*)\b"
    r"|\bwidths?\b(?! of (?:its|the) )",
    re.IGNORECASE,
)
RIDDLE = re.compile(r"(?:Nobody|What|Who|Whoever|Whom|Whose)\b")
NOT_HELD = (  # rewritten at present; to be emptied
    *("docs/architecture", "docs/reference/session.md", "docs/reference/contract.md"),
    *("docs/guides/make-a-script-elastic.md", "docs/guides/models-in-parts.md"),
    *("src/sublet/train", "src/sublet/integrations", "src/sublet/cli/work/script", "src/sublet/planning"),
    "src/sublet/policies",
)


@dataclass(frozen=True, slots=True)
class Area:
    """Prose of some files: each text with the place where it stands."""

    texts: list[tuple[str, str]]

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """Each sentence with its place."""
        return [(place, each) for place, text in self.texts for each in sentences_of(text)]

    def found(self, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
        """Each word that matches, with its place."""
        return [(place, word) for place, text in self.texts for word in pattern.findall(prose_of(text))]

    def figures(self) -> tuple[int, float, int, float, int, int]:
        """Words, mean and longest sentence, who per 10,000 words, avoided words, docstrings that begin as riddles."""
        lengths = [len(each.split()) for _, each in self.sentences]
        words = sum(lengths)
        who = 10_000 * len(self.found(WHO)) / max(words, 1)
        riddles = sum(bool(RIDDLE.match(text)) for place, text in self.texts if ".py:" in place)
        return words, words / max(len(lengths), 1), max(lengths, default=0), who, len(self.found(AVOIDED)), riddles


def prose_of(text: str) -> str:
    """The text without code, drawings, headings, addresses of links and names in backticks."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *>>>.*?(?=\n\s*\n|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?: {4,}|#|\|---).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"``[^`]*``|`[^`]*`", "code", text))


def sentences_of(text: str) -> list[str]:
    """Sentences of the prose; a cell or row of a table and a point of a list stand alone."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:- |\d\. |\|)|.*\S {2,}\S)|\s\|\s", prose_of(text))
    return [each for block in blocks for each in re.split(r"(?<=[.!?])\s+", " ".join(block.split())) if each]


def docstrings_of(text: str) -> Iterator[tuple[int, str]]:
    """Each docstring of a module with its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said:
                yield getattr(node, "lineno", 1), said


def areas_of(tree: Path, *, held: bool = False) -> dict[str, Area]:
    """Folders of `docs`, packages of `src` and `lab`; with `held`, without the places that are not held yet."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    pages = [*(tree / "docs").rglob("*.md"), *tree.glob("*.md")]
    modules = [path for root in ("src/sublet", "lab/src/sublet_lab") for path in (tree / root).rglob("*.py")]
    for path in sorted([*pages, *modules]):
        place = path.relative_to(tree)
        if "archive" in place.parts or (held and any(place.is_relative_to(each) for each in NOT_HELD)):
            continue
        folders = place.parent.parts
        deep = 4 if {"runtime", "cli"} & set(folders) else 3
        area = "/".join(folders[:deep]) or "."
        text = path.read_text(encoding="utf-8")
        texts = [(f"{place}:{line}", said) for line, said in docstrings_of(text)] if path.suffix == ".py" else None
        found[area] += [(place.as_posix(), text)] if texts is None else texts
    return {area: Area(texts) for area, texts in found.items()}
