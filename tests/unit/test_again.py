"""Which failures get a second look: few, and only of real processes."""

from __future__ import annotations

import pytest

from tests.rigs.again import deserves_another

E2E = "tests/e2e/test_aws.py::test_{}"


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        ([], False),
        ([E2E.format(1)], True),
        ([E2E.format(1), E2E.format(1)], True),  # the test and what it left
        ([E2E.format(n) for n in range(3)], True),
        ([E2E.format(n) for n in range(4)], False),  # no chance
        (["tests/unit/test_errors.py::test_x"], False),
        ([E2E.format(1), "tests/faults/test_seeds.py::test_x"], False),
    ],
)
def test_a_second_look_is_for_few_and_only_for_real_processes(failed, again):
    assert deserves_another(failed) is again
