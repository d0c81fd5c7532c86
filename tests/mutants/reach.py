"""Which tests come by a line: each is run once under a tracer, and the CPU time that it takes is written down."""

from __future__ import annotations

import ast
import json
import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType

from tests.mutants.draw import files_of, path_of

__all__ = ["Reach", "Tracer"]

LOOKED_AT = 40  # calls of a function in one test: its lines are seen by then, or the test is not asked about them


@dataclass(slots=True)
class Reach:
    """What is kept between runs. Lines are counted from their function: changes elsewhere in a file do not matter."""

    cpu_s: dict[str, float] = field(default_factory=dict)  # by test; those that passed
    _tests: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    @classmethod
    def read(cls, path: Path) -> Reach:
        """Nothing, if there is no file."""
        found = cls()
        if path.exists():
            told = json.loads(path.read_text(encoding="utf-8"))
            names = list(told["cpu_s"])
            found.cpu_s = told["cpu_s"]
            for file, places in told["reached"].items():
                for place, at in places.items():
                    found._tests[file][place] = [names[index] for index in at]
        return found

    def write(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        at = {name: index for index, name in enumerate(self.cpu_s)}
        reached = {
            file: {place: [at[name] for name in names] for place, names in places.items()}
            for file, places in self._tests.items()
        }
        path.write_text(json.dumps({"cpu_s": self.cpu_s, "reached": reached}) + "\n", encoding="utf-8")

    def forget(self, others_than: Collection[str]) -> None:
        """Tests that are no more."""
        for test in self.cpu_s.keys() - set(others_than):
            del self.cpu_s[test]
        for places in self._tests.values():
            for place, names in places.items():
                places[place] = [name for name in names if name in self.cpu_s]

    def add(self, test: str, cpu_s: float, lines: Iterable[tuple[str, int]]) -> None:
        """A test that passed, and the lines of files below src/sublet that it came by."""
        self.cpu_s[test] = cpu_s
        for file, place in {(file, _place(file, line)) for file, line in lines}:
            self._tests[file][place].append(test)

    def tests_of(self, file: str, line: int, patience_s: float) -> list[str]:
        """Those of the module's own folder first, the quickest first, for as long as patience lasts.

        A line that is run on import has all that come by any line of the file.
        """
        places = self._tests[file]
        asked = (
            list(places) if _place(file, line).startswith("+") else [_place(file, each) for each in _lines(file, line)]
        )
        names = {name for place in asked for name in places.get(place, ())}
        own = f"tests/unit/{file.rpartition('/')[0]}"
        found, spent_s = [], 0.0
        for name in sorted(names, key=lambda name: (not name.startswith(own), self.cpu_s[name])):
            if spent_s + self.cpu_s[name] <= patience_s:
                found.append(name)
                spent_s += self.cpu_s[name]
        return found


class Tracer:
    """Lines of the modules in which faults are planted, from `start` to `stop`, in all threads."""

    def __init__(self) -> None:
        self._lines: dict[str, set[int]] = {file: set() for file in files_of()}
        self._locals = {str(path_of(file)): self._local(lines) for file, lines in self._lines.items()}
        self._calls: dict[int, int] = defaultdict(int)

    def start(self) -> None:
        """Forget, and look."""
        self._calls.clear()
        for lines in self._lines.values():
            lines.clear()
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> list[tuple[str, int]]:
        """File and line of all that was seen."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # none is what it takes
        return [(file, line) for file, lines in self._lines.items() for line in lines]

    def _call(self, frame: FrameType, event: str, _arg: object) -> Callable[..., object] | None:
        local = self._locals.get(frame.f_code.co_filename)
        if local is None:
            return None
        self._calls[id(frame.f_code)] += 1
        return local if self._calls[id(frame.f_code)] <= LOOKED_AT else None

    @staticmethod
    def _local(lines: set[int]) -> Callable[..., object]:
        def local(frame: FrameType, event: str, _arg: object) -> Callable[..., object]:
            lines.add(frame.f_lineno)
            return local

        return local


def _place(file: str, line: int) -> str:
    """`Class.method+3`; of a line that is run on import, or of a header, `+` and the line."""
    starts, ends, names = _functions(file)
    at = bisect_right(starts, line) - 1
    return f"{names[at]}+{line - starts[at]}" if at >= 0 and line <= ends[at] else f"+{line}"


@cache
def _functions(file: str) -> tuple[list[int], list[int], list[str]]:
    """Of the outermost functions: the first line of the body, the last, and the name."""
    found: list[tuple[int, int, str]] = []

    def look(body: Iterable[ast.stmt], prefix: str) -> None:
        for each in body:
            if isinstance(each, ast.ClassDef):
                look(each.body, f"{prefix}{each.name}.")
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((each.body[0].lineno, each.end_lineno or each.lineno, prefix + each.name))

    look(ast.parse(path_of(file).read_text(encoding="utf-8")).body, "")
    found.sort()
    return [start for start, _, _ in found], [end for _, end, _ in found], [name for _, _, name in found]


def _lines(file: str, line: int) -> range:
    """Of the statement, or of the header of a block: a tracer names one of them, seldom the one that was changed."""
    tree = ast.parse(path_of(file).read_text(encoding="utf-8"))
    held = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and each.lineno <= line <= _end(each)]
    least = min(held, key=lambda each: _end(each) - each.lineno)
    body = getattr(least, "body", None)
    return range(least.lineno, body[0].lineno if body and body[0].lineno > line else _end(least) + 1)


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
