"""Which lines of our code seeds run: `python -m sublet_lab.world.covered --seeds 100`, or of some files alone.

Counted are the lines within functions; what runs when a file is imported is no merit of a seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sublet
from sublet_lab.world.life import live
from sublet_lab.world.story import draw_story

AIM = 0.85  # of the lines of a room
A_BATCH = 10  # seeds that a process is given at once
ROOMS: dict[str, tuple[str, ...]] = {
    "controller": ("runtime/controller",),
    "groups": ("runtime/group",),
    "leases": ("runtime/controller/nodes/leases.py",),
    "agents": tuple(
        f"runtime/controller/nodes/{name}.py" for name in ("messages", "agent_auth", "heartbeats", "notices")
    ),
    "recovery": ("runtime/controller/core/recovery.py",),
    "store": ("runtime/store.py", "runtime/store.py", "runtime/archive.py", "runtime/archive.py"),
    "agent": tuple(
        f"runtime/agent/{name}.py" for name in ("agent", "line_reader", "metadata", "reading", "watching", "worker")
    ),
    "link": ("runtime/agent/link.py",),
    "crew": ("runtime/agent/crew.py",),
    "aws provider": tuple(
        f"runtime/providers/aws/{name}.py"
        for name in (
            "calls",
            "fleet",
            "instances",
            "market",
            "offers",
            "provider",
            "records",
            "server_time",
            "userdata",
        )
    ),
    "local provider's rules": tuple(
        f"runtime/providers/local/{name}.py" for name in ("market", "nodes", "provider", "records")
    ),
}
BESIDE: dict[str, tuple[str, ...]] = {
    "agent: processes, files and sockets of a real machine": tuple(
        f"runtime/agent/{name}.py"
        for name in (
            *("__main__", "devices", "dialing", "disk", "forking", "host"),
            *("own_log", "processes", "script", "serving", "template"),
        )
    ),
    "aws: what is read, checked and put together before a controller is there": tuple(
        f"runtime/providers/aws/{name}.py" for name in ("build", "check", "config", "rights")
    ),
    "local: processes that are forked": tuple(
        f"runtime/providers/local/{name}.py" for name in ("build", "forking", "lives", "template")
    ),
}

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
        self.seen: dict[str, set[int]] = {str(path): set() for path in files}
        self._whole: set[CodeType] = set()  # functions of which every line was run: they are not watched any more

    def run(self, work: Callable[[], object]) -> None:
        """Once more, and everything that is run in it."""
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        del event, arg
        code = frame.f_code
        seen = self.seen.get(code.co_filename)
        if seen is None or code in self._whole:
            return None
        if {line for _, _, line in code.co_lines() if line not in (None, code.co_firstlineno)} <= seen:
            self._whole.add(code)
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
        for path, seen in self.seen.items():
            if lines := lines_of(Path(path)):
                missing = sorted(lines - seen)
                found[str(Path(path).relative_to(SOURCE))] = (1 - len(missing) / len(lines), missing)
        return found


def cover(seeds: Iterable[int], names: Sequence[str], *, processes: int = 2) -> Covered:
    """The lines that these seeds run of these files, over some processes."""
    covered = Covered(files_of(names))
    seeds = list(seeds)
    batches = [(seeds[at : at + A_BATCH], tuple(names)) for at in range(0, len(seeds), A_BATCH)]
    context = multiprocessing.get_context("spawn")  # as runner.py
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for seen in pool.map(_cover_batch, batches):
            for path, lines in seen.items():
                covered.seen[path] |= lines
    return covered


def _cover_batch(batch: tuple[list[int], tuple[str, ...]]) -> dict[str, set[int]]:
    seeds, names = batch
    covered = Covered(files_of(names))
    for seed in seeds:
        covered.run(lambda seed=seed: live(draw_story(seed)))  # type: ignore[misc]  # mypy types no default of a lambda
    return covered.seen


def files_of(names: Iterable[str]) -> list[Path]:
    """Files by their names below the package, and all that are in folders."""
    found = [SOURCE / name for name in names]
    return sorted({path for place in found for path in (place.rglob("*.py") if place.is_dir() else [place])})


def main() -> None:
    """A line per room, or per file."""
    parser = argparse.ArgumentParser(prog="python -m sublet_lab.world.covered", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many to live")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=2, help="at once")
    parser.add_argument("--missing", action="store_true", help="print the lines that were not run")
    parser.add_argument("files", nargs="*", help="files and folders below src/sublet [default: a table of the rooms]")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    names = options.files or [name for names in (*ROOMS.values(), *BESIDE.values()) for name in names]
    covered = cover(seeds, names, processes=options.processes)
    for line in [] if options.files else table_of(covered):
        print(line)
    if options.files or options.missing:
        for name, (share, missing) in covered.shares().items():
            print(f"{share:7.1%}  {name}" + (f"  {_ranges(missing)}" if options.missing else ""))


def table_of(covered: Covered) -> list[str]:
    """As docs/background/faults.md has it: rooms, with those of their files that are below the aim; and the rest."""
    rows = ["| room | lines in functions | run by seeds | files below 85 % |", "|---|---|---|---|"]
    rows += [f"| {room} | {_row(covered, names)} |" for room, names in ROOMS.items()]
    rows += ["", "| beside the rooms | lines | run by seeds | files |", "|---|---|---|---|"]
    return rows + [f"| {why} | {_row(covered, names)} |" for why, names in BESIDE.items()]


def _row(covered: Covered, names: Sequence[str]) -> str:
    shares = covered.shares()
    facts = [(path, len(lines_of(path))) for path in files_of(names)]
    found = [(path.stem, count, *shares[str(path.relative_to(SOURCE))]) for path, count in facts if count]
    lines, missing = sum(count for _, count, _, _ in found), sum(len(gone) for *_, gone in found)
    low = sorted((share, name) for name, _, share, _ in found if share < AIM)
    return f"{lines} | {1 - missing / lines:.0%} | {', '.join(f'{name} {share:.0%}' for share, name in low)}"


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
