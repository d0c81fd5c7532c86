"""Job files: YAML in, JobSpec out. Names are SkyPilot's where the meaning is the same.

What is wrong is told with its place in the file, its value, what is allowed and the next step. A key that SkyPilot or
dstack know and Sublet does not is refused as that, not as a typo: nothing in a file is silently ignored.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sublet.errors import BadInput, InvalidValue, MissingExtra
from sublet.runtime.jobs.bounds import NAME
from sublet.runtime.jobs.checks import out_of_bounds
from sublet.runtime.jobs.command import argv_from_run, is_torchrun, script_of, uses_sdk, without_torchrun
from sublet.runtime.jobs.serialize import HIDDEN
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.jobs.values import parse_deadline_s, parse_field
from sublet.runtime.jobs.yaml_lines import Document, document_from_text

if TYPE_CHECKING:
    from sublet.runtime.jobs.schema import JobFile

__all__ = ["job_from_command", "job_from_file", "job_from_text", "json_schema", "name_from"]

MOST_TOLD = 50  # mistakes at once: all of any file that somebody wrote
LONGEST_VALUE = 60  # letters of a wrong value that are repeated
Made = TypeVar("Made")
HINT = "sublet schema shows every key"


def job_from_file(path: Path, *, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """The job that the file describes; `workdir` is relative to the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(path, "there is no such file", hint="give the path of a job file") from None
    except IsADirectoryError:
        raise BadInput(path, "it is a directory", hint="give the path of a job file") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(str(path)[:200], f"cannot be read ({why})") from None
    return job_from_text(text, source=path, base=path.absolute().parent, environment=environment)


def job_from_text(
    text: str,
    *,
    source: object,
    base: Path,
    environment: Mapping[str, str] = os.environ,
    now: datetime | None = None,
) -> JobSpec:
    """As `job_from_file`, for text that is no file; `base` is what `workdir` is relative to."""
    schema = _schema()
    document = document_from_text(text, source=source)
    mistakes = _odd_keys(document)
    file, found = _file_from(schema.JobFile, document, left_out=[each.path for each in mistakes if each.line is None])
    mistakes += found
    if file is not None:
        wrong = _Wrong()
        default = name_from(Path(str(source)).stem)
        spec = _spec_from(file, document, base, environment, now or datetime.now(UTC), default, wrong)
        mistakes += [_Mistake(path=tuple(error.field.split(".")), text=str(error)) for error in wrong.found]
        if spec is not None and not mistakes:
            return spec
    raise _told(mistakes, document, source)


def job_from_command(
    argv: Sequence[str],
    *,
    name: str = "",
    workers: tuple[int, int] = (1, 1),
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    market: str = "auto",
    sdk: bool | None = None,
    purse_usd: float | None = None,
) -> JobSpec:
    """The job of `sublet run -- python train.py`."""
    words = without_torchrun(argv)
    folder = cwd or str(Path.cwd())
    script = script_of(words, folder)
    _refuse_missing(words, script, folder)
    return JobSpec(
        name=name or name_from(Path(script or (words or ("job",))[0]).stem),
        argv=words,
        cwd=folder,
        env=dict(env or {}),
        sdk=uses_sdk(words, folder) if sdk is None else sdk,
        torchrun=is_torchrun(argv),
        min_workers=workers[0],
        max_workers=workers[1],
        market=market,
        purse_usd=purse_usd,
    )


def json_schema() -> dict[str, Any]:
    """What an editor needs to complete and check job files."""
    schema = _schema().JobFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def name_from(text: str) -> str:
    """A job name out of a file's or command's: lower case letters, digits and hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return name or "job"


# ---------------------------------------------------------------------- from the file to the job


def _schema() -> Any:
    try:
        from sublet.runtime.jobs import schema as jobfile_schema
    except ImportError:
        raise MissingExtra("pydantic, which checks job files,", "server") from None
    return jobfile_schema


class _Wrong:
    """Collects what is wrong, so that the next mistake is found as well."""

    def __init__(self) -> None:
        self.found: list[InvalidValue] = []

    def attempt(self, make: Callable[[], Made]) -> Made | None:
        """What it makes, or None and one mistake more."""
        try:
            return make()
        except InvalidValue as error:
            self.found.append(error)
            return None


def _spec_from(
    file: JobFile,
    document: Document,
    base: Path,
    environment: Mapping[str, str],
    now: datetime,
    default: str,
    wrong: _Wrong,
) -> JobSpec | None:
    """The job; None if anything is wrong, which is in `wrong` then, all of it."""
    cwd = wrong.attempt(lambda: _workdir(file, base))
    argv = wrong.attempt(lambda: _argv(file, cwd)) or ("true",)
    where = cwd or base
    kinds, counts = file.resources.wanted()
    low, high = file.workers(counts)
    env = _filled("envs", file.envs, environment, wrong)
    secrets = _filled("secrets", file.secrets, environment, wrong)
    folder = wrong.attempt(lambda: _folder("checkpoint.uri", file.checkpoint.uri, where)) or ""
    deadline_s = wrong.attempt(lambda: _deadline_s(file, document, now))
    wrong.found += out_of_bounds(
        file,
        document.values,
        argv=argv,
        cwd=str(where),
        folder=folder,
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
            name=file.name or default,
            argv=argv,
            cwd=str(where),
            env=env,
            secrets=secrets,
            sdk=uses_sdk(argv, str(where)) if file.training.sdk == "auto" else file.training.sdk,
            torchrun=is_torchrun(file.run.split()),
            min_workers=low,
            max_workers=high,
            sizes=tuple(file.elastic.sizes) if file.elastic else (),
            accelerators=kinds,
            market=file.resources.market(),
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
        raise InvalidValue("run", _short(file.run), allowed)
    if cwd is not None:
        _refuse_missing(argv, script_of(argv, str(cwd)), str(cwd))
    return argv


def _deadline_s(file: JobFile, document: Document, now: datetime) -> float | None:
    if file.deadline is None:
        return None
    written = document.values["deadline"]  # a date of YAML is still one there
    return parse_field("deadline", str(file.deadline), lambda _: parse_deadline_s(written, now=now))


def _refuse_missing(argv: Sequence[str], script: Path | None, cwd: str) -> None:
    """Better to hear of a missing script now than from a worker on a rented node."""
    if script is not None and not script.is_file():
        raise InvalidValue("run", shlex.join(argv), f"a script that exists; there is no {script.name} in {cwd}")


def _filled(
    field: str, given: Mapping[str, str | None], environment: Mapping[str, str], wrong: _Wrong
) -> dict[str, str]:
    """A variable without a value takes that of the caller's environment."""
    filled = {}
    for name, value in given.items():
        found = environment.get(name) if value is None else value
        if found is None:
            missing = f"given in the file, or set before: export {name}=..."
            wrong.found.append(InvalidValue(f"{field}.{name}", None, missing))
        elif "\0" in found:
            wrong.found.append(InvalidValue(f"{field}.{name}", HIDDEN, "without a zero byte"))
        else:
            filled[name] = found
    return filled


def _folder(field: str, uri: str, cwd: Path) -> str:
    if not uri:
        return ""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return str((cwd / Path(uri).expanduser()).resolve())
    if scheme != "file" or not rest.startswith("/"):
        raise InvalidValue(field, uri, "a directory, or file:///a/directory: nothing else is supported yet")
    return rest


# ---------------------------------------------------------------------- what is wrong, and where


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mistake:
    """One thing that is wrong."""

    path: tuple[Any, ...]
    text: str
    missing: bool = False
    line: int | None = None  # None = where its key is
    advice: str = ""  # the next step, where it is another than to look at the schema


def _odd_keys(document: Document) -> list[_Mistake]:
    """Keys that are there twice, and those of SkyPilot, dstack or a later Sublet before pydantic calls them unknown."""
    found = [
        _Mistake(path=path, text=f"{'.'.join(map(str, path))} is there twice", line=line, advice="keep one of them")
        for path, line in document.twins
    ]
    for place, foreign in _schema().FOREIGN.items():
        inside: Any = document.values
        for key in place:
            inside = inside.get(key) if isinstance(inside, dict) else None
        for key in inside if isinstance(inside, dict) else ():
            if key in foreign:
                path = (*place, key)
                text = f"{'.'.join(path)} is not supported by Sublet"
                found.append(_Mistake(path=path, text=text, advice=foreign[key]))
    return found


def _file_from(
    kind: type[JobFile], document: Document, *, left_out: Sequence[tuple[Any, ...]]
) -> tuple[JobFile | None, list[_Mistake]]:
    """The file as pydantic reads it, and its mistakes.

    What is wrong is left out and the rest read again, until it can be read: some mistakes are only looked for in a
    file that is right in itself. None where nothing can be left out.
    """
    from pydantic import ValidationError

    values = copy.deepcopy(dict(document.values))
    mistakes: list[_Mistake] = []
    for path in left_out:
        _leave_out(values, path)
    for _ in range(MOST_TOLD):
        try:
            return kind.model_validate(values), mistakes
        except ValidationError as error:
            faults = {_path(fault, document): fault for fault in reversed(error.errors())}  # one for each place
        lighter = False
        for path, fault in faults.items():
            missing = fault["type"] == "missing"
            if path not in {mistake.path for mistake in mistakes}:  # else it is missing because it was left out
                mistakes.append(_Mistake(path=path, text=_sentence(path, fault), missing=missing))
            if missing and path == ("run",):
                values["run"], lighter = "true", True
            else:
                lighter |= _leave_out(values, path[:-1] if missing else path)
        if not lighter:
            break
    return None, mistakes


def _leave_out(values: Any, path: Sequence[Any]) -> bool:
    """Take the key at `path` away, or the whole list that it is in; False where there is none."""
    inside = values
    for at, key in enumerate(path):
        if not isinstance(inside, dict) or key not in inside:
            return False
        if at == len(path) - 1 or not isinstance(inside[key], dict):
            del inside[key]
            return True
        inside = inside[key]
    return False


def _told(mistakes: Sequence[_Mistake], document: Document, source: object) -> BadInput:
    """All mistakes as one error: the first in the file first, what is missing last (a typo may be why)."""
    placed = [replace(each, line=each.line or document.line_of(each.path)) for each in mistakes]
    ordered = sorted(placed, key=lambda each: (each.missing, each.line or 0))
    alone = len(ordered) == 1
    texts = [each.text if alone or not each.advice else f"{each.text}: {each.advice}" for each in ordered]
    lines = [each.line for each in ordered]
    more = [f"\n  also line {at or 1}: {text}" for at, text in zip(lines[1:MOST_TOLD], texts[1:MOST_TOLD], strict=True)]
    if len(texts) > MOST_TOLD:
        more.append(f"\n  and {len(texts) - MOST_TOLD} more")
    hint = ordered[0].advice if alone and ordered[0].advice else HINT
    return BadInput(source, texts[0] + "".join(more), line=lines[0], hint=hint)


def _path(fault: Any, document: Document) -> tuple[Any, ...]:
    """Where it is in the file: pydantic's place without what it adds for unions and keys."""
    path: tuple[Any, ...] = ()
    for part in fault["loc"]:
        if (*path, part) not in document.lines:
            return (*path, part) if fault["type"] == "missing" or part == "total" else path
        path = (*path, part)
    return path


def _sentence(path: tuple[Any, ...], fault: Any) -> str:
    where = ".".join(str(_short(str(part))) for part in path) or "the file"
    if fault["type"] == "extra_forbidden":
        known = _schema().keys_at(path[:-1])
        close = difflib.get_close_matches(str(path[-1]), known, n=2, cutoff=0.5)
        advice = f"did you mean {' or '.join(close)}?" if close else f"known here: {', '.join(known)}"
        return f"{where} is no key of a job file; {advice}"
    if fault["type"] == "missing":
        return f"{where} is missing"
    value = HIDDEN if path[:1] in {("secrets",), ("envs",)} else _short(fault["input"])
    return f"{where} = {value!r} is not allowed; it must be {_allowed(fault)}"


def _allowed(fault: Any) -> str:
    """Pydantic's message in our words."""
    message = str(fault["msg"])
    for before in ("Value error, ", "Input should be "):
        message = message.removeprefix(before)
    if fault["type"] == "model_type":
        return "a group of keys"
    if fault["type"] == "string_too_short":
        return "a command" if fault["loc"] == ("run",) else "some text"
    if fault["type"] == "string_pattern_mismatch":
        return _PATTERNS.get(fault["loc"][0], "a name of letters, digits and underscores")
    return message


_PATTERNS = {"name": NAME}


def _short(value: object) -> object:
    text = value if isinstance(value, str) else None
    if text is not None:
        return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."
    if isinstance(value, dict | list):
        return f"{len(value)} {'keys' if isinstance(value, dict) else 'values'}"
    return value if len(repr(value)) <= LONGEST_VALUE else repr(value)[:LONGEST_VALUE] + "..."
