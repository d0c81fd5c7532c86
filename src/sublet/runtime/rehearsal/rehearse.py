"""A rehearsal: a script runs four times for some steps, and what differs is told.

At one worker; the same with another seed, which says how much is noise; the same at two workers; the same with rank 0
killed in the middle, and later all workers, which go on from their checkpoint.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sublet.domain.quantity import positive, whole
from sublet.errors import InvalidValue, SubletError
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.rehearsal.comparing import Noise, compared
from sublet.runtime.rehearsal.report import Difference, Report, RunView, Seen
from sublet.runtime.rehearsal.running import SCRATCH, Act, run_acts

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
    alone = not spec.sdk and spec.joins == "no"
    acts = [Act(name="one", workers=1), Act(name="seed", workers=1, seed=OTHER_SEED)]
    acts += [] if alone else [Act(name="width", workers=workers)]
    acts.append(Act(name="kill", workers=1 if alone else workers, kill_at=killed_at, restart_at=restart_at))
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH))
    try:
        seen = asyncio.run(run_acts(spec, acts, scratch, steps=steps, seconds=seconds, tell=tell))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    told = ["its workers join no process group: it is not run at more than one"] if alone else []
    return report_on(spec.argv, seen, told)


def report_on(command: Sequence[str], runs: Sequence[Seen], notes: Sequence[str] = ()) -> Report:
    """The report of the runs."""
    seen = {each.name: each for each in runs}
    one = seen["one"]
    if one.failure and not one.made:
        return Report(command=tuple(command), runs=(_view(one, "", (), ()),), why=one.failure, notes=tuple(notes))
    noise = Noise(one, seen["seed"])
    drawn = _drawn(one, seen["seed"]) if noise.draws else []
    views = [_view(one, "", (), ()), _view(seen["seed"], "one", (), drawn)]
    differences: list[Difference] = []
    for name, against in (("width", "one"), ("kill", "width" if "width" in seen else "one")):
        if name in seen:
            base, run = seen[against], seen[name]
            found = compared(noise, base, run, killed=name == "kill")
            views.append(_view(run, against, found, _drawn(base, run) if noise.draws else ()))
            differences += found
    return Report(
        command=tuple(command),
        runs=tuple(views),
        differences=tuple(differences),
        noise=tuple(drawn),
        notes=(*notes, *_notes(one)),
    )


def _drawn(one: Seen, other: Seen) -> list[Difference]:
    """The differences, where nothing is noise."""
    return [replace(each, run=other.name, advice="") for each in compared(Noise(one, one), one, other, killed=False)]


def _notes(one: Seen) -> Iterator[str]:
    if one.failure:
        yield f"it ends badly at one worker too: {one.failure.splitlines()[-1]}"
    if one.coarse:
        yield "it computes in half precision: what one rounding of that does is taken for noise"
    if one.linked:
        yield f"links to your own, not copies: {', '.join(one.linked[:MOST_NAMED])}"
    if not one.steps:
        yield "no session told of its state: printed lines and files are compared, weights and losses are not"


def _view(seen: Seen, against: str, found: Sequence[Difference], drawn: Sequence[Difference]) -> RunView:
    differs, noisy = {each.kind for each in found}, {each.kind for each in drawn}

    def compares(kind: str, *, has: bool = True) -> str:
        if not against or not has:
            return "-"
        return "differs" if kind in differs else "noise" if kind in noisy else "equal"

    return RunView(
        name=seen.name,
        workers=seen.workers,
        seconds=seen.seconds,
        steps=seen.made,
        against=against,
        weights=compares("weights", has=bool(seen.steps)),
        loss=compares("loss", has=any(math.isfinite(each.loss) for each in seen.steps.values())),
        lines=compares("line"),
        files=compares("file"),
    )
