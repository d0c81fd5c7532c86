"""How each family of traces is read: the same file format, other repairs, and what a reader of results should know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sublet.domain.job import Speed
from sublet.sim.workloads.csvformat import read_csv
from sublet.sim.workloads.jobrows import Source
from sublet.sim.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A value with one verb. `notes` are assumptions that hold for the whole family."""

    profiles: Source = "pollux"  # whose measurements size the jobs that state no duration
    drop_unsized: bool = False  # leave out rows with neither a duration nor a profiled model
    from_zero: bool = False  # start the clock at the first arrival
    notes: tuple[str, ...] = ()

    def read(
        self,
        path: Path,
        *,
        name: str,
        source: str = "",
        licence: str = "",
        speedup: Speed | None = None,
        fixed_batch: bool = False,
    ) -> Workload:
        """The jobs of the file, with every repair and assumption in the notes."""
        workload = read_csv(
            path,
            name=name,
            speedup=speedup,
            profiles=self.profiles,
            fixed_batch=fixed_batch,
            drop_unsized=self.drop_unsized,
            source=source,
            licence=licence,
            notes=self.notes,
        )
        return workload.from_zero() if self.from_zero else workload


_ANY_KIND = "the kind of GPU behind a duration is not modelled: the speedup holds on every kind"

PHILLY = Reader(
    notes=(
        "durations are of the run as it was, successful or not; users and outcomes are not in the file",
        "the kind of GPU is not stated",
    )
)
ITP = Reader(
    from_zero=True,
    notes=(
        "arrivals, durations and GPU counts are real; models, steps and deadlines were added by the authors",
        "the kind of GPU is not stated",
    ),
)
POLLUX = Reader(notes=("models were assigned to sampled arrivals by the authors of the workload",))
SIA = Reader(
    profiles="sia",
    notes=(
        "models were assigned to sampled arrivals by the authors of the workload",
        "rates are as measured: the flat divisors of Sia's simulator are left out",
    ),
)
GAVEL = Reader(
    drop_unsized=True,
    notes=("duration = steps / measured isolated V100 throughput of the model", _ANY_KIND),
)
SHOCKWAVE = Reader(
    notes=(
        "group = the batch-size rule of the job (static, accordion or gns); the rule itself is not modelled",
        "the kind of GPU is not stated",
    )
)
MURI = Reader(notes=("group = the priority given by the trace; it is not turned into a weight",))
TIRESIAS = Reader()
ALIBABA = Reader(
    notes=(
        "serving and training are mixed and not told apart: use it as background load",
        "group = quality-of-service class",
        _ANY_KIND,
    )
)
HYDRA = Reader(
    notes=(
        "all jobs arrive at once; durations of jobs that did not run on a V100 were scaled at random by the authors",
        "deadlines were added by the authors",
        _ANY_KIND,
    )
)
