"""The spot traces that Sublet knows by name, where they come from and whether they may be shipped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sublet import data
from sublet.errors import InvalidValue, UnknownName
from sublet.market.polarity import presumed
from sublet.market.spot import AVAILABILITY, FLEET, PREEMPTION, PROBE, Polarity, SpotTrace, read_trace

__all__ = ["TRACES", "TraceFacts", "load_trace"]

NO_LICENCE = "none stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """The source's facts about a trace."""

    file: str
    kind: str
    cloud: str
    instance_type: str
    gpu: str
    gpus_per_instance: int | None
    max_available: int
    span_s: float
    source: str
    licence: str

    @property
    def bundled(self) -> bool:
        """Whether its licence lets us ship it; the others are read from the folder that SUBLET_DATA names."""
        return self.licence != NO_LICENCE


def _bamboo(file: str, cloud: str, instance_type: str, most: int, span_s: float) -> TraceFacts:
    return TraceFacts(
        file=f"spot/bamboo_{file}.csv.gz",
        kind=FLEET,
        cloud=cloud,
        instance_type=instance_type,
        gpu="V100",
        gpus_per_instance=1,
        max_available=most,
        span_s=span_s,
        source="uclasystem/bamboo",
        licence="MIT",
    )


def _parcae(file: str, most: int) -> TraceFacts:
    """One hour of bamboo-p3, minute by minute."""
    hour = _bamboo("p3-trace", "aws", "p3.2xlarge", most, 3600.0)
    return replace(hour, file=f"spot/parcae_{file}.csv.gz", source="JF-D/Parcae")


def _skypilot(file: str, kind: str, instance_type: str, gpu: str, gpus: int, most: int, span_s: float) -> TraceFacts:
    return TraceFacts(
        file=f"spot/skypilot_{file}.csv.gz",
        kind=kind,
        cloud="aws",
        instance_type=instance_type,
        gpu=gpu,
        gpus_per_instance=gpus,
        max_available=most,
        span_s=span_s,
        source="skypilot-org/spot-traces",
        licence=NO_LICENCE,
    )


_OCTOBER_2022 = "availability_1-node_aws-10-26-2022"

TRACES = {
    "bamboo-p3": _bamboo("p3-trace", "aws", "p3.2xlarge", 32, 40_920.0),
    "bamboo-gcp": _bamboo("gcloud_v100x1-east1c", "gcp", "n1 + 1xV100", 80, 87_013.0),
    "parcae-hadp": _parcae("HADP_trace_hh_55_65", 32),  # High or Low Availability, Dense or Sparse Preemption
    "parcae-hasp": _parcae("HASP_trace_hl_15_25", 32),
    "parcae-ladp": _parcae("LADP_trace_lh_80_90", 24),
    "parcae-lasp": _parcae("LASP_trace_ll_10_11", 18),
    "skynomad-h100": TraceFacts(
        file="spot/skynomad_h100_16_gcp-2025-10_days1-10.csv.gz",
        kind=PROBE,
        cloud="gcp",
        instance_type="a3-highgpu-1g",
        gpu="H100",
        gpus_per_instance=1,
        max_available=16,
        span_s=870_000.0,
        source="andylizf/skynomad-artifact",
        licence="Apache-2.0",
    ),
    "skypilot-v100-2022": _skypilot(f"{_OCTOBER_2022}_v100_1", AVAILABILITY, "p3.2xlarge", "V100", 1, 1, 2_337_000.0),
    "skypilot-v100x8-2022": _skypilot(
        f"{_OCTOBER_2022}_v100_8", AVAILABILITY, "p3.16xlarge", "V100", 8, 1, 2_337_000.0
    ),
    "skypilot-k80-2022": _skypilot(f"{_OCTOBER_2022}_k80_1", AVAILABILITY, "p2.xlarge", "K80", 1, 1, 2_337_000.0),
    "skypilot-k80x8-2022": _skypilot(f"{_OCTOBER_2022}_k80_8", AVAILABILITY, "p2.8xlarge", "K80", 8, 1, 2_337_000.0),
    "skypilot-v100-2023-02": _skypilot(
        "availability_1-node_aws-02-15-2023", AVAILABILITY, "p3.2xlarge", "V100", 1, 1, 3_930_810.0
    ),
    "skypilot-v100-2023-04": _skypilot(
        "preemption_1-node_aws-04-22-2023", PREEMPTION, "p3.2xlarge", "V100", 1, 1, 638_752.0
    ),
    "skypilot-v100-2023-08": _skypilot(
        "availability_16-node_aws-08-27-2023", AVAILABILITY, "p3.2xlarge", "V100", 1, 16, 1_420_800.0
    ),
    "spothedge-gcp1": TraceFacts(
        file="spot/spothedge_GCP1.csv.gz",
        kind=PREEMPTION,
        cloud="gcp",
        instance_type="a2-ultragpu-4g",  # its README; the names of its files say eight A100, so the count is unknown
        gpu="A100",
        gpus_per_instance=None,
        max_available=4,
        span_s=115_500.0,
        source="MaoZiming/spothedge_ae",
        licence=NO_LICENCE,
    ),
}


def load_trace(name_or_path: str | Path, *, polarity: Polarity | None = None, repeat: bool = False) -> SpotTrace:
    """A trace by its name in TRACES, or from a file whose numbers mean `polarity`: the one way in for every verb.

    Without a stated meaning (None) they are read as availability, and refused if they do not look like it.
    """
    text = str(name_or_path)
    if text in TRACES:
        if polarity == "preempted":
            raise InvalidValue("polarity", polarity, f"availability: that is what {text} is known to state")
        facts = TRACES[text]
        trace = read_trace(
            data.locate(facts.file),
            polarity="availability",
            name=text,
            span_s=facts.span_s,
            max_available=facts.max_available,
            repeat=repeat,
            holes="hold",  # their sources are known, holes included: the value before goes on
        )
        return replace(
            trace,
            gpu=facts.gpu,
            gpus_per_instance=facts.gpus_per_instance,
            kind=facts.kind,
            source=facts.source,
            licence=facts.licence,
        )
    if not Path(text).suffix and not Path(text).exists():
        raise UnknownName("trace", text, TRACES, hint="give one of these names, or the path of a .csv or .csv.gz file")
    trace = read_trace(text, polarity=polarity or "availability", repeat=repeat)
    return presumed(trace) if polarity is None else trace
