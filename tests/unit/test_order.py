"""The order of the tests: what waits for long begins, and nothing is lost."""

from __future__ import annotations

from tests.figures import HERE
from tests.rigs import order as order_of_tests
from tests.rigs.order import LONG, dealt


def test_long_modules_begin_the_shares_of_the_workers_in_turn(monkeypatch):
    six = tuple(f"tests/e2e/test_long_{n}.py" for n in range(6))
    monkeypatch.setattr(order_of_tests, "LONG", six)
    modules = dict.fromkeys(range(20), "tests/unit/test_a.py") | {20 + n: module for n, module in enumerate(six)}
    order = dealt(range(26), modules, 4)
    assert sorted(order) == list(range(26))
    assert [order[:3], order[6:9], order[12:14], order[19:21]] == [[20, 24, 0], [21, 25, 4], [22, 8], [23, 14]]
    assert dealt(range(26), modules, 1) == [*range(20, 26), *range(20)]


def test_nothing_is_lost_where_there_is_little_to_deal():
    modules = dict.fromkeys(range(5), LONG[0])
    assert dealt(range(5), modules, 4) == list(range(5))
    assert dealt([], {}, 4) == []


def test_every_long_module_is_there():
    assert [module for module in LONG if not (HERE / module).is_file()] == []
