"""The artifact of BOA: a workload of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sublet_lab.imports.artifact import Artifact, Made
from sublet_lab.imports.jobs import workload_csv


def _boa(clone: Path) -> Iterator[Made]:
    yield "jobs/boa_test.csv", workload_csv(clone / "sia-simulator" / "workloads" / "test.csv")


BOA = Artifact(
    name="boa",
    repository="Li-Zhouzi/artifacts",
    commit="3f8207f96634210c182ff17103edfdad840871d5",
    licence="none stated",
    gives="workload boa-test",
    convert=_boa,
)
