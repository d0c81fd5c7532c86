"""Job files: YAML in, JobSpec out. Names are SkyPilot's where the meaning is the same.

A mistake is told with its place in the file, its value, what is allowed and the next step. A key that SkyPilot or
dstack know and Sublet does not is refused as that, not as a typo: nothing in a file is silently ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sublet.errors import BadInput, MissingExtra
from sublet.machine.wall import WALL
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.build import MountPlaces
from sublet.runtime.jobs.command import (
    is_torchrun,
    joins_group,
    refuse_missing_script,
    script_of,
    uses_sdk,
    without_torchrun,
)
from sublet.runtime.jobs.mistakes import document_from_text
from sublet.runtime.jobs.skypilot import NOTED
from sublet.runtime.jobs.spec import JobSpec


def job_from_file(
    path: Path,
    *,
    environment: Mapping[str, str] = os.environ,
    given: Mapping[str, str] | None = None,
    places: MountPlaces | None = None,
) -> JobSpec:
    """The job that the file describes; paths are relative to the file, else to where one is, unless `places` says.

    Variables that are `given` stand above those of the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(path, "there is no such file", hint="give the path of a job file") from None
    except IsADirectoryError:
        raise BadInput(path, "it is a directory", hint="give the path of a job file") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(str(path)[:200], f"cannot be read ({why})") from None
    base = path.absolute().parent
    return job_from_text(text, source=path, base=base, environment=environment, given=given, places=places)


def job_from_text(
    text: str,
    *,
    source: object,
    base: Path,
    environment: Mapping[str, str] = os.environ,
    given: Mapping[str, str] | None = None,
    places: MountPlaces | None = None,
    now: datetime | None = None,
) -> JobSpec:
    """As `job_from_file`, for text that is no file; `base` is what `workdir` is relative to."""
    _require_pydantic()
    from sublet.runtime.jobs.build import Surroundings, build_job
    from sublet.runtime.jobs.mistakes import Mistake, as_error, validate_document

    document = document_from_text(text, source=source)
    file, mistakes, notes = validate_document(document)
    if file is not None:
        surroundings = Surroundings(
            places=places or MountPlaces((base, Path.cwd())),
            environment=environment,
            given=given or {},
            now=now or datetime.fromtimestamp(WALL.unix(), UTC),
            default_name=name_from(Path(str(source)).stem),
        )
        spec, wrong = build_job(file, document, surroundings, notes)
        mistakes += [Mistake(path=tuple(error.field.split(".")), text=str(error)) for error in wrong]
        if spec is not None and not mistakes:
            written = isinstance(source, Path) and any(file.secrets.values())
            return replace(spec, unsent=(str(Path(str(source)).resolve()),)) if written else spec
    raise as_error(mistakes, document, source)


def job_from_command(
    argv: Sequence[str],
    *,
    name: str = "",
    workers: tuple[int, int] = (1, 1),
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    market: str = bounds.MarketChoice.AUTO,
    sdk: bool | None = None,
    purse_usd: float | None = None,
) -> JobSpec:
    """The job of `sublet run -- python train.py`."""
    words = without_torchrun(argv)
    folder = cwd or str(Path.cwd())
    refuse_missing_script(words, folder)
    return JobSpec(
        name=name or name_from(Path(script_of(words, folder) or (words or ("job",))[0]).stem),
        argv=words,
        cwd=folder,
        env=dict(env or {}),
        sdk=uses_sdk(words, folder) if sdk is None else sdk,
        torchrun=is_torchrun(argv),
        joins=joins_group(words, folder),
        min_workers=workers[0],
        max_workers=workers[1],
        market=bounds.market(market),
        purse_usd=purse_usd,
    )


def json_schema() -> dict[str, Any]:
    """The schema with which an editor completes and checks job files."""
    _require_pydantic()
    from sublet.runtime.jobs.schema import JobFile

    schema = JobFile.model_json_schema()
    for place, keys in NOTED.items():
        groups = [schema["$defs"][name] for name in ("Resources", "Choice")] if place else [schema]
        for group in groups:
            group["properties"] |= {key: {"description": f"Of SkyPilot; noted: {text}."} for key, text in keys.items()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def name_from(text: str) -> str:
    """A job name out of a file's or command's: lower case letters, digits and hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return name or "job"


def _require_pydantic() -> None:
    try:
        import pydantic  # noqa: F401 - whether it is there
    except ImportError:
        raise MissingExtra("pydantic, which checks job files,", "server") from None
