"""A rehearsal: a script runs four times for some steps, and what differs is told.

At one worker; the same with another seed, which says how much is noise; the same at two workers; the same with rank 0
killed in the middle, and later all workers, which go on from their checkpoint.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sublet.domain.quantity import positive, whole
from sublet.errors import InvalidValue, SubletError
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.rehearsal.comparing import Noise, compared
from sublet.runtime.rehearsal.report import Difference, Report, RunView
from sublet.runtime.rehearsal.running import Act, run_acts
from sublet.runtime.rehearsal.seen import Seen

__all__ = ["MOST_WORKERS", "rehearse", "rehearse_job"]

MOST_WORKERS = 16
MOST_NAMED = 5  # of what is linked
OTHER_SEED = 4711


def rehearse(
    command: Sequence[str],
    cwd: Path | str,
    *,
    steps: int = 20,
    workers: int = 2,
    kill_at: int | None = None,
    seconds: float = 120.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Whether the script of a command is elastic, in copies of `cwd`; each run has so many seconds."""
    try:
        spec = job_from_command(command, cwd=str(Path(cwd).resolve()))
    except SubletError as error:
        return Report(command=tuple(command), why=str(error))
    return rehearse_job(spec, steps=steps, workers=workers, kill_at=kill_at, seconds=seconds, tell=tell)


def rehearse_job(
    spec: JobSpec,
    *,
    steps: int = 20,
    workers: int = 2,
    kill_at: int | None = None,
    seconds: float = 120.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """The same, of a job."""
    whole("--steps", steps, 4)
    whole("--workers", workers, 2)
    if workers > MOST_WORKERS:
        raise InvalidValue("--workers", workers, f"at most {MOST_WORKERS}, on this machine")
    positive("--seconds", seconds)
    killed_at = steps // 2 if kill_at is None else kill_at
    whole("--kill-at", killed_at, 1)
    restart_at = (killed_at + steps + 1) // 2
    if not killed_at < restart_at < steps:
        raise InvalidValue("--kill-at", killed_at, f"some steps before the last of {steps}")
    acts = [
        Act(name="one", workers=1),
        Act(name="seed", workers=1, seed=OTHER_SEED),
        Act(name="width", workers=workers),
        Act(name="kill", workers=workers, kill_at=killed_at, restart_at=restart_at),
    ]
    scratch = Path(tempfile.mkdtemp(prefix="sublet-rehearsal-"))
    try:
        seen = asyncio.run(run_acts(spec, acts, scratch, steps=steps, seconds=seconds, tell=tell))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return report_on(spec.argv, seen)


def report_on(command: Sequence[str], seen: Sequence[Seen]) -> Report:
    """What the runs come to."""
    one = seen[0]
    if one.failure and not one.steps:
        return Report(command=tuple(command), runs=(_view(one, "", ()),), why=one.failure)
    again, wide, killed = seen[1:]
    noise = Noise(one, again)
    same = Noise(one, one)
    drawn = [replace(each, run="seed", advice="") for each in compared(same, one, again, killed=False) if noise.draws]
    by_width = compared(noise, one, wide, killed=False)
    by_kill = compared(noise, wide, killed, killed=True)
    notes: list[str] = []
    if one.failure:
        notes.append(f"it ends badly at one worker too: {one.failure.splitlines()[-1]}")
    if one.linked:
        notes.append(f"links to your own, not copies: {', '.join(one.linked[:MOST_NAMED])}")
    if not one.steps:
        notes.append("the script opens no session: printed lines and files are compared, weights and losses are not")
    views = (
        _view(one, "", ()),
        _view(again, "one", drawn, "noise"),
        _view(wide, "one", by_width),
        _view(killed, "width", by_kill),
    )
    return Report(
        command=tuple(command),
        runs=views,
        differences=(*by_width, *by_kill),
        noise=tuple(drawn),
        notes=tuple(notes),
    )


def _view(seen: Seen, against: str, found: Sequence[Difference], word: str = "differs") -> RunView:
    kinds = {each.kind for each in found}

    def compares(kind: str, *, has: bool = True) -> str:
        return "-" if not against or not has else word if kind in kinds else "equal"

    return RunView(
        name=seen.name,
        workers=seen.workers,
        seconds=seen.seconds,
        steps=max(seen.steps, default=0),
        against=against,
        weights=compares("weights", has=bool(seen.steps)),
        loss=compares("loss", has=bool(seen.steps)),
        lines=compares("line"),
        files=compares("file"),
    )
