"""From a job file that could be read to the job: paths and variables filled in, the command split, bounds checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sublet.errors import InvalidValue
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.runtime.jobs.checks import out_of_bounds
from sublet.runtime.jobs.command import argv_from_run, is_torchrun, refuse_missing_script, uses_sdk
from sublet.runtime.jobs.mistakes import shorten
from sublet.runtime.jobs.mounts import read_mounts
from sublet.runtime.jobs.serialize import HIDDEN
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.jobs.values import parse_deadline_s, parse_field
from sublet.runtime.jobs.yaml_lines import Document

if TYPE_CHECKING:
    from sublet.runtime.jobs.schema import JobFile

__all__ = ["Surroundings", "build_job"]

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a file means beyond its text: where it lies, whose variables it may take, when it is read."""

    base: Path  # what `workdir` is relative to
    environment: Mapping[str, str]
    now: datetime
    default_name: str


@dataclass(slots=True)
class _Collector:
    """Collects what is wrong, so that the next mistake is found as well."""

    found: list[InvalidValue] = field(default_factory=list)

    def attempt(self, make: Callable[[], Made]) -> Made | None:
        """What it makes, or None and one mistake more."""
        try:
            return make()
        except InvalidValue as error:
            self.found.append(error)
            return None


def build_job(
    file: JobFile, document: Document, surroundings: Surroundings
) -> tuple[JobSpec | None, list[InvalidValue]]:
    """The job, or None and everything that is wrong with it."""
    wrong = _Collector()
    return _build(file, document, surroundings, wrong), wrong.found


def _build(file: JobFile, document: Document, surroundings: Surroundings, wrong: _Collector) -> JobSpec | None:
    base, environment = surroundings.base, surroundings.environment
    cwd = wrong.attempt(lambda: _workdir(file, base))
    argv = wrong.attempt(lambda: _argv(file, cwd)) or ("true",)
    where = cwd or base
    kinds, counts = file.resources.wanted()
    low, high = file.workers(counts)
    env = _fill_in("envs", file.envs, environment, wrong)
    secrets = _fill_in("secrets", file.secrets, environment, wrong)
    folder = wrong.attempt(lambda: _folder("checkpoint.uri", file.checkpoint.uri, where)) or ""
    deadline_s = wrong.attempt(lambda: _deadline_s(file, document, surroundings.now))
    mounts = read_mounts(file.file_mounts, {**env, **secrets}, (base, Path.cwd()))
    wrong.found += mounts.wrong
    wrong.found += out_of_bounds(
        file,
        document.values,
        argv=argv,
        cwd=str(where),
        folder=folder,
        mounts=mounts.given,
        env=env,
        secrets=secrets,
        kinds=kinds,
        workers=(low, high),
        deadline_s=deadline_s,
    )
    if wrong.found:
        return None
    return wrong.attempt(
        lambda: JobSpec(
            name=file.name or surroundings.default_name,
            argv=argv,
            cwd=str(where),
            setup=file.setup,
            mounts=mounts.given,
            kept_mounts=tuple(mounts.kept),
            notes=tuple(mounts.notes),
            env=env,
            secrets=secrets,
            sdk=uses_sdk(argv, str(where)) if file.training.sdk == "auto" else file.training.sdk,
            torchrun=is_torchrun(file.run.split()),
            min_workers=low,
            max_workers=high,
            sizes=tuple(file.elastic.sizes) if file.elastic else (),
            on_node_loss=OnNodeLoss(file.elastic.on_node_loss if file.elastic else "continue"),
            accelerators=kinds,
            market=file.resources.market(),
            min_on_demand=file.resources.min_on_demand,
            work=file.training.work(),
            samples_per_s=file.training.samples_per_s,
            checkpoint_dir=folder,
            checkpoint_every_s=None if file.checkpoint.interval == "auto" else file.checkpoint.interval,
            checkpoint_keep=file.checkpoint.keep,
            retries=Retries(preemption=file.retry.preemption, infra=file.retry.infra, user=file.retry.user),
            purse_usd=file.budget.total if file.budget else None,
            deadline_s=deadline_s,
            weight=file.weight,
            hurry=file.hurry,
            **_if_given(
                restart_s=file.elastic.restart if file.elastic else None,
                grace_s=file.stop_duration,
                hang_s=file.training.hang,
                replace_s=file.elastic.replace_within if file.elastic else None,
            ),
        )
    )


def _if_given(**values: float | None) -> dict[str, Any]:
    """What a file leaves out has the default of a job."""
    return {name: value for name, value in values.items() if value is not None}


def _workdir(file: JobFile, base: Path) -> Path:
    cwd = (base / Path(file.workdir).expanduser()).resolve()
    if not cwd.is_dir():
        raise InvalidValue("workdir", file.workdir, f"a directory that exists; {cwd} does not")
    return cwd


def _argv(file: JobFile, cwd: Path | None) -> tuple[str, ...]:
    """The command of a worker; that its script exists cannot be said without the directory."""
    argv = argv_from_run(file.run)
    if argv[0] == "bash" and re.search(r"\btorchrun\b|torch\.distributed\.(run|launch)", argv[-1]):
        allowed = "torchrun as the only command, not within a script: Sublet starts the workers itself"
        raise InvalidValue("run", shorten(file.run), allowed)
    if cwd is not None:
        refuse_missing_script(argv, str(cwd))
    return argv


def _deadline_s(file: JobFile, document: Document, now: datetime) -> float | None:
    if file.deadline is None:
        return None
    written = document.values["deadline"]  # a date of YAML is still one there
    return parse_field("deadline", str(file.deadline), lambda _: parse_deadline_s(written, now=now))


def _fill_in(
    field: str, given: Mapping[str, str | None], environment: Mapping[str, str], wrong: _Collector
) -> dict[str, str]:
    """A variable without a value takes that of the caller's environment."""
    values = {}
    for name, value in given.items():
        found = environment.get(name) if value is None else value
        if found is None:
            missing = f"given in the file, or set before: export {name}=..."
            wrong.found.append(InvalidValue(f"{field}.{name}", None, missing))
        elif "\0" in found:
            wrong.found.append(InvalidValue(f"{field}.{name}", HIDDEN, "without a zero byte"))
        else:
            values[name] = found
    return values


def _folder(field: str, uri: str, cwd: Path) -> str:
    if not uri:
        return ""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return str((cwd / Path(uri).expanduser()).resolve())
    if scheme != "file" or not rest.startswith("/"):
        raise InvalidValue(field, uri, "a directory, or file:///a/directory: nothing else is supported yet")
    return rest
