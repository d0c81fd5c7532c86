"""Runs of one script, one after the other, in real workers under a controller of their own that is thrown away."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sublet.machine.wall import WALL
from sublet.runtime.controller.files import LogPart
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.bounds import MarketChoice
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.profiling.course import Stop, Walk
from sublet.runtime.rehearsal.launching import launched
from sublet.runtime.rehearsal.report import Seen, opened_by_several, steps_from
from sublet.runtime.settings import Settings
from sublet.wire.rehearsal import REHEARSAL, Cue

_LINKED = ("venv", ".venv", "env", ".git", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache")
LEFT_OUT = ("__pycache__",)
SCRATCH = "sublet-rehearsal-"  # folders of rehearsals; a copy of the temporary folder would have its own in it
BESIDE = re.compile(rb"""["']\.\./([\w-][\w.-]*)""")
BIG_BYTES = 32 << 20  # a file: larger ones are linked
MOST_BYTES = 1 << 30  # all together: beyond that the rest is linked
LOOK_S = 0.05
LEASE_S = 10.0  # agents whose rehearsal was killed end themselves after it
OURS = "sublet: "  # lines of Sublet's own
ENDING_S = 60.0  # for a job that is cancelled
LAST_LINES = 8  # of what the script printed, where it failed


@dataclass(frozen=True, slots=True)
class _FolderCopy:
    """`linked`: what is not a copy, but the user's own."""

    folder: Path
    digests: dict[str, str]
    linked: tuple[str, ...]


def copied(source: Path, folder: Path) -> _FolderCopy:
    """All that is small as files of its own; environments and what is big as links to the user's.

    Beside the folder lies in the same way what a Python file in it names as `../data`.
    """
    copy = _copied(source, folder)
    linked = list(copy.linked)
    for name in _named_beside(source):
        linked += [f"../{name}/{each}" for each in _copied(source.parent / name, folder.parent / name).linked]
    return _FolderCopy(folder, copy.digests, tuple(linked))


def _named_beside(source: Path) -> list[str]:
    """Folders next to this one, by the names that follow `../` in it."""
    texts = [path.read_bytes() for path in sorted(source.glob("*.py")) if path.is_file()]
    names = {found.decode() for text in texts for found in BESIDE.findall(text)} - {source.name}
    return sorted(name for name in names if (source.parent / name).is_dir())


def _copied(source: Path, folder: Path) -> _FolderCopy:
    digests, linked, copied_bytes = {}, [], 0
    folder.mkdir(parents=True)
    for place, folders, names in os.walk(source):
        here = folder / Path(place).relative_to(source)
        for name in list(folders):
            own = Path(place, name)
            left_out = name in LEFT_OUT or name.startswith(SCRATCH)
            if left_out or own.is_symlink() or name in _LINKED:
                folders.remove(name)
                if not left_out:
                    (here / name).symlink_to(own.resolve())
                    linked.append(str(own.relative_to(source)))
            else:
                (here / name).mkdir()
        for name in names:
            own, there = Path(place, name), here / name
            if not own.is_file():
                continue
            size = own.stat().st_size
            if own.is_symlink() or size > BIG_BYTES or copied_bytes + size > MOST_BYTES:
                there.symlink_to(own.resolve())
                linked.append(str(own.relative_to(source)))
                continue
            shutil.copy2(own, there)
            copied_bytes += size
            digests[str(own.relative_to(source))] = _digest(there)
    return _FolderCopy(folder, digests, tuple(linked))


def written(copy: _FolderCopy) -> dict[str, bytes]:
    """The files that a run has made, or changed, there: names and contents."""
    found = {}
    for place, folders, names in os.walk(copy.folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in sorted(names):
            path = Path(place, name)
            key = str(path.relative_to(copy.folder))
            if path.is_file() and not path.is_symlink() and copy.digests.get(key) != _digest(path):
                found[key] = path.read_bytes()
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(slots=True)
class RehearsedWidth:
    """The present size of the one job, for the policy."""

    at: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One run to be made."""

    name: str
    workers: int
    seed: int = 0
    kill_at: int = 0
    kill_after_s: float = 0.0
    restart_at: int = 0

    @property
    def is_killed(self) -> bool:
        """Whether some of its workers are killed."""
        return self.kill_after_s > 0.0 or self.restart_at > 0


async def run_acts(
    spec: JobSpec, acts: Sequence[Act], scratch: Path, *, steps: int, seconds: float, tell: Callable[[str], None]
) -> list[Seen]:
    """Each has so many seconds; the first that makes no step is the last. No process is left when it returns."""
    course = RehearsedWidth()
    widest = max(act.workers for act in acts)
    settings = Settings(state_dir=str(scratch / "state"), most_nodes=widest, lease_s=LEASE_S)
    api, found = controller_from(settings, Walk(course)), list[Seen]()
    running = asyncio.create_task(api.run())
    try:
        ready = asyncio.create_task(api.started())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.done():
            await running  # why it has not begun
        for act in acts:
            if act.restart_at and not found[0].steps:
                act = replace(act, kill_at=0, restart_at=0, kill_after_s=found[0].seconds / 2)  # noqa: PLW2901 - of this act
            tell(f"{act.name}: {act.workers} {'worker' if act.workers == 1 else 'workers'}")
            copy = await asyncio.to_thread(copied, Path(spec.cwd), scratch / act.name / "work" / Path(spec.cwd).name)
            course.at = Stop(act.workers)
            cue = _cue(spec, act, scratch / act.name, steps=steps, coarse=any(each.coarse for each in found))
            found.append(await _run(api, spec, act, copy, cue, seconds=seconds))
            course.at = None
            await asyncio.to_thread(shutil.rmtree, copy.folder.parent, ignore_errors=True)
            if found[0].failure and not found[0].made:
                break
    finally:
        await api.shutdown(end_jobs=True)
        await running
    return found


def _cue(spec: JobSpec, act: Act, folder: Path, *, steps: int, coarse: bool) -> Cue:
    cue = Cue(
        folder=str(folder / "seen"),
        steps=steps,
        workers=act.workers,
        seed=act.seed,
        coarse=coarse,
        kill_at=act.kill_at if spec.sdk else 0,
        kill_after_s=act.kill_after_s,
        restart_at=act.restart_at,
    )
    cue.write()
    return cue


async def _run(api: ControllerApi, spec: JobSpec, act: Act, copy: _FolderCopy, cue: Cue, *, seconds: float) -> Seen:
    began_s = WALL.monotonic()
    job_id = (await api.submit(_job(spec, act, copy, cue)))["job_id"]
    record, failure = api.record(job_id), ""
    while not record.outcome and WALL.monotonic() < began_s + seconds + ENDING_S:
        await asyncio.sleep(LOOK_S)
        if WALL.monotonic() > began_s + seconds and not failure and not record.outcome:
            failure = f"it was not through after {seconds:g} s"
            await api.cancel(job_id, now=True)
    spent_s = WALL.monotonic() - began_s
    failure = failure or "\n".join(record.error.splitlines()[-LAST_LINES:])
    hidden = {str(each): "." for each in (copy.folder, *copy.folder.parents[:2])}
    first = await asyncio.to_thread(_lines, (await api.log_parts(job_id)).parts, hidden)
    every = await asyncio.to_thread(_lines, (await api.log_parts(job_id, rank=None)).parts, hidden)
    return Seen(
        name=act.name,
        workers=act.workers,
        seconds=spent_s,
        failure=failure,
        steps=await asyncio.to_thread(steps_from, cue),
        lines=first,
        all_lines=every,
        files=await asyncio.to_thread(written, copy),
        coarse=cue.was_coarse,
        linked=copy.linked,
        shared=opened_by_several(cue) if not act.is_killed else (),
    )


def _job(spec: JobSpec, act: Act, copy: _FolderCopy, cue: Cue) -> JobSpec:
    own, there = spec.cwd.rstrip("/"), str(copy.folder)
    words = tuple(there + word[len(own) :] if word == own or word.startswith(own + "/") else word for word in spec.argv)
    return replace(
        spec,
        name=act.name,
        argv=launched(words),
        cwd=there,
        env={**spec.env, REHEARSAL: cue.folder, "PYTHONUNBUFFERED": "1"},
        min_workers=1 if spec.sdk else act.workers,
        max_workers=act.workers,
        sizes=(),
        accelerators=(),
        market=MarketChoice.ON_DEMAND,
        min_on_demand=0,
        checkpoint_dir="",
        checkpoint_copy="",
        retries=Retries(user=None if act.is_killed else 0),
        purse_usd=None,
        deadline_s=None,
    )


def _lines(parts: Sequence[LogPart], hidden: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for part in parts:
        path = Path(part.path)
        if not path.is_file():
            continue
        text = path.read_bytes()[part.start : part.end].decode("utf-8", errors="replace")
        for known, name in hidden.items():
            text = text.replace(known, name)
        found += [line for line in text.split("\n") if line.strip() and "\r" not in line and not line.startswith(OURS)]
    return found
