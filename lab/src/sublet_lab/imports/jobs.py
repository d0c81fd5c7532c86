"""Job traces of the artifacts, in the columns that all traces have here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from sublet.errors import BadInput
from sublet_lab.imports.artifact import lines_of

COLUMNS = "job_id,submit_s,duration_s,gpus,model,batch_size,steps,group,gpu,deadline_s,klass"


def workload_csv(path: Path) -> str:
    """A workload of Pollux, Sia or BOA: models and arrivals, and what users asked for."""
    rows = lines_of(path, ("name", "num_replicas", "application", "batch_size"), numbers=("time",))
    jobs = [
        (
            float(row["time"]),
            (row["name"], "", row["num_replicas"], row["application"], row["batch_size"], "", "", "", "", ""),
        )
        for row in rows
    ]
    return _csv(jobs)


def philly_csv(path: Path) -> str:
    """Microsoft's trace as the artifact of Pollux has it: seconds from the first arrival, jobs by number."""
    rows = lines_of(path, ("timestamp", "num_gpus", "cluster"), numbers=("duration",))
    at_s = [_instant(path, row["timestamp"]) for row in rows]
    first = min(at_s)
    order = sorted(range(len(rows)), key=lambda at: at_s[at])
    jobs = [
        (
            (at_s[at] - first).total_seconds(),
            (
                f"{number}",
                f"{float(rows[at]['duration']):.0f}",
                rows[at]["num_gpus"],
                *("", "", ""),
                rows[at]["cluster"],
                *("", "", ""),
            ),
        )
        for number, at in enumerate(order)
    ]
    return _csv(jobs)


def _instant(path: Path, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(path, f"timestamp is {text!r}, not a date and a time") from None


def _csv(jobs: Iterable[tuple[float, Sequence[str]]]) -> str:
    lines = [COLUMNS]
    for submit_s, (name, *rest) in sorted(jobs, key=lambda job: job[0]):
        lines.append(",".join((name, _seconds(submit_s), *rest)))
    return "\n".join(lines) + "\n"


def _seconds(at_s: float) -> str:
    """To the millisecond, and without a point where it is whole.

    >>> _seconds(22.0), _seconds(487.661836)
    ('22', '487.662')
    """
    return f"{at_s:.3f}".rstrip("0").rstrip(".")
