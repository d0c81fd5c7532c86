"""Mistakes in a job file: all of them at once, each with its line, its value and what is allowed there."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from sublet.errors import BadInput, MissingExtra
from sublet.runtime.jobs.bounds import NAME
from sublet.runtime.jobs.schema import JobFile, keys_at
from sublet.runtime.jobs.skypilot import FOREIGN, translate
from sublet.runtime.jobs.spec import HIDDEN

LONGEST_FILE = 1 << 20  # letters; job files are pages, not books
MOST_VALUES = 20_000  # aliases expanded: a bomb of nested aliases is small on disk and huge in memory
DEEPEST = 40
VERBATIM = ("envs", "secrets")  # a variable's value is the text as it stands: 010 stays 010, yes stays yes

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The values, and the line at which each begins."""

    values: Mapping[str, Any]
    lines: Mapping[Path, int]
    twins: Sequence[tuple[Path, int]] = ()  # keys that are there again, and where; the first counts

    def line_of(self, path: Path) -> int | None:
        """The line of the value, or of the nearest one around it."""
        for length in range(len(path), 0, -1):
            if (line := self.lines.get(path[:length])) is not None:
                return line
        return self.lines.get(())


def document_from_text(text: str, *, source: object) -> Document:
    """A mapping at the top, or BadInput with the line."""
    try:
        import yaml
    except ImportError:
        raise MissingExtra("PyYAML, which reads job files,", "server") from None
    if len(text) > LONGEST_FILE:
        raise BadInput(source, f"it has {len(text):,} letters; a job file has at most {LONGEST_FILE:,}")
    try:
        loader = yaml.SafeLoader(text)
        try:
            reader = _Reader(source, loader)
            values = reader.only_job(_nodes(loader))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = f"not YAML: {error.problem or error.context or 'it cannot be read'}"
        raise BadInput(source, why, line=None if mark is None else mark.line + 1, hint=_advice(why)) from None
    except yaml.reader.ReaderError as error:
        why = f"not YAML: the letter number {error.character} is not allowed"
        raise BadInput(source, why, line=text.count("\n", 0, error.position) + 1, hint="remove it") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(source, f"not YAML: {error}".replace("\n", " ")) from None
    if not isinstance(values, dict):
        raise BadInput(source, "the top of a job file is a list of 'key: value' lines", line=1, hint="begin with run:")
    return Document(values, reader.lines, tuple(reader.twins))


def _advice(why: str) -> str:
    if "\\t" in why or "tab" in why:
        return "indent with spaces, not tabs"
    return "check the indentation and the quotes there"


def _nodes(loader: Any) -> Iterator[Any]:
    """Nodes of each document that holds something."""
    while loader.check_node():
        node = loader.get_node()
        if node is not None and not node.tag.endswith(":null"):
            yield node


class _Reader:
    def __init__(self, source: object, loader: Any) -> None:
        self.source, self.loader = source, loader
        self.lines: dict[Path, int] = {}
        self.twins: list[tuple[Path, int]] = []
        self.count = 0

    def only_job(self, nodes: Iterator[Any]) -> Any:
        """The values of the file. A document without a command before it belongs to it, as in SkyPilot's pipelines."""
        found: list[tuple[int, Any]] = []
        for node in nodes:
            self.lines, self.twins = {}, []  # those of the last one count
            found.append((node.start_mark.line + 1, self.value(node, ())))
        if not found:
            raise BadInput(self.source, "it is empty", hint="sublet schema says what a job file holds")
        head = found.pop(0)[1] if len(found) > 1 and isinstance(found[0][1], dict) and "run" not in found[0][1] else {}
        if len(found) == 1:
            return {**head, **found[0][1]} if head and isinstance(found[0][1], dict) else found[0][1]
        how = "at the same time" if "execution" in head else "one after the other"
        why = f"it holds {len(found)} jobs, which SkyPilot runs {how}: Sublet takes one job from a file"
        hint = "put each into a file of its own, and submit it when it may run"
        raise BadInput(self.source, why, line=found[1][0], hint=hint)

    def value(self, node: Any, path: Path) -> Any:
        import yaml

        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.count += 1
        if self.count > MOST_VALUES or len(path) > DEEPEST:
            raise BadInput(self.source, "it has too many values, or too deep ones", line=line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
        if path and path[0] in VERBATIM and len(path) > 1 and not node.tag.endswith(":null"):
            return str(node.value)
        return self.loader.construct_object(node, deep=True)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        import yaml

        found: dict[str, Any] = {}
        for key_node, item in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise BadInput(self.source, "a key must be a word", line=line)
            key = str(key_node.value)
            if key == "<<":
                raise BadInput(self.source, "'<<' (merge) is not supported", line=line, hint="write the keys out")
            if key in found:
                self.twins.append(((*path, key), line))
                continue
            found[key] = self.value(item, (*path, key))
            self.lines[*path, key] = line
        return found


MOST_SHOWN = 50  # mistakes at once: all of any hand-written file
LONGEST_VALUE = 60  # letters of a wrong value that are repeated
HINT = "sublet schema shows every key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that is wrong."""

    path: tuple[Any, ...]
    text: str
    missing: bool = False
    line: int | None = None  # None = where its key is
    advice: str = ""  # the next step, where it is another than to look at the schema


def validate_document(document: Document) -> tuple[JobFile | None, list[Mistake], list[str]]:
    """The file as pydantic reads it, its mistakes, and what is noted of it.

    A wrong part is left out and the rest read again, until it can be read: some mistakes are only looked for in a file
    that is right in itself. None where nothing can be left out.
    """
    values, notes = translate(document.values)
    mistakes = _find_odd_keys(values, document)
    for odd in mistakes:
        if odd.line is None:
            _leave_out(values, odd.path)
    met: set[tuple[Any, ...]] = set()
    for _ in range(MOST_SHOWN):
        try:
            return JobFile.model_validate(values), mistakes, notes
        except ValidationError as error:
            faults = {_path(fault, document): fault for fault in reversed(error.errors())}  # one for each place
        lighter = False
        for path, fault in faults.items():
            missing = fault["type"] == "missing"
            if path not in met:  # else it is missing because it was left out
                met.add(path)
                mistakes.append(Mistake(path=path, text=_sentence(path, fault), missing=missing))
            if missing and path == ("run",):
                values["run"], lighter = "true", True
            else:
                lighter |= _leave_out(values, path[:-1] if missing else path)
        if not lighter:
            break
    return None, mistakes, notes


def as_error(mistakes: Sequence[Mistake], document: Document, source: object) -> BadInput:
    """All mistakes as one error: the first in the file first, what is missing last (a typo may be why)."""
    placed = [replace(each, line=each.line or document.line_of(each.path)) for each in mistakes]
    ordered = sorted(placed, key=lambda each: (each.missing, each.line or 0))
    alone = len(ordered) == 1
    texts = [each.text if alone or not each.advice else f"{each.text}: {each.advice}" for each in ordered]
    lines = [each.line for each in ordered]
    more = [
        f"\n  also line {at or 1}: {text}" for at, text in zip(lines[1:MOST_SHOWN], texts[1:MOST_SHOWN], strict=True)
    ]
    if len(texts) > MOST_SHOWN:
        more.append(f"\n  and {len(texts) - MOST_SHOWN} more")
    hint = ordered[0].advice if alone and ordered[0].advice else HINT
    return BadInput(source, texts[0] + "".join(more), line=lines[0], hint=hint)


def shorten(value: object) -> object:
    """A value as an error may repeat it."""
    text = value if isinstance(value, str) else None
    if text is not None:
        return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."
    if isinstance(value, list) and len(repr(value)) <= LONGEST_VALUE:
        return value
    if isinstance(value, dict | list):
        return f"{len(value)} {'keys' if isinstance(value, dict) else 'values'}"
    return value if len(repr(value)) <= LONGEST_VALUE else repr(value)[:LONGEST_VALUE] + "..."


def _find_odd_keys(values: Mapping[str, Any], document: Document) -> list[Mistake]:
    """Keys that are there twice, and those of SkyPilot, dstack or a later Sublet before pydantic calls them unknown."""
    found = [
        Mistake(path=path, text=f"{'.'.join(map(str, path))} is there twice", line=line, advice="keep one of them")
        for path, line in document.twins
    ]
    for place, foreign in FOREIGN.items():
        inside: Any = values
        for key in place:
            inside = inside.get(key) if isinstance(inside, dict) else None
        for key in inside if isinstance(inside, dict) else ():
            if key in foreign:
                path = (*place, key)
                text = f"{'.'.join(path)} is not supported by Sublet"
                found.append(Mistake(path=path, text=text, advice=foreign[key]))
    return found


def _leave_out(values: Any, path: Sequence[Any]) -> bool:
    """Take the key at `path` away, or the whole list that it is in; False where there is none."""
    inside = values
    for at, key in enumerate(path):
        if not isinstance(inside, dict) or key not in inside:
            return False
        if at == len(path) - 1 or not isinstance(inside[key], dict):
            del inside[key]
            return True
        inside = inside[key]
    return False


def _path(fault: Any, document: Document) -> tuple[Any, ...]:
    """The place in the file: pydantic's place without its additions for unions and keys."""
    path: tuple[Any, ...] = ()
    for part in fault["loc"]:
        if (*path, part) not in document.lines:
            return (*path, part) if fault["type"] == "missing" or part == "total" else path
        path = (*path, part)
    return path


def _sentence(path: tuple[Any, ...], fault: Any) -> str:
    where = ".".join(str(shorten(str(part))) for part in path) or "the file"
    if fault["type"] == "extra_forbidden":
        known = keys_at(path[:-1])
        close = difflib.get_close_matches(str(path[-1]), known, n=2, cutoff=0.5)
        advice = f"did you mean {' or '.join(close)}?" if close else f"known here: {', '.join(known)}"
        return f"{where} is no key of a job file; {advice}"
    if fault["type"] == "missing":
        return f"{where} is missing"
    value = HIDDEN if path[:1] in {("secrets",), ("envs",)} else shorten(fault["input"])
    return f"{where} = {value!r} is not allowed; it must be {_allowed(fault)}"


def _allowed(fault: Any) -> str:
    """Pydantic's message in our words."""
    message = str(fault["msg"])
    for before in ("Value error, ", "Input should be "):
        message = message.removeprefix(before)
    if fault["type"] == "model_type":
        return "a group of keys"
    if fault["type"] == "string_too_short":
        return "a command" if fault["loc"] == ("run",) else "some text"
    if fault["type"] == "string_pattern_mismatch":
        return NAME if fault["loc"][0] == "name" else "a name of letters, digits and underscores"
    return message
