"""Advice on a difference, by its kind and by what differs beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sublet.runtime.rehearsal.nearness import apart
from sublet.runtime.rehearsal.report import Difference
from sublet.runtime.rehearsal.seen import Seen

__all__ = ["advice_on"]

NEAR = 0.02  # of a ratio
SUM = "the loss is a sum over samples: say reduction='sum' in train.session(...)"
COUNTED = (
    "the loss is no mean over samples (a mean over tokens, or over what is not masked?): give the sum, "
    "s.step(loss_sum, counted=n) with reduction='counted'"
)
EDITED = (
    "the loss is the same and the update is not: look for what changes gradients in the loop (a clip is "
    "clip_norm=...), and for layers with batch statistics"
)
LATER = "look for what the script changes between steps by its own part of the batch, such as a rate by loss.item()"
LOST = "something that training depends on is lost with a process: s.keep(...) it, or give it as extra_state="
LOG = "log s.loss, the mean over the global batch; loss.item() is of this worker's part"
COUNT = "it counts this worker's part of the batch: let it follow from s.steps, which is the same at any worker count"
ONE_WRITER = "write it by one worker: `if s.rank == 0:`"
AGAIN = "what it says is lost with a process: s.keep(...) it; and open the file to append, by one worker"
KEEP = "what it says is lost with a process: s.keep(...) it, or let it follow from s.steps"
FOLLOWS = "it may follow from the difference above"
OWN_BATCH = (
    "each worker has batches of its own: divide the batch by WORLD_SIZE and print means over all, or give the script a "
    "session (`sublet convert`)"
)
OWN_WRITER = "write it by one worker: `if rank == 0:`, by the variable RANK"
OWN_CHECKPOINT = "go on from a checkpoint of the script's own (train.checkpointed), with all that it says in it"
FAILED = "look at the last lines; `sublet run --workers 2 -- ...` shows all of them"


def advice_on(difference: Difference, base: Seen, run: Seen, states: Sequence[Difference]) -> Difference:
    """The same, with what to do."""
    return replace(difference, advice=_advice(difference, base, run, states))


def _advice(difference: Difference, base: Seen, run: Seen, states: Sequence[Difference]) -> str:
    killed, kind = difference.run == "kill", difference.kind
    if kind == "failure":
        return FAILED
    if kind in ("loss", "weights") and difference is not states[0]:
        return FOLLOWS
    if kind in ("loss", "weights", "steps"):
        return LOST if killed else _of_width(base, run, states)
    plain = not base.steps  # it has no session
    if "written by several" in difference.evidence:
        return OWN_WRITER if plain else ONE_WRITER
    if plain:
        return OWN_CHECKPOINT if killed else OWN_BATCH
    if states:
        return FOLLOWS
    if kind == "file":
        return AGAIN if killed else f"{ONE_WRITER}; {LOG}"
    if killed:
        return KEEP
    return COUNT if _is_share(difference, run.workers) else LOG


def _of_width(base: Seen, run: Seen, states: Sequence[Difference]) -> str:
    """If the loss differs first, it did so of the same weights."""
    if any("on average" in each.evidence for each in states):
        return SUM
    loss, weights = (_first(states, kind) for kind in ("loss", "weights"))
    if loss is not None and (weights is None or loss <= weights):
        one, two = base.steps[loss].loss, run.steps[loss].loss
        return SUM if one and apart(two / one, 1.0 / run.workers) < NEAR else COUNTED
    return EDITED if weights == 1 else LATER


def _first(states: Sequence[Difference], kind: str) -> int | None:
    return next((each.step for each in states if each.kind == kind), None)


def _is_share(difference: Difference, workers: int) -> bool:
    found = re.findall(r"\d+(?:\.\d+)?", difference.evidence)
    half = len(found) // 2
    pairs = zip(found[:half], found[half:], strict=False)
    return any(float(b) and apart(float(a) / float(b), 1.0 / workers) < NEAR for a, b in pairs)
