"""Does a trace state availability, as its format says, or preemption, as some simulators read it?

Nothing in a 0/1 file says what 1 means. There are signs, and each holds for some kinds of trace only:

- Instances that were really held take a moment to launch, so a record of them starts at 0 and rises. The inverted
  record starts at its maximum and falls at once.
- A fleet, and instances that were held, are there most of the time, or nobody would have used them. Far below half is
  odd. For probes this says nothing: real zones exist that grant an instance one time in eight.

Signs are not proof: the report lists them, and says "cannot tell" where there are none or they disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sublet.errors import InvalidValue
from sublet.market.hazard import mean_available_share
from sublet.market.spot import Polarity, SpotTrace, inverted
from sublet.market.traces import FLEET, PREEMPTION

__all__ = ["PolarityReport", "Verdict", "check_polarity"]

Verdict = Literal["consistent", "suspicious", "cannot tell"]

MOSTLY_THERE = 0.5
HARDLY_THERE = 1 / 3
FIRST_LAUNCH_S = 900.0  # a launch that takes longer than a quarter of an hour has failed


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
    held = availability.kind.startswith((PREEMPTION, FLEET))
    signs = [*_start_signs(availability), *_share_signs(availability)] if held else []
    speaks_for = {good for good, _ in signs}
    verdict: Verdict = "cannot tell"
    if len(speaks_for) == 1:
        verdict = "consistent" if speaks_for == {True} else "suspicious"
    evidence = tuple(("for: " if good else "against: ") + text for good, text in signs)
    if not held:
        evidence = (f"instances were not held in a trace of kind {availability.kind or 'unknown'!r}: no sign applies",)
    return PolarityReport(trace=availability, verdict=verdict, evidence=evidence or ("no sign either way",))


def _start_signs(trace: SpotTrace) -> list[tuple[bool, str]]:
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


def _share_signs(trace: SpotTrace) -> list[tuple[bool, str]]:
    share = mean_available_share(trace)
    text = f"{share:.0%} of {trace.max_available} instances a zone are there on average"
    if share >= MOSTLY_THERE:
        return [(True, text)]
    return [(False, text)] if share < HARDLY_THERE else []
