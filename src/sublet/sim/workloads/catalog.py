"""Workloads by name: which exist, whence they come, and `load_workload` for a name, a path or a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sublet.data import locate
from sublet.domain.job import Speed
from sublet.domain.quantity import named
from sublet.errors import BadInput, MissingData, UnknownName
from sublet.sim.workloads import readers
from sublet.sim.workloads.csvformat import read_csv
from sublet.sim.workloads.readers import Reader
from sublet.sim.workloads.recipe import ARRIVAL_NAMES, EXAMPLE, is_recipe, workload_from_recipe
from sublet.sim.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One trace that has a name."""

    name: str
    file: str  # below the data folder
    reader: Reader
    description: str
    source: str
    licence: str
    bundled: bool = True  # False: not ours to ship, read from SUBLET_DATA

    def __post_init__(self) -> None:
        named("workload name", self.name)

    def load(self, *, speedup: Speed | None = None, fixed_batch: bool = False) -> Workload:
        """Read it; MissingData if this installation does not have the file."""
        return self.reader.read(
            locate(self.file),
            name=self.name,
            source=self.source,
            licence=self.licence,
            speedup=speedup,
            fixed_batch=fixed_batch,
        )


def workload_names() -> list[str]:
    """All names, in the order of the catalogue."""
    return list(CATALOG)


def load_workload(name: str | Path, *, speedup: Speed | None = None, fixed_batch: bool = False) -> Workload:
    """A file that exists, else a name of the catalogue, else a recipe such as `poisson:rate=40,n=200`.

    `speedup` says how jobs that state only a duration would do on other GPU counts. `fixed_batch` keeps jobs that are
    sized by a measured profile at the batch size that they ask for.
    """
    text = str(name)
    if _is_file(text):
        return read_csv(Path(text), speedup=speedup, fixed_batch=fixed_batch)
    if text in CATALOG:
        return CATALOG[text].load(speedup=speedup, fixed_batch=fixed_batch)
    if is_recipe(text):
        return workload_from_recipe(text, speed=speedup)
    if isinstance(name, Path) or "/" in text or text.endswith((".csv", ".gz")):
        if _is_file(text, or_folder=True):
            raise BadInput(text, "a folder, not a file", hint="give the path of one CSV file")
        raise MissingData(text, hint="check the path, or give the name of a workload")
    hint = f"give a name, the path of a CSV file, or a recipe such as {EXAMPLE}"
    raise UnknownName("workload", text, [*CATALOG, *ARRIVAL_NAMES], hint=hint)


def _is_file(text: str, *, or_folder: bool = False) -> bool:
    try:
        return Path(text).exists() if or_folder else (Path(text).exists() and not Path(text).is_dir())
    except (OSError, ValueError):  # a name too long or too odd for the file system is no file
        return False


_ADAPTDL = "petuum/adaptdl, branch osdi21-artifact, c793c708"
_ADAPTDL_LICENCE = "Apache-2.0 (adaptdl); arrivals CC BY 4.0 (Microsoft Philly)"
_NONE_STATED = "none stated"


def _one(name: str, file: str, reader: Reader, description: str, source: str, licence: str) -> Entry:
    return Entry(
        name=name,
        file=f"jobs/{file}",
        reader=reader,
        description=description,
        source=source,
        licence=licence,
        bundled=licence != _NONE_STATED,
    )


def _itp() -> Iterable[Entry]:
    source, licence = "microsoft/elasticflow-traces 277ed24d", "MIT"
    for number in ("01", "02", "04", "05", "06", "08", "09", "10"):
        suffix = "csv" if number == "10" else "csv.gz"
        about = f"two months of Microsoft's ITP cluster {number}, 2021"
        yield _one(f"itp-cluster{number}", f"itp_cluster{number}.{suffix}", readers.ITP, about, source, licence)
    yield _one("itp-195", "itp_195job.csv", readers.ITP, "195 jobs of ITP cluster 02", source, licence)


def _gavel() -> Iterable[Entry]:
    source, licence = "stanford-futuredata/gavel c4fa4009", "MIT"
    for name, file, about in (
        ("gavel-msr", "gavel_msr_seed0.csv.gz", "Philly arrivals with Gavel's models"),
        ("gavel-small", "gavel_physical_small_test.csv", "20 jobs at once, seconds to minutes"),
        ("gavel-medium", "gavel_physical_medium_test.csv", "20 jobs at once, minutes to hours"),
        ("gavel-artifact", "gavel_physical_artifact_evaluation.csv", "15 jobs at once, of the artifact evaluation"),
        ("gavel-fairness", "gavel_physical_max_min_fairness.csv", "the max-min fairness experiment"),
        ("gavel-makespan", "gavel_physical_minimize_makespan.csv", "the makespan experiment, all jobs at once"),
    ):
        yield _one(name, file, readers.GAVEL, about, source, licence)


def _shockwave() -> Iterable[Entry]:
    for name, file in (
        ("shockwave-120", "shockwave_120_0.2_5_100_40_25.csv"),
        ("shockwave-460", "shockwave_460_0.2_5_100_10_1.csv.gz"),
        ("shockwave-900-100", "shockwave_900_0.2_5_100_5_15.csv.gz"),
        ("shockwave-900-1000", "shockwave_900_0.2_5_1000_5_15.csv.gz"),
    ):
        about = f"{name.split('-')[1]} jobs with batch sizes that change while they train"
        yield _one(name, file, readers.SHOCKWAVE, about, "uw-mad-dash/shockwave 8a44f4a2", "MIT")


def _muri() -> Iterable[Entry]:
    source, licence = "Rivendile/Muri 4e69a78c", "Apache-2.0"
    for number in range(1, 5):
        about = f"a Philly virtual cluster with models assigned, number {number}"
        yield _one(f"muri-{number}", f"muri_trace{number}.csv.gz", readers.MURI, about, source, licence)
    yield _one("muri-testbed", "muri_cluster_trace.csv", readers.MURI, "the 400 jobs of the testbed", source, licence)


def _pollux() -> Iterable[Entry]:
    for infix, folder, about in (
        ("", "pollux_workloads", "8 h of Philly arrivals with models assigned, tuned requests"),
        ("0.5-", "pollux_workloads-0.5", "the same at half the load"),
        ("1.5-", "pollux_workloads-1.5", "the same at 1.5 times the load"),
        ("2.0-", "pollux_workloads-2.0", "the same at twice the load"),
        ("realistic-", "pollux_workloads-realistic", "the same with the requests that users made"),
    ):
        for number in range(1, 7):
            file = f"{folder}/workload-{number}.csv"
            yield _one(f"pollux-{infix}{number}", file, readers.POLLUX, about, _ADAPTDL, _ADAPTDL_LICENCE)


def _sia() -> Iterable[Entry]:
    source = "siasosp23/artifacts aaf7a0de"
    for infix, folder, numbers, about in (
        ("saturn", "sia_saturn", 10, "8 h of Helios Saturn arrivals with models assigned"),
        ("philly", "sia_philly", 6, "8 h of Philly arrivals with models assigned"),
        ("newtrace", "sia_newtrace", 8, "48 h with models assigned"),
        *((f"rate-{rate}", f"sia_rate_{rate}", 10, f"Saturn sampled at {rate} jobs/h") for rate in range(10, 60, 10)),
    ):
        for number in range(1, numbers + 1):
            file = f"{folder}/workload-{number}.csv"
            yield _one(f"sia-{infix}-{number}", file, readers.SIA, about, source, _NONE_STATED)


def _singles() -> Iterable[Entry]:
    yield _one(
        "philly",
        "philly.csv.gz",
        readers.PHILLY,
        "Microsoft's Philly clusters, 2017, all virtual clusters",
        f"msr-fiddle/philly-traces by way of {_ADAPTDL}",
        "CC BY 4.0 (Microsoft Philly)",
    )
    yield _one(
        "tiresias-60",
        "tiresias_60_job.csv",
        readers.TIRESIAS,
        "the 60 jobs of the testbed",
        "SymbioticLab/Tiresias 959f9b08",
        "Apache-2.0",
    )
    yield _one(
        "alibaba-openb",
        "alibaba_openb_v2023.csv.gz",
        readers.ALIBABA,
        "GPU pods of a production cluster, 2023",
        "alibaba/clusterdata, cluster-trace-gpu-v2023, 7a6c496e",
        _NONE_STATED,
    )
    yield _one(
        "pai-hydra",
        "pai_hydra_30_ddl.csv.gz",
        readers.HYDRA,
        "5,000 one-GPU jobs of Alibaba PAI at once, 30 % with deadlines",
        "dos-lab/Hydra e89f5b05",
        _NONE_STATED,
    )
    yield _one(
        "boa-test",
        "boa_test.csv",
        readers.POLLUX,
        "the 130-job test workload of the budget-optimal allocator",
        "Li-Zhouzi/artifacts 3f8207f9",
        _NONE_STATED,
    )


CATALOG = MappingProxyType(
    {entry.name: entry for family in (_singles, _itp, _gavel, _shockwave, _muri, _pollux, _sia) for entry in family()}
)
