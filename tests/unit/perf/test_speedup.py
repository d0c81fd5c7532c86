from __future__ import annotations

import math
from itertools import pairwise

import pytest

from sublet.errors import InvalidValue
from sublet.perf.speedup import Amdahl, Linear, PowerLaw, Table

MEASURED = Table(rates={"T4": {1: 10.0, 2: 18.0, 4: 30.0, 8: 24.0}, "A100": {2: 100.0, 4: 0.0, 8: 300.0}})


@pytest.mark.parametrize("parallel", [0.0, 0.3, 0.9, 0.999, 1.0])
def test_more_gpus_never_slow_amdahl(parallel):
    rates = [Amdahl(parallel=parallel).rate("any", (gpus,), 0.0) for gpus in range(1, 65)]
    assert rates[0] == 1.0
    assert all(after >= before for before, after in pairwise(rates))


def test_amdahl_never_passes_one_over_the_serial_part():
    assert Amdahl(parallel=0.8).rate("any", (1_000_000,), 0.0) < 5.0


def test_the_golden_example_of_budget_optimal_rental_holds():
    # Two types, Amdahl 0.8 at 6 GPUs and a square root at 9 GPUs: both are three times as fast as one GPU.
    assert Amdahl(parallel=0.8).rate("any", (6,), 0.0) == pytest.approx(3.0)
    assert PowerLaw(exponent=0.5).rate("any", (4, 4, 1), 0.0) == pytest.approx(3.0)


def test_every_kind_is_the_reference_until_kinds_are_given():
    assert Linear().rate("T4", (2, 2), 0.0) == 4.0
    mixed = Linear(kinds={"T4": 1.0, "A100": 5.0})
    assert mixed.rate("A100", (2,), 0.0) == 10.0
    assert mixed.rate("H100", (2,), 0.0) == 0.0


def test_no_gpus_is_no_speed():
    for speed in (Linear(), Amdahl(parallel=0.5), PowerLaw(exponent=0.5), MEASURED):
        assert speed.rate("T4", (), 0.0) == 0.0
        assert speed.seconds("T4", (), 0.0, 1.0) == math.inf
        assert speed.work("T4", (), 3.0, math.inf) == 3.0


def test_a_table_is_linear_between_measurements_and_ends_where_they_end():
    assert MEASURED.rate("T4", (1,), 0.0) == 10.0
    assert MEASURED.rate("T4", (3,), 0.0) == 24.0
    assert MEASURED.rate("T4", (4, 2), 0.0) == 27.0  # a table may fall
    assert MEASURED.rate("T4", (8, 1), 0.0) == 0.0
    assert MEASURED.rate("A100", (1,), 0.0) == 0.0
    assert MEASURED.rate("H100", (1,), 0.0) == 0.0


def test_numbers_beside_one_that_cannot_run_cannot_either():
    assert [MEASURED.rate("A100", (gpus,), 0.0) for gpus in (2, 3, 4, 6, 8)] == [100.0, 0.0, 0.0, 0.0, 300.0]


@pytest.mark.parametrize(
    "rates",
    [{}, {"T4": {}}, {"T4": {0: 1.0}}, {"T4": {1: -1.0}}, {"T4": {1: math.nan}}, {"T4": {1: math.inf}}, {"": {1: 1.0}}],
)
def test_a_table_of_nonsense_is_refused(rates):
    with pytest.raises(InvalidValue):
        Table(rates=rates)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_parts_and_exponents_lie_between_0_and_1(value):
    with pytest.raises(InvalidValue, match="between 0 and 1"):
        Amdahl(parallel=value)
    with pytest.raises(InvalidValue, match="between 0 and 1"):
        PowerLaw(exponent=value)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_kind_that_does_not_move_is_refused(speed):
    with pytest.raises(InvalidValue, match="kinds"):
        Linear(kinds={"T4": speed})


def test_speeds_are_values():
    assert Amdahl(parallel=0.5) == Amdahl(parallel=0.5)
    assert hash(Linear(kinds={"T4": 2.0})) == hash(Linear(kinds={"T4": 3.0}))
    assert Table(rates=MEASURED.rates) == MEASURED
    assert hash(Table(rates=MEASURED.rates)) == hash(MEASURED) != hash(Table(rates={"T4": {1: 1.0}}))
    assert repr(MEASURED) == "Table(kinds=['A100', 'T4'], rates=7)"
