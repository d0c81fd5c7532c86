"""A profiling run: a script runs in real workers on this machine, only to be measured, and leaves a profile.

A controller of its own rents nodes from the cloud on this machine, in a folder that is thrown away. Messages of workers
go their usual way, and into the store that the next run of the job begins with. The session knows that it is a
profiling run: it trains without an end, and neither writes nor reads checkpoints.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sublet.domain.quantity import positive, whole
from sublet.errors import BadInput, InvalidValue
from sublet.machine.wall import WALL
from sublet.perf.live.fit import fitted_step
from sublet.perf.live.rows import StepRow
from sublet.perf.live.stored import CPU, StoredProfile
from sublet.perf.steptime import iteration_s
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.bounds import MarketChoice
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.profiles.learned import Profiling
from sublet.runtime.profiles.store import ProfileStore, read_stored, script_digest
from sublet.runtime.profiling.course import Course, Walk, form_of
from sublet.runtime.settings import Settings, default_state_dir
from sublet.wire.messages import PROFILED

MOST_WIDTH = 16  # workers: beyond that one machine measures itself, not the script
REPORT_EVERY_S = 0.25  # or as long as a step takes: a stop is told of nine times in seconds
LOOK_S = 0.05
FITTING = "scipy.optimize"  # loaded while PyTorch is: in the midst of a run it would hold everybody up
LEASE_S = 10.0  # agents whose profiling run was killed end themselves after it
LAST_LINES = 8  # of what the script printed, where it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSeen:
    """Measurements at one worker count and batch, and the curve through all of them there."""

    width: int
    batch: int
    row: StepRow
    reports: int
    fitted_s: float
    memory_bytes: int = 0  # most on a GPU at once; 0 = it cannot be told

    @property
    def samples_per_s(self) -> float:
        """As measured."""
        return self.batch / self.row.step_s

    @property
    def misfit(self) -> float:
        """How far the curve is off, as a part of the step."""
        return self.fitted_s / self.row.step_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The result of a profiling run."""

    profiles: tuple[StoredProfile, ...]  # as the files have them, with what was known before
    files: tuple[Path, ...]
    seen: tuple[StopSeen, ...]
    notes: tuple[str, ...]
    seconds: float
    interrupted: bool


def profile_script(
    spec: JobSpec,
    *,
    widths: Sequence[int] = (1, 2, 4),
    batches: Sequence[int] = (),
    seconds: float = 60.0,
    slots_per_node: int = 1,
    gpu: str = "",
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Profiled:
    """Measure the script of a job at these worker counts and batches; `folder` is the store.

    It has so many seconds from when workers can be started, which itself takes some: PyTorch is loaded first.

    `gpu` is the kind of GPU that it has; without it, that of the cloud on this machine, on which jobs here run.
    An interrupt ends it early, with what was measured. Nothing runs when it returns.
    """
    course = _course(spec, widths, batches, seconds, slots_per_node)
    store = ProfileStore(folder or default_state_dir() / "profiles")
    scratch = Path(tempfile.mkdtemp(prefix="sublet-profile-"))
    try:
        return asyncio.run(_ProfilingRun(spec, course, store, scratch, tell, gpu).run(seconds, slots_per_node))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _course(
    spec: JobSpec, widths: Sequence[int], batches: Sequence[int], seconds: float, slots_per_node: int
) -> Course:
    positive("--seconds", seconds)
    whole("--slots-per-node", slots_per_node, 1)
    if not spec.sdk:
        allowed = "one that opens a sublet.train session: others do not say what their steps take"
        raise InvalidValue("script", " ".join(spec.argv), allowed)
    if not script_digest(spec):
        raise InvalidValue("script", " ".join(spec.argv), "a command that names a Python file, to know it again by")
    course = Course(widths=widths, batches=batches)
    if max(course.widths) > MOST_WIDTH:
        raise InvalidValue("--widths", ",".join(map(str, widths)), f"at most {MOST_WIDTH}, the slots of this machine")
    cores = os.cpu_count() or 1
    if max(course.widths) > cores:
        course.notes.append(
            f"{max(course.widths)} workers share {cores} cores here: if they compute on these, and not on GPUs, their "
            "steps are slower than on machines of their own"
        )
    return course


class _ProfilingRun:
    """One of them."""

    def __init__(
        self, spec: JobSpec, course: Course, store: ProfileStore, scratch: Path, tell: Callable[[str], None], gpu: str
    ) -> None:
        self._spec, self._course, self._store, self._scratch, self._gpu = spec, course, store, scratch, gpu
        self._began_s = WALL.monotonic()
        self._tell = lambda text: tell(f"{WALL.monotonic() - self._began_s:5.1f} s: {text}")
        self._interrupted = False

    async def run(self, seconds: float, slots_per_node: int) -> Profiled:
        """From the first worker to the last file."""
        widest = max(self._course.widths)
        settings = Settings(
            state_dir=str(self._scratch),
            most_nodes=-(-widest // slots_per_node),
            slots_per_node=slots_per_node,
            lease_s=LEASE_S,
        )
        api = controller_from(settings, Walk(self._course))
        running = asyncio.create_task(api.run())
        heard, failure = Profiling(), None
        try:
            ready = asyncio.create_task(api.started())
            await asyncio.to_thread(importlib.import_module, FITTING)
            await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            self._course.end_s = WALL.monotonic() + seconds
            job_id = (await api.submit(self._job()))["job_id"]
            heard = api.record(job_id).profile
            failure = await follow_course(api, job_id, self._course, self._tell)
        except asyncio.CancelledError:
            self._interrupted = True
        finally:
            await api.shutdown(end_jobs=True)
            await running
        return self._result(heard, failure)

    def _job(self) -> JobSpec:
        widths = self._course.widths
        return replace(
            self._spec,
            env={**self._spec.env, PROFILED: str(REPORT_EVERY_S)},
            min_workers=widths[0],
            max_workers=widths[-1],
            sizes=(),
            accelerators=(),
            market=MarketChoice.ON_DEMAND,
            min_on_demand=0,
            checkpoint_dir="",
            retries=Retries(user=0),
            purse_usd=None,
            deadline_s=None,
        )

    def _result(self, heard: Profiling, failure: str | None) -> Profiled:
        if heard.batch and not heard.initial:
            heard.initial = heard.low = heard.high = heard.batch  # fixed, and measured on purpose
        if self._gpu:
            heard = heard.called(self._gpu)
        known = self._store.begin(self._spec)
        measured = replace(
            heard,
            earlier=known.earlier,
            memory={**known.memory, **heard.memory},
            growth=0.0,  # a minute at many batches is no trend of a training
        )
        files = self._store.write(self._spec, measured, WALL)
        seconds = WALL.monotonic() - self._began_s
        if not files and not self._interrupted:
            hint = "give more --seconds, or look at what the script does with 'sublet run'"
            raise BadInput(" ".join(self._spec.argv), f"nothing was measured in {seconds:.0f} s: {failure}", hint=hint)
        notes = [*self._course.notes, *([failure] if failure else [])]
        if heard.rows and heard.device == CPU:
            notes.append(
                f"measured on CPUs, not on a GPU: {heard.rows[0].gpu} is but a name for them, as jobs here have it; "
                "what a real one does is not known, and 'advise' refuses such figures without --as-gpu"
            )
        elif heard.rows and not self._gpu:
            notes.append(
                f"measured on {heard.device}, which the cloud on this machine calls {heard.rows[0].gpu}, for jobs that "
                "run here too; --gpu names the real kind, for 'plan' and 'advise'"
            )
        return Profiled(
            profiles=tuple(read_stored(path) for path in files),
            files=tuple(files),
            seen=_seen(self._course, heard),
            notes=tuple(notes),
            seconds=seconds,
            interrupted=self._interrupted,
        )


async def follow_course(api: ControllerApi, job_id: str, course: Course, tell: Callable[[str], None]) -> str:
    """Until it is through, under a controller whose policy walks it; why it ended before, if it did."""
    record, told = api.record(job_id), None
    while course.at is not None:
        if course.at != told:
            told = course.at
            tell(str(told))
        await asyncio.sleep(LOOK_S)
        if record.outcome:
            why = record.error or "it ended by itself: its loop is not that of its session, or has a `break`"
            return f"{why}{await _last_lines(api, job_id)}"
        width = record.group.size if record.group.training else 0
        course.look(record.profile, width, WALL.monotonic())
    return "" if record.profile.batch else f"it did not train{await _last_lines(api, job_id)}"


def _seen(course: Course, heard: Profiling) -> tuple[StopSeen, ...]:
    """Every stop of which something was heard."""
    rows = {row.form: row for row in heard.rows}
    found = []
    for stop in course.been:
        form = form_of(stop, rows)
        if form is None or stop.batch is None:
            continue
        row = rows[form]
        found.append(
            StopSeen(
                width=stop.width,
                batch=stop.batch,
                row=row,
                reports=len(heard.forms[form]),
                fitted_s=_fitted_s(heard.rows, row),
                memory_bytes=heard.memory.get((row.gpu, row.samples), 0),
            )
        )
    return tuple(found)


def _fitted_s(rows: Sequence[StepRow], row: StepRow) -> float:
    fit = fitted_step(tuple(each for each in rows if each.gpu == row.gpu))
    spread = tuple(len(part) for part in np.array_split(np.arange(row.gpus), row.nodes))
    return float(iteration_s(fit, spread, np.array([float(row.samples)]), np.array([row.pieces - 1.0]))[0])


async def _last_lines(api: ControllerApi, job_id: str) -> str:
    """The script's last words, behind a colon."""
    found = await api.log_parts(job_id)
    return await asyncio.to_thread(_last_lines_in, [Path(part.path) for part in found.parts])


def _last_lines_in(paths: Sequence[Path]) -> str:
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()]
    return "".join(f"\n    {line}" for line in "\n".join(texts).splitlines()[-LAST_LINES:])
