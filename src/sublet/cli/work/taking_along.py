"""Jobs go with their controller: from nodes that see its disk to nodes that do not, and back.

If nodes are processes of the controller's machine, a job's files are where its owner has them, its checkpoints in
`jobs/ID/checkpoints`. Elsewhere files travel by content, and checkpoints are what was carried home. Files of a job in
one form are written in the other, beside it: an interruption, or a return, loses nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.cli.work.copying import commit_files, commit_step
from sublet.errors import BadInput, SubletError
from sublet.machine.files import FILES
from sublet.machine.remote import is_remote
from sublet.runtime.controller.files import Anchor
from sublet.runtime.file_sync.content import Content
from sublet.runtime.file_sync.packing import local_among, pack, travelling
from sublet.runtime.jobs.spec import JobSpec, spec_from_json
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store
from sublet.train.checkpoint.store import open_store

SHARED = "local"  # the provider whose nodes see the controller's disk


@dataclass(frozen=True, slots=True)
class _Job:
    """One that has not ended."""

    id: str
    facts: dict[str, Any]  # its specification, as it is stored
    spec: JobSpec


def refuse_to_strand(state_dir: Path, before: Settings | None, after: str) -> None:
    """BadInput, before anything is stopped or paid, where a job that has not ended cannot go along: which, and why."""
    if before is None or (before.provider == SHARED) == (after == SHARED):
        return
    for job in _jobs(state_dir):
        try:
            why = _why_not_away(job.spec, state_dir) if before.provider == SHARED else _why_not_home(state_dir, job)
        except BadInput as error:
            why = str(error).replace("\n", " ")
        if why:
            hint = f"let it end here, or 'sublet cancel {job.id}', then change, and 'sublet submit' it again"
            raise BadInput(state_dir, f"{job.id} has not ended, and cannot go along: {why}", hint=hint)


def take_along(state_dir: Path, before: Settings | None, after: str, tell: Callable[[str], None]) -> None:
    """Convert the files of a stopped controller: jobs that have not ended have all that they need, also there."""
    if before is None or (before.provider == SHARED) == (after == SHARED):
        return
    for job in _jobs(state_dir):
        step = _send_away(state_dir, job) if before.provider == SHARED else _bring_home(state_dir, job)
        whence = "from its beginning: it has saved nothing" if step is None else f"from its checkpoint {step}"
        tell(f"{job.id} goes along, {whence}" if job.spec.sdk or step is None else f"{job.id} goes along")


def _jobs(state_dir: Path) -> Iterator[_Job]:
    if not (state_dir / "log.sqlite").is_file():
        return
    with closing(Store(state_dir / "log.sqlite")) as store:
        rows = [row for row in store.jobs() if not row[2].get("outcome")]
    for job_id, text, _ in rows:
        facts = json.loads(text)
        try:
            spec = spec_from_json(facts)
        except SubletError:
            continue  # it is held back by the rules of today, wherever it is
        yield _Job(job_id, facts, spec)


def _why_not_away(spec: JobSpec, state_dir: Path) -> str:
    if spec.checkpoint_dir and not is_remote(spec.checkpoint_dir):
        return f"its checkpoints are in {spec.checkpoint_dir} (checkpoint.uri), which no other machine sees"
    if not Path(spec.cwd).is_dir():
        return f"its working directory {spec.cwd} is not here"
    travelling(
        Path(spec.cwd), local_among(spec.mounts), besides=[state_dir, *map(Path, spec.unsent)]
    )  # which says what is too much
    return ""


def _why_not_home(state_dir: Path, job: _Job) -> str:
    spec = job.spec
    if spec.checkpoint_dir and Anchor(state_dir / "checkpoints" / job.id, FILES).head.newest is not None:
        return f"its checkpoints were carried here, and here it would look for them in {spec.checkpoint_dir}"
    if spec.image or spec.mounts:
        return f"it has {'an image' if spec.image else 'file_mounts'}, and nodes would be processes of this machine"
    return "" if Path(spec.cwd).is_dir() else f"its working directory {spec.cwd} is not here"


def _send_away(state_dir: Path, job: _Job) -> int | None:
    """Its files become parts, and its newest checkpoint a commit; its step."""
    content = Content(state_dir / "content")
    besides = [state_dir, *map(Path, job.spec.unsent)]
    code = pack(content, Path(job.spec.cwd), local_among(job.spec.mounts), besides=besides)
    step = _commit(state_dir, job) if not job.spec.checkpoint_dir else None
    with closing(Store(state_dir / "log.sqlite")) as store:
        store.change_job(job.id, spec=json.dumps({**job.facts, "code": code}))
    return step


def _commit(state_dir: Path, job: _Job) -> int | None:
    here, anchor = _place(state_dir, job), Anchor(state_dir / "checkpoints" / job.id, FILES)
    if not job.spec.sdk:
        paths = [path for path in sorted(here.rglob("*")) if path.is_file() and not path.is_symlink()]
        return commit_files(anchor, here, paths) if paths else None
    steps = open_store(here).steps() if here.is_dir() else []
    anchor.drop([commit.step for commit in anchor.head.commits if commit.step > max(steps, default=-1)])  # of before
    if not steps:
        return None
    commit_step(anchor, here, steps[0], keep=max(1, job.spec.checkpoint_keep))
    return steps[0]


def _bring_home(state_dir: Path, job: _Job) -> int | None:
    """Its newest checkpoint becomes files where workers of this machine look for them; its step."""
    if job.spec.checkpoint_dir:
        return None
    anchor, here = Anchor(state_dir / "checkpoints" / job.id, FILES), _place(state_dir, job)
    if (newest := anchor.head.newest) is None:
        return None
    beside = here.with_name("checkpoints.new")
    shutil.rmtree(beside, ignore_errors=True)
    for entry in anchor.entries(newest):
        path = beside / entry.path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("wb") as file:
            for data in anchor.read(entry):
                file.write(data)
    shutil.rmtree(here, ignore_errors=True)
    beside.rename(here)
    return newest.step


def _place(state_dir: Path, job: _Job) -> Path:
    return state_dir / "jobs" / job.id / "checkpoints"
