"""The same events give the same orders as when the logs were recorded (kernel version 2, before the rooms were moved).

Numbers are compared to nine digits: the last bits of a logarithm differ between processors.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.golden.scenarios import SCENARIOS

LOGS = Path(__file__).parent / "logs"
DIGITS = 9


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def test_every_scenario_has_a_log_and_every_log_a_scenario():
    assert {path.name.removesuffix(".jsonl.gz") for path in LOGS.iterdir()} == SCENARIOS.keys()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_life_is_what_it_was_when_it_was_recorded(name, tmp_path, capsys):
    recorded = gzip.decompress((LOGS / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
    lived = SCENARIOS[name](tmp_path)
    for number, (before, now) in enumerate(zip(recorded, lived, strict=False), start=1):
        assert rounded(json.loads(now)) == rounded(json.loads(before)), f"line {number}"
    assert len(lived) == len(recorded)
