"""The spot traces that Sublet knows by name, where they come from and whether they may be shipped.

Nothing in a file says whether its numbers count availability or preemptions. There are signs, each for some kinds of
trace. A market rests at what was asked for, and is seldom empty. Instances that were held take a moment to launch, so
a record of them starts at 0; they are there most of the time. Of an unknown file only the first is asked, and 0 and 1
have to be declared unless it is in their favour. Signs are not proof.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from sublet import data
from sublet.errors import BadInput, InvalidValue, UnknownName
from sublet.market.hazard import mean_available_share
from sublet.market.spot import AVAILABILITY, FLEET, PREEMPTION, PROBE, Polarity, SpotTrace, inverted, read_trace

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


Verdict = Literal["consistent", "suspicious", "cannot tell"]
Sign = tuple[bool, str]  # whether it speaks for availability

MOSTLY_THERE = 0.5
HARDLY_THERE = 1 / 3
FIRST_LAUNCH_S = 900.0  # a launch that takes longer than a quarter of an hour has failed
MUCH_LONGER = 2.0  # times


@dataclass(frozen=True, slots=True, kw_only=True)
class PolarityReport:
    """The trace as availability, and whether it looks like it."""

    trace: SpotTrace
    verdict: Verdict
    evidence: tuple[str, ...]


def check_polarity(trace: SpotTrace, declared: Polarity = "availability") -> PolarityReport:
    """Turn a trace whose numbers mean `declared` into availability, and look for signs that it is not."""
    if declared not in ("availability", "preempted"):
        raise InvalidValue("declared", declared, "availability or preempted")
    availability = trace if declared == "availability" else inverted(trace)
    if availability.kind.startswith((PREEMPTION, FLEET)):
        signs = [*_start_signs(availability), *_share_signs(availability)]
    elif availability.kind:
        why = f"instances were not held in a trace of kind {availability.kind!r}: no sign applies"
        return PolarityReport(trace=availability, verdict="cannot tell", evidence=(why,))
    else:
        signs = _rest_signs(availability)
    speaks_for = {good for good, _ in signs}
    verdict: Verdict = "cannot tell"
    if len(speaks_for) == 1:
        verdict = "consistent" if speaks_for == {True} else "suspicious"
    evidence = tuple(("for: " if good else "against: ") + text for good, text in signs)
    return PolarityReport(trace=availability, verdict=verdict, evidence=evidence or ("no sign either way",))


def presumed(trace: SpotTrace) -> SpotTrace:
    """A trace from a file, as availability, without word on its meaning: refused if it may well be the other way round.

    Counts are believed unless a sign is against them; of 0 and 1 copies exist both ways, so a sign must be in favour.
    """
    report = check_polarity(trace)
    if report.verdict == "consistent" or (report.verdict == "cannot tell" and trace.max_available > 1):
        return trace
    why = "it is not stated whether a 1 means that an instance can be held, or that it cannot"
    turned = "--polarity preempted if a 1 means that there is none"
    if trace.max_available > 1:
        why = "it is not stated that the numbers are instances that can be held, and they do not look like it"
        turned = "subtract the numbers from the target if they count lost instances"
    hint = f"say --polarity availability if they can be held; {turned}"
    raise BadInput(trace.source, f"{why} ({'; '.join(report.evidence)})", hint=hint)


def _rest_signs(trace: SpotTrace) -> list[Sign]:
    """Levels at which the record stays longer, at nothing or at the most that it ever shows; zones add up."""
    empty_s = full_s = total_s = 0.0
    for zone, steps in trace.series.items():
        held_s = np.diff(np.append(steps.t_s, trace.end_s[zone]))
        total_s += float(held_s.sum())
        empty_s += float(held_s[steps.value == 0].sum())
        full_s += float(held_s[steps.value == trace.max_available].sum())
    if not total_s:
        return []
    text = f"{empty_s / total_s:.0%} of the time at 0, {full_s / total_s:.0%} at the most, {trace.max_available}"
    if empty_s >= MUCH_LONGER * full_s and empty_s > 0:
        return [(False, text)]
    return [(True, text)] if full_s >= MUCH_LONGER * empty_s and full_s > 0 else []


def _start_signs(trace: SpotTrace) -> list[Sign]:
    """How the zones of a record of held instances begin; fleets are recorded once they stand, and say nothing here."""
    if not trace.kind.startswith(PREEMPTION):
        return []
    rising = falling = 0
    for zone, steps in trace.series.items():
        first, top = trace.value_at(zone, 0.0), int(steps.value.max())
        soon = trace.value_at(zone, min(FIRST_LAUNCH_S, trace.span_s))
        changed_at_once = len(steps.t_s) > 1 and steps.t_s[1] <= FIRST_LAUNCH_S
        rising += changed_at_once and first == 0 < soon
        falling += changed_at_once and first == top > soon
    if rising == falling:
        return []
    text = f"{rising} of {len(trace.zones)} zones start at 0 and launch within minutes, {falling} start full and lose"
    return [(rising > falling, text)]


def _share_signs(trace: SpotTrace) -> list[Sign]:
    share = mean_available_share(trace)
    text = f"{share:.0%} of {trace.max_available} instances a zone are there on average"
    if share >= MOSTLY_THERE:
        return [(True, text)]
    return [(False, text)] if share < HARDLY_THERE else []
