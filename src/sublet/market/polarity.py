"""Does a trace state availability, as its format says, or preemption, as some simulators read it?

Nothing in a file says what its numbers count. There are signs, and each holds for some kinds of trace only:

- A market rests at what was asked for, and is seldom empty. A record that is at 0 twice as long as at its highest
  counts what is missing, or comes from a market that is hardly worth a record.
- Instances that were really held take a moment to launch, so a record of them starts at 0 and rises. The inverted
  record starts at its maximum and falls at once.
- A fleet, and instances that were held, are there most of the time, or they would not have been used. Far below half is
  odd. For probes this says nothing: real zones exist that grant an instance one time in eight.

Of a file about which nothing is known only the first is asked. It speaks against none of the 15 traces that Sublet
knows, and against 5 of them when they are turned round: it finds plain cases and misses others (parcae-lasp, turned
round, even looks right). So a file of 0 and 1, of which copies exist both ways, has to be declared unless the sign is
in its favour. That losses come in bulk and refills one by one is no sign: in the public traces rises are about as large
as falls.

Signs are not proof: the report lists them, and says "cannot tell" where there are none or they disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sublet.errors import BadInput, InvalidValue
from sublet.market.hazard import mean_available_share
from sublet.market.spot import FLEET, PREEMPTION, Polarity, SpotTrace, inverted

__all__ = ["PolarityReport", "Verdict", "check_polarity", "presumed"]

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
