"""Spot traces: what SkyPilot and SpotHedge recorded zone by zone, and the hours on which Parcae was run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from sublet.errors import BadInput
from sublet_lab.imports.artifact import Artifact, Made, json_of, text_of

HEADER = "t_s,zone,available"
OCTOBER = "availability/1-node/aws-10-26-2022"
RECORDS = {  # the folder of the repository, and the ending of the names of its files -> our file
    ("availability/1-node/aws-02-15-2023", "v100_1"): "availability_1-node_aws-02-15-2023",
    ("availability/16-node/aws-08-27-2023", "v100_1"): "availability_16-node_aws-08-27-2023",
    ("preemption/1-node/aws-04-22-2023", "v100_1"): "preemption_1-node_aws-04-22-2023",
    **{
        (OCTOBER, kind): f"availability_1-node_aws-10-26-2022_{kind}" for kind in ("k80_1", "k80_8", "v100_1", "v100_8")
    },
}
HOURS = {"hh_55_65": "HADP", "hl_15_25": "HASP", "lh_80_90": "LADP", "ll_10_11": "LASP"}
SIGN = {"add": 1, "remove": -1, "no-op": 0, "migration": 0}
COPY = "bert"  # one copy per model; this one equals Bamboo's record tick for tick


def _skypilot(clone: Path) -> Iterator[Made]:
    for (folder, kind), name in RECORDS.items():
        yield f"spot/skypilot_{name}.csv.gz", _by_tick(clone / folder, kind)


def _spothedge(clone: Path) -> Iterator[Made]:
    yield "spot/spothedge_GCP1.csv.gz", _by_tick(clone / "data" / "GCP1", "a100_40gb_8")


def _by_tick(folder: Path, kind: str) -> str:
    """A row per tick and zone, zones in order; where one ends before the others it has no further rows."""
    zones: dict[str, tuple[int, list[int]]] = {}
    for path in sorted(folder.glob(f"*_{kind}.json")):
        zones[path.stem.removesuffix(f"_{kind}")] = _record(path)
    if not zones:
        raise BadInput(folder, f"no record of {kind}", hint="give the folder of the whole clone")
    return _csv(zones)


def _record(path: Path) -> tuple[int, list[int]]:
    """Seconds between ticks, and what was there at each."""
    document = json_of(path, ("metadata", "data"))
    gap_s, values = document["metadata"].get("gap_seconds"), document["data"]
    if not isinstance(gap_s, int) or not isinstance(values, list):
        raise BadInput(path, f"gap_seconds is {gap_s!r}, data is a {type(values).__name__}, not a number and a list")
    return gap_s, values


def _csv(zones: Mapping[str, tuple[int, list[int]]]) -> str:
    lines = [HEADER]
    for tick in range(max(len(values) for _, values in zones.values())):
        lines += [f"{tick * gap_s},{zone},{v[tick]}" for zone, (gap_s, v) in zones.items() if tick < len(v)]
    return "\n".join(lines) + "\n"


def _parcae(clone: Path) -> Iterator[Made]:
    for hour, name in HOURS.items():
        path = clone / "aws" / "traces" / COPY / f"trace_{hour}.txt"
        lines, nodes = [HEADER], 0
        for number, line in enumerate(text_of(path).splitlines(), 1):
            try:
                at_ms, what, told = json.loads(line)
                nodes += SIGN[what] * len(told["nodes"])
                lines.append(f"{at_ms // 1000},aws-p3,{nodes}")
            except (ValueError, LookupError, TypeError):
                why = f"{line[:60]!r} is not [milliseconds, one of {', '.join(SIGN)}, its nodes]"
                raise BadInput(path, why, line=number) from None
        yield f"spot/parcae_{name}_trace_{hour}.csv.gz", "\n".join(lines) + "\n"


SKYPILOT = Artifact(
    name="skypilot",
    repository="skypilot-org/spot-traces",
    commit="221da1ab9bdfe7966da296265d7694d52dc0c5a6",
    licence="none stated",
    gives="seven of the fifteen traces of study liveput, and its zones; v100 in study regions (h100 ships)",
    convert=_skypilot,
)
SPOTHEDGE = Artifact(
    name="spothedge",
    repository="MaoZiming/spothedge_ae",
    commit="df02263c3c24e598bed93486b79feafdac49bf20",
    licence="none stated",
    gives="one of the fifteen traces of study liveput",
    convert=_spothedge,
)
PARCAE = Artifact(
    name="parcae",
    repository="JF-D/Parcae",
    commit="efedee7e069d795cbfd6b7667312bdc12f31eb8f",
    licence="MIT",
    gives="the four hours of study liveput: they ship, and are compared; its tables ship, from literals of its code",
    convert=_parcae,
)
