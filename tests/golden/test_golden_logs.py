"""The same events give the same orders as when the logs were recorded (kernel version 2, before the rooms were moved).

`price`, `price-average` and `boa-ideal` were recorded anew when jobs began to pay for whole nodes,
`price-cluster` when the value of a shape became concave and age began to count, and
again when what a move costs took the place of one factor for what is held. `price` was recorded once more
when the value of time began to follow from money that is not spent and work that is left.
Numbers are compared to nine digits: the last bits of a logarithm differ between processors. What was meant to change
since is written down in `translated`, and nothing else may.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from sublet.kernel.journal import replay
from sublet.kernel.kernel import KERNEL_VERSION
from tests.golden.scenarios import OUTSIDE, SCENARIOS

LOGS = Path(__file__).parent / "logs"
DIGITS = 9
WHY = {  # reasons as they were and as they are
    "time and rent together are least": "",
    "the quickest within the limits": ", fastest within the limits",
    "what it makes good use of, beside others, of GPUs that are paid for": (
        ", best throughput per GPU on GPUs already paid for"
    ),
}


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def by_the_second(offers):
    return [{**offer, "billed_by_s": 0.0} for offer in offers]


def in_new_words(value):
    if isinstance(value, dict):
        if "stages" in value:
            assert value["stages"] == 1
            value = {"steady": 0, "grid": None, **{key: item for key, item in value.items() if key != "stages"}}
        if "checkpoint_write_s" in value:
            value = {"block": 1, "min_on_demand": 0, **value, "survives": False, "lead_s": None, "user": "", "team": ""}
        if {"purse", "until_s"} <= value.keys():
            value = {"besides": {"micro_usd_per_h": 0}, **value}
        return {key: in_new_words(item) for key, item in value.items()}
    return [in_new_words(item) for item in value] if isinstance(value, list) else value


def translated(recorded, now):
    """A line of version 2 in the words of today; `now` is the same line as it is lived today.

    - The first line says which version of the kernel wrote it.
    - An offer says by which intervals it is billed: until then all were billed by the second.
    - A shape has a grid, and GPUs on demand, where it had `stages`: nobody had more than one.
    - A job says whether its state survives a loss, and how long before one it has to leave: nobody's did.
    - It says how many of its GPUs are to be on demand: nobody's owner had a say.
    - It says in which blocks its GPUs come: one by one.
    - It says who brought it: nobody knew.
    - A budget says what is paid besides nodes: nothing was.
    - A plan above the limits was followed by a timer that its driver invented. Now the kernel refuses it, by name and
      with the limit, and sets a timer of its own unless one rings sooner. No other plan is followed by a timer for an
      offer.
    - A reason of `price` names its shape, and the next best: the same hours and dollars, in other words (`reworded`).
    """
    recorded = in_new_words(recorded)
    if "journal" in recorded:
        return {**recorded, "kernel": KERNEL_VERSION, "offers": by_the_second(recorded["offers"])}
    if "offers" in recorded["event"]:
        recorded = {**recorded, "event": {**recorded["event"], "offers": by_the_second(recorded["event"]["offers"])}}
    if reasons := recorded["event"].get("plan", {}).get("reasons"):
        words = {job: reworded(was, now["event"]["plan"]["reasons"].get(job, "")) for job, was in reasons.items()}
        recorded["event"]["plan"]["reasons"] = words
    (*orders, last) = recorded["actions"] or [{}]
    if recorded["event"]["type"] == "PlanMade" and str(last.get("timer")).startswith("retry "):
        refusal, *timers = now["actions"]
        assert (orders, refusal["type"]) == ([], "RefusePlan")
        assert [timer["timer"] for timer in timers] in (["plan"], [])
        assert refusal["needed"] > refusal["available"]
        return {**recorded, "actions": now["actions"]}
    return recorded


def reworded(was, now):
    """The reason of today if it says the same of the shape that was chosen; else the old one."""
    told = re.fullmatch(r"([\d.]+) h for about USD ([\d.]+): (.*)", was)
    if told is None:
        return was
    hours, usd, why = told.groups()
    chosen, _, _ = now.partition(". Next best: ")
    return now if chosen.endswith(f": {hours} h, USD {usd}{WHY[why]}") else was


def test_every_scenario_has_a_log_and_every_log_a_scenario():
    assert {path.name.removesuffix(".jsonl.gz") for path in LOGS.iterdir()} == SCENARIOS.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.outside_data if name in OUTSIDE else ()) for name in SCENARIOS]
)
def test_a_life_is_what_it_was_when_it_was_recorded(name, tmp_path, capsys):
    recorded = gzip.decompress((LOGS / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
    lived = SCENARIOS[name](tmp_path)
    for number, lines in enumerate(zip(recorded, lived, strict=False), start=1):
        before, now = (json.loads(line) for line in lines)
        assert rounded(now) == rounded(translated(before, now)), f"line {number}"
    assert len(lived) == len(recorded)
    replay(lived)  # without the speeds of its jobs, it gives the same orders
