"""From a job file that could be read to the job: paths and variables filled in, the command split, bounds checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sublet.errors import InvalidValue
from sublet.machine.remote import check_uri, is_remote
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.runtime.jobs.checks import out_of_bounds
from sublet.runtime.jobs.command import argv_from_run, is_torchrun, refuse_missing_script, uses_sdk
from sublet.runtime.jobs.groups import joins_group
from sublet.runtime.jobs.image import image_of
from sublet.runtime.jobs.mistakes import shorten
from sublet.runtime.jobs.mounts import MountPlaces, find_path, read_mounts
from sublet.runtime.jobs.nodes import TORCHRUN, Width, starts_its_own, width_of
from sublet.runtime.jobs.serialize import HIDDEN
from sublet.runtime.jobs.shell import as_skypilot
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.jobs.values import parse_deadline_s, parse_field
from sublet.runtime.jobs.yaml_lines import Document

if TYPE_CHECKING:
    from sublet.runtime.jobs.schema import JobFile

__all__ = ["Surroundings", "build_job"]

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The context of a file beyond its text: where it lies, whose variables it may take, when it is read."""

    places: MountPlaces  # what paths are relative to; `workdir`, too
    environment: Mapping[str, str]
    given: Mapping[str, str] = field(default_factory=dict)  # variables that stand above those of the file
    now: datetime
    default_name: str


@dataclass(slots=True)
class _Collector:
    """Collects what is wrong, so that the next mistake is found as well."""

    found: list[InvalidValue] = field(default_factory=list)

    def attempt(self, make: Callable[[], Made]) -> Made | None:
        """The result of `make`, or None and one mistake more."""
        try:
            return make()
        except InvalidValue as error:
            self.found.append(error)
            return None


def build_job(
    file: JobFile, document: Document, surroundings: Surroundings, notes: Sequence[str] = ()
) -> tuple[JobSpec | None, list[InvalidValue]]:
    """The job, or None and everything that is wrong with it; `notes` were made of the file before."""
    wrong = _Collector()
    return _build(file, document, surroundings, wrong, list(notes)), wrong.found


def _build(
    file: JobFile, document: Document, surroundings: Surroundings, wrong: _Collector, notes: list[str]
) -> JobSpec | None:
    places = surroundings.places
    cwd = wrong.attempt(lambda: _workdir(file, places, notes))
    where = cwd or places.bases[0]
    env = _fill_in("envs", file.envs, surroundings, wrong)
    secrets = _fill_in("secrets", file.secrets, surroundings, wrong)
    env |= {name: text for name, text in surroundings.given.items() if name not in {**env, **secrets}}
    folder = wrong.attempt(lambda: _folder("checkpoint.uri", file.checkpoint.uri, where)) or ""
    deadline_s = wrong.attempt(lambda: _deadline_s(file, document, surroundings.now))
    mounts = read_mounts(file.file_mounts, {**env, **secrets}, places)
    wrong.found += mounts.wrong
    image, more = wrong.attempt(lambda: image_of(file.resources.image_id, {**env, **secrets})) or ("", [])
    notes += [*mounts.notes, *more]
    brought = bool(file.setup or mounts.given or image)
    command = wrong.attempt(lambda: _command(file, cwd, brought=brought, noted=bool(notes))) or Command.nothing(file)
    width = command.width
    notes += width.notes
    wrong.found += out_of_bounds(
        file,
        document.values,
        argv=command.argv,
        cwd=str(where),
        folder=folder,
        mounts=mounts.given,
        env=env,
        secrets=secrets,
        kinds=width.kinds,
        workers=(width.low, width.high),
        deadline_s=deadline_s,
    )
    if wrong.found:
        return None
    return wrong.attempt(
        lambda: JobSpec(
            name=file.name or surroundings.default_name,
            argv=command.argv,
            cwd=str(where),
            setup=as_skypilot(file.setup) if file.setup and width.per_node else file.setup,
            mounts=mounts.given,
            kept_mounts=tuple(mounts.kept),
            new_mounts=tuple(mounts.new),
            image=image,
            per_node=width.per_node,
            notes=tuple(dict.fromkeys(notes)),
            env=env,
            secrets=secrets,
            sdk=command.sdk,
            torchrun=command.torchrun,
            joins=command.joins,
            min_workers=width.low,
            max_workers=width.high,
            sizes=tuple(file.elastic.sizes) if file.elastic else (),
            shards=file.parallel.ranges,
            stages=0 if file.parallel.stages == "auto" else file.parallel.stages,
            on_node_loss=OnNodeLoss(file.elastic.on_node_loss if file.elastic else "continue"),
            accelerators=width.kinds,
            market=file.resources.market(),
            min_on_demand=file.resources.min_on_demand,
            work=file.training.work(),
            samples_per_s=file.training.samples_per_s,
            checkpoint_dir=folder,
            checkpoint_copy=file.checkpoint.copy_to.rstrip("/"),
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
    """Options left out of a file have the default of a job."""
    return {name: value for name, value in values.items() if value is not None}


def _workdir(file: JobFile, places: MountPlaces, notes: list[str]) -> Path:
    if "://" in file.workdir or file.workdir.startswith("git@"):
        raise InvalidValue("workdir", file.workdir, "a directory of this machine; clone a repository in setup")
    cwd, near = find_path(file.workdir, places), replace(places, bases=places.bases[:1])
    if cwd is None or cwd.is_file():
        there = places.bases[0] / os.path.expanduser(file.workdir)  # noqa: PTH111 - an unknown home makes no error
        raise InvalidValue("workdir", file.workdir, f"a directory that exists; {there} does not")
    if cwd != find_path(file.workdir, near):
        notes.append(f"workdir = {file.workdir!r}: there is none beside the file, so it is {cwd}")
    return cwd


@dataclass(frozen=True, slots=True)
class Command:
    """The command of one process of a job, and its GPUs."""

    argv: tuple[str, ...]
    width: Width
    sdk: bool = False
    torchrun: bool = False
    joins: str = ""

    @classmethod
    def nothing(cls, file: JobFile) -> Command:
        """The command of a file that cannot be read."""
        return cls(("true",), width_of(file, own=True, foreign=False))


def _command(file: JobFile, cwd: Path | None, *, brought: bool, noted: bool) -> Command:
    """That its script exists cannot be said without the directory, nor where setup or file_mounts may bring it."""
    argv = argv_from_run(file.run)
    shell = argv[0] == "bash"
    if cwd is not None and cwd.is_dir() and not brought:
        refuse_missing_script(argv, str(cwd))
    sdk = (uses_sdk(argv, str(cwd or "/")) if file.training.sdk == "auto" else file.training.sdk) is True
    torchrun = not shell and is_torchrun(file.run.split())
    foreign = starts_its_own(file.run) or (shell and (brought or noted))
    width = width_of(file, own=sdk or torchrun, foreign=foreign)
    if shell and not width.per_node and TORCHRUN.search(argv[-1]):
        allowed = "torchrun as the only command, or a job of whole nodes (no elastic): Sublet starts the workers itself"
        raise InvalidValue("run", shorten(file.run), allowed)
    if width.per_node and shell:
        argv = ("bash", "-c", as_skypilot(argv[-1]))
    joins = joins_group(argv, str(cwd or "/"))
    return Command(argv, width, sdk=sdk, torchrun=torchrun, joins="" if brought and joins == "no" else joins)


def _deadline_s(file: JobFile, document: Document, now: datetime) -> float | None:
    if file.deadline is None:
        return None
    written = document.values["deadline"]  # a date of YAML is still one there
    return parse_field("deadline", str(file.deadline), lambda _: parse_deadline_s(written, now=now))


def _fill_in(
    field: str, written: Mapping[str, str | None], surroundings: Surroundings, wrong: _Collector
) -> dict[str, str]:
    """A variable that was given beside the file, that of the file, or, without a value, that of the caller."""
    values = {}
    for name, value in written.items():
        found = surroundings.environment.get(name) if value is None else value
        found = surroundings.given.get(name, found)
        if found is None:
            missing = f"given in the file, by --env {name}=..., or set before: export {name}=..."
            wrong.found.append(InvalidValue(f"{field}.{name}", None, missing))
        elif "\0" in found:
            wrong.found.append(InvalidValue(f"{field}.{name}", HIDDEN, "without a zero byte"))
        else:
            values[name] = found
    return values


def _folder(field: str, uri: str, cwd: Path) -> str:
    if not uri:
        return ""
    if is_remote(uri):
        check_uri(field, uri)
        return uri.rstrip("/")
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return str((cwd / Path(uri).expanduser()).resolve())
    if scheme != "file" or not rest.startswith("/"):
        raise InvalidValue(field, uri, "a directory, file:///a/directory, or s3://bucket/prefix")
    return rest
