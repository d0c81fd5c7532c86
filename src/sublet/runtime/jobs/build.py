"""From a job file that could be read to the job: paths and variables filled in, the command split, bounds checked."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sublet.domain.units import DAY_S
from sublet.errors import InvalidValue
from sublet.machine.remote import SCHEMES as STORES
from sublet.machine.remote import check_uri, is_remote
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.runtime.jobs.command import argv_from_run, is_torchrun, joins_group, refuse_missing_script, uses_sdk
from sublet.runtime.jobs.mistakes import Document, shorten
from sublet.runtime.jobs.spec import HIDDEN, JobSpec, Retries
from sublet.runtime.jobs.values import parse_deadline_s, parse_field

if TYPE_CHECKING:
    from sublet.runtime.jobs.schema import Bucket, JobFile

VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
SCHEMES: Final = {"gcs": "gs", "azure": "az"}  # by the name of a store; others are called like their scheme
MODES: Final = ("COPY", "MOUNT", "MOUNT_CACHED")


@dataclass(frozen=True, slots=True)
class MountPlaces:
    """Base folders for paths of a file: beside it, then where one is."""

    bases: tuple[Path, ...]
    exists: Callable[[Path], bool] = Path.exists


@dataclass(slots=True)
class Mounts:
    """Mounts, by the path on a node; of `kept` ones something goes back, for `new` ones a bucket is made."""

    given: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[InvalidValue] = field(default_factory=list)


def read_mounts(written: Mapping[str, Bucket], variables: Mapping[str, str], places: MountPlaces) -> Mounts:
    """All of them, and everything that is wrong; a local path is looked for in each of `places`."""
    found = Mounts()
    for key, value in written.items():
        try:
            there = with_variables(f"file_mounts.{key}", key, variables)
            _read_bucket(found, there, value, variables, places)
        except InvalidValue as error:
            found.wrong.append(error)
    return found


def with_variables(name: str, text: str, variables: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` are values of `envs`, as SkyPilot has it."""

    def fill(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[2])
        if known is None:
            raise InvalidValue(name, text, f"with variables of envs alone; {match[0]} is none")
        return known

    return VARIABLE.sub(fill, text)


def find_path(text: str, places: MountPlaces) -> Path | None:
    """A path of this machine: relative to the first of `places` where it exists."""
    for base in places.bases:
        try:
            path = base / Path(text).expanduser()
            if places.exists(path):
                return path.resolve()
        except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a zero byte
            continue
    return None


def _read_bucket(found: Mounts, there: str, bucket: Bucket, variables: Mapping[str, str], places: MountPlaces) -> None:
    key = f"file_mounts.{there}"
    if bucket.mode.upper() not in MODES:
        raise InvalidValue(f"{key}.mode", bucket.mode, f"one of {', '.join(MODES)}")
    writes = bucket.mode.upper() != "COPY"
    for at, source in _sources(key, there, bucket, variables):
        found.given[at] = _whole(key, source, places)
        if "://" in source:
            found.kept += [at] if writes else []
        elif writes:
            found.notes.append(f"{key}: its files are brought to the node; what is written there stays on the node")
    if bucket.source is None and writes:
        found.new.append(there)
    if bucket.source is None and bucket.store is None:
        found.notes.append(f"{key}: no store is named, so it is the bucket {found.given[there]}")
    if not bucket.persistent:
        found.notes.append(f"{key}: no bucket is deleted, though persistent is false")


def _sources(key: str, there: str, bucket: Bucket, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Sources of each path: the bucket, a path, or each of several paths below it."""
    given = bucket.source
    if given is None:
        if not bucket.name:
            raise InvalidValue(key, "no source and no name", "a source, or the name of a bucket")
        store = with_variables(f"{key}.store", bucket.store or "s3", variables).lower()
        yield there, f"{SCHEMES.get(store, store)}://{with_variables(f'{key}.name', bucket.name, variables)}"
    elif isinstance(given, str):
        yield there, with_variables(f"{key}.source", given, variables)
    else:
        for text in given:
            source = with_variables(f"{key}.source", text, variables)
            yield f"{there.rstrip('/')}/{Path(source).name}", source


def _whole(key: str, source: str, places: MountPlaces) -> str:
    """A URI of a store that nodes can ask, a local path as an absolute one that exists."""
    scheme, separator, _ = source.partition("://")
    if separator and scheme not in STORES:
        raise InvalidValue(key, source, f"a bucket of a store that can be asked: {', '.join(STORES)}")
    if separator:
        return source
    if not source.strip() or (found := find_path(source, places)) is None:
        raise InvalidValue(key, source, f"a file or folder that exists, or a URI; there is none in {places.bases[0]}")
    return str(found)


FIELD: Final = "resources.image_id"
CONTAINER, SYSTEM = "docker:", "skypilot:"
ENGINE: Final = "docker or podman of its nodes runs it; a node that has neither ends the job with that"
KEPT: Final = "the system of the nodes is the one that the controller rents them with"
# A .bashrc ends early in a shell that is not interactive; SkyPilot's is interactive. A shell of that kind ignores
# SIGTERM, which a job must not, so that only the lines that ask for it are passed over.
ASKS: Final = (r"/^case \$- in/,/^esac/d", r"/\$- *!= *\*i\*/d", r'/^\[ -z "*\$PS1"* \] && return/d')
PASSED: Final = " ".join(f"-e '{each}'" for each in ASKS)
BEGIN: Final = f"""\
set +eu +o pipefail  # as SkyPilot runs it: on after a command that fails
. <(sed {PASSED} ~/.bashrc 2>/dev/null) >/dev/null 2>&1
[ -z "${{SUBLET_BIN:-}}" ] || PATH="$SUBLET_BIN:$PATH"  # the environment that was asked for, before that of ~/.bashrc
"""


DURATIONS: Final = frozenset({"restart_s", "grace_s", "hang_s", "replace_s", "checkpoint_every_s", "deadline_s"})


def _out_of_bounds(  # noqa: PLR0913 - what the file says, and what was made of it
    file: JobFile,
    written: Mapping[str, Any],
    *,
    argv: Sequence[str],
    cwd: str,
    folder: str,
    mounts: Mapping[str, str],
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    kinds: Sequence[str],
    workers: tuple[int, int],
    deadline_s: float | None,
) -> Iterator[InvalidValue]:
    """Everything that is; a job of the rest can be made."""
    for name, (key, value) in _numbers(file, deadline_s).items():
        low, high = bounds.RANGES[name]
        if value is not None and not low <= value <= high:
            yield InvalidValue(key, _as_written(written, key), _allowed(name, low, high))
    elastic = file.elastic
    checks: tuple[Callable[[], None], ...] = (
        *(lambda each=each: bounds.retries(f"retry.{each}", getattr(file.retry, each)) for each in bounds.FAULTS),
        lambda: bounds.job_name(file.name) if file.name is not None else None,
        lambda: bounds.command(argv),
        lambda: bounds.path("workdir", cwd),
        lambda: bounds.path("checkpoint.uri", folder),
        lambda: bounds.absolute("checkpoint.copy", file.checkpoint.copy_to),
        lambda: bounds.script("setup", file.setup),
        lambda: bounds.mounts(mounts),
        lambda: bounds.variables("envs", env),
        lambda: bounds.variables("secrets", secrets),
        lambda: bounds.kinds(kinds),
        lambda: bounds.workers(*workers, elastic.sizes if elastic else ()),
        lambda: bounds.stages(
            0 if file.parallel.stages == "auto" else file.parallel.stages, workers[1], elastic.sizes if elastic else ()
        ),
        lambda: bounds.core(
            file.resources.min_on_demand,
            min(elastic.sizes if elastic and elastic.sizes else workers),
            file.resources.market(),
        ),
    )
    for check in checks:
        try:
            check()
        except InvalidValue as error:
            if error.field == "elastic.workers" and elastic is None:  # nodes times GPUs of a node
                error = InvalidValue("num_nodes", _as_written(written, "num_nodes"), f"fewer: {error.allowed} workers")
            yield error


def _numbers(file: JobFile, deadline_s: float | None) -> dict[str, tuple[str, float | None]]:
    """By the names of the table: the key in the file, and the value; None where it says nothing."""
    steps = file.training.target.steps is not None
    return {
        "work": ("training.target.steps" if steps else "training.target.samples", file.training.work()),
        "samples_per_s": ("training.samples_per_s", file.training.samples_per_s),
        "restart_s": ("elastic.restart", file.elastic.restart if file.elastic else None),
        "grace_s": ("stop_duration", file.stop_duration),
        "hang_s": ("training.hang", file.training.hang),
        "replace_s": ("elastic.replace_within", file.elastic.replace_within if file.elastic else None),
        "checkpoint_every_s": (
            "checkpoint.interval",
            None if file.checkpoint.interval == "auto" else file.checkpoint.interval,
        ),
        "purse_usd": ("budget.total", file.budget.total if file.budget else None),
        "deadline_s": ("deadline", deadline_s),
        "weight": ("weight", file.weight),
    }


def _as_written(written: Mapping[str, Any], key: str) -> object:
    """The value in the file, before it was read as seconds or dollars."""
    inside: Any = written
    for part in key.split("."):
        if not isinstance(inside, Mapping):
            break  # `budget: 120` for `budget: {total: 120}`
        inside = inside.get(part)
    return inside if isinstance(inside, str | int | float) else str(inside)


def _allowed(name: str, low: float, high: float) -> str:
    if name in DURATIONS:
        return f"a duration from {low:g}s to {high:.0f}s (about {high / DAY_S:,.0f} days)"
    if name == "purse_usd":
        return f"dollars from {low:.6f} to {high:,.0f}"
    return f"a number from {low:g} to {high:g}"


LAUNCHERS: Final = re.compile(
    r"\btorchrun\b|torch\.distributed\.(run|launch)\b|\baccelerate\s+launch\b|\bdeepspeed\b|\bmpirun\b|\bray\s+start\b"
    r"|\bSKYPILOT_[A-Z]"
)
_TORCHRUN: Final = re.compile(r"\btorchrun\b|torch\.distributed\.(run|launch)\b")


@dataclass(slots=True)
class _Width:
    """How wide a job is: the kinds that will do, from `low` to `high` workers, `per_node` of them in one process."""

    kinds: tuple[str, ...]
    low: int
    high: int
    per_node: int = 0
    notes: list[str] = field(default_factory=list)


def _starts_its_own(run: str) -> bool:
    """The text starts processes for the GPUs itself, or asks which node it is on."""
    return LAUNCHERS.search(run) is not None


def _width_of(file: JobFile, *, own: bool, foreign: bool) -> _Width:
    """By `elastic`, or by nodes and GPUs per node.

    `own`: the command is the worker of one GPU (it has a session, or is torchrun's). `foreign`: the file is one for
    SkyPilot, whose command is for a node also where that has one GPU.
    """
    choices = file.resources.choices()
    kinds = tuple(dict.fromkeys(kind for kind, _ in choices))
    if file.elastic is not None:
        return _Width(kinds, *file.elastic.workers)
    counts = [count for _, count in choices if count is not None]
    low, high = (min(low for low, _ in counts), max(high for _, high in counts)) if counts else (1, 1)
    fixed = all(low == high for low, high in counts)
    if own or not fixed or (high == 1 and not foreign):
        return _Width(kinds, file.num_nodes * low, file.num_nodes * high)
    gpus, notes = _one_count([count[0] for count in counts]), []
    if low != high:
        kinds = tuple(dict.fromkeys(kind for kind, count in choices if count == (gpus, gpus)))
        some = f"{gpus} GPU{'s' if gpus > 1 else ''} per node, of {' or '.join(kinds)}"
        notes.append(f"resources.accelerators: {some}; the other numbers are left aside")
    return _Width(kinds, file.num_nodes * gpus, file.num_nodes * gpus, gpus, notes)


def _one_count(counts: Sequence[int]) -> int:
    """The number that most kinds may have, the smallest of several."""
    often = Counter(counts or [1])
    return min(often, key=lambda count: (-often[count], count))


def _image_of(given: Any, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """The container's image, "" for none, and what is to be noted; an image of another machine is refused."""
    from sublet.runtime.jobs.build import with_variables

    if given is None:
        return "", []
    texts = list(given.values()) if isinstance(given, Mapping) else given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidValue(FIELD, str(given), "docker: and the name of an image")
    filled = [with_variables(FIELD, text, variables).strip() for text in texts]
    if all(text.startswith(SYSTEM) for text in filled):
        return "", [f"{FIELD} = {', '.join(filled)}: {KEPT}"]
    if len(set(filled)) > 1:
        raise InvalidValue(FIELD, ", ".join(filled), "one image for all places: the job runs in any of them")
    name = filled[0].removeprefix(CONTAINER)
    if not filled[0].startswith(CONTAINER) and ("/" not in name or name.startswith(("projects/", "ocid"))):
        allowed = "docker: and an image; that of a machine is set for all nodes, by the provider's settings"
        raise InvalidValue(FIELD, filled[0], allowed)
    if not name or any(letter.isspace() for letter in name) or name.startswith("-"):
        raise InvalidValue(FIELD, filled[0], "docker: and the name of an image")
    return name, [f"{FIELD} = {name}: {ENGINE}"]


def _as_skypilot(text: str) -> str:
    """The text, for `bash -c`."""
    return f"{BEGIN}{text}"


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
    image, more = wrong.attempt(lambda: _image_of(file.resources.image_id, {**env, **secrets})) or ("", [])
    notes += [*mounts.notes, *more]
    brought = bool(file.setup or mounts.given or image)
    command = wrong.attempt(lambda: _command(file, cwd, brought=brought, noted=bool(notes))) or Command.nothing(file)
    width = command.width
    notes += width.notes
    wrong.found += _out_of_bounds(
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
            setup=_as_skypilot(file.setup) if file.setup and width.per_node else file.setup,
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
    width: _Width
    sdk: bool = False
    torchrun: bool = False
    joins: str = ""

    @classmethod
    def nothing(cls, file: JobFile) -> Command:
        """The command of a file that cannot be read."""
        return cls(("true",), _width_of(file, own=True, foreign=False))


def _command(file: JobFile, cwd: Path | None, *, brought: bool, noted: bool) -> Command:
    """That its script exists cannot be said without the directory, nor where setup or file_mounts may bring it."""
    argv = argv_from_run(file.run)
    shell = argv[0] == "bash"
    if cwd is not None and cwd.is_dir() and not brought:
        refuse_missing_script(argv, str(cwd))
    sdk = (uses_sdk(argv, str(cwd or "/")) if file.training.sdk == "auto" else file.training.sdk) is True
    torchrun = not shell and is_torchrun(file.run.split())
    foreign = _starts_its_own(file.run) or (shell and (brought or noted))
    width = _width_of(file, own=sdk or torchrun, foreign=foreign)
    if shell and not width.per_node and _TORCHRUN.search(argv[-1]):
        allowed = "torchrun as the only command, or a job of whole nodes (no elastic): Sublet starts the workers itself"
        raise InvalidValue("run", shorten(file.run), allowed)
    if width.per_node and shell:
        argv = ("bash", "-c", _as_skypilot(argv[-1]))
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
