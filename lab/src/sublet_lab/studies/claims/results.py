"""Results of the studies when they were last run for the README: a file beside the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sublet.errors import BadInput

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A check, as a study's own report has it."""

    name: str
    ours: float | None
    goal: str
    ok: bool
    off: float | None = None
    published: float | None = None
    prototype: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one study; `missing` names the data without which it could not be run."""

    commit: str  # with a plus where the tree had changes
    quick: bool
    seconds: float
    cpu_s: float | None = None  # of all its processes; None = it was not measured
    checks: Sequence[Shown] = field(default_factory=tuple)
    missing: str = ""


def read_results(path: Path) -> dict[str, Result]:
    """By study."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(str(path), f"not a file of claims of version {SCHEMA_VERSION}", hint="make claims")
    return {name: _result_from(one) for name, one in document["studies"].items()}


def write_results(path: Path, results: Mapping[str, Result]) -> None:
    """Sorted by study, so that one that is run again changes its own lines only."""
    studies = {name: asdict(results[name]) for name in sorted(results)}
    document = {"schema_version": SCHEMA_VERSION, "studies": studies}
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _result_from(document: Mapping[str, Any]) -> Result:
    return Result(**{**document, "checks": tuple(Shown(**check) for check in document["checks"])})
