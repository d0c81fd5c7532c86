"""Which lines of our code seeds run: `python -m sublet.testing.world.covered --seeds 100 runtime/agent`.

Counted are the lines within functions; what runs when a file is imported is no merit of a seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sublet
from sublet.testing.world.life import live
from sublet.testing.world.story import draw_story

__all__ = ["Covered", "lines_of"]

SOURCE = Path(sublet.__file__).parent
CO_NEWLOCALS = 0x2  # functions have it, bodies of classes and modules do not


def lines_of(path: Path) -> set[int]:
    """The lines within functions that a trace could see."""
    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    found = {(function.co_firstlineno, line) for function in _functions(code) for _, _, line in function.co_lines()}
    return {line for first, line in found if line is not None and line != first}


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & CO_NEWLOCALS:
                yield constant
            yield from _functions(constant)


class Covered:
    """The lines of some files that are run while it traces."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._seen: dict[str, set[int]] = {str(path): set() for path in files}

    def run(self, work: Callable[[], object]) -> None:
        """Once more, and everything that is run in it."""
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        del event, arg
        seen = self._seen.get(frame.f_code.co_filename)
        if seen is None:
            return None

        def step(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
            del arg
            if event == "line":
                seen.add(frame.f_lineno)
            return step

        return step

    def shares(self) -> dict[str, tuple[float, list[int]]]:
        """File -> (share of its lines that were run, the others)."""
        found = {}
        for path, seen in self._seen.items():
            if lines := lines_of(Path(path)):
                missing = sorted(lines - seen)
                found[str(Path(path).relative_to(SOURCE))] = (1 - len(missing) / len(lines), missing)
        return found


def _files(names: Iterable[str]) -> list[Path]:
    found = [SOURCE / name for name in names]
    return sorted(path for place in found for path in (place.rglob("*.py") if place.is_dir() else [place]))


def main() -> None:
    """A line per file."""
    parser = argparse.ArgumentParser(prog="python -m sublet.testing.world.covered", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many to live")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--missing", action="store_true", help="print the lines that were not run")
    parser.add_argument("files", nargs="*", default=["runtime/agent"], help="files and folders below src/sublet")
    options = parser.parse_args()
    covered = Covered(_files(options.files))
    for seed in range(options.first, options.first + options.seeds):
        covered.run(lambda seed=seed: live(draw_story(seed)))  # type: ignore[misc]  # mypy types no default of a lambda
    for name, (share, missing) in covered.shares().items():
        print(f"{share:7.1%}  {name}" + (f"  {_ranges(missing)}" if options.missing else ""))  # noqa: T201 - its answer


def _ranges(lines: list[int]) -> str:
    """12-14, 20."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][-1] + 1:
            parts[-1].append(line)
        else:
            parts.append([line])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


if __name__ == "__main__":
    main()
