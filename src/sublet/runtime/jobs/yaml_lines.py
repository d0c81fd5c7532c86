"""YAML as plain values with the line of each, so that an error can say where. Safe: no objects, no bombs, no twins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.errors import BadInput, MissingExtra

__all__ = ["Document", "document_from_text"]

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
