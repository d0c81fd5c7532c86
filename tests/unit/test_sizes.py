"""Which tests `make test` draws: of every file some, the same for one seed, all of them over several."""

from __future__ import annotations

from tests.figures import HERE
from tests.rigs.sizes import DRAWN, drawn, left_out

TESTS = [f"tests/{file}.py::test_{n}" for file in ("a/long", "a/longer", "a/never", "b/short") for n in range(10)]
ONE_IN = {"tests/a/": 2, "tests/a/longer.py": 4, "tests/a/never.py": 0}


def test_of_each_file_the_part_of_its_longest_path_is_drawn():
    found = drawn(TESTS, ONE_IN, "1")
    counts = {file: sum(test.startswith(f"tests/{file}.py") for test in found) for file in ("a/long", "a/longer")}
    assert counts == {"a/long": 5, "a/longer": 3}
    assert {test for test in found if "/b/" in test} == {test for test in TESTS if "/b/" in test}
    assert not [test for test in found if "never" in test]
    assert drawn(TESTS[10:11], ONE_IN, "1") == {TESTS[10]}, "a file of one test keeps it"


def test_one_seed_draws_the_same_in_any_order_and_several_draw_all():
    assert drawn(TESTS, ONE_IN, "1") == drawn(reversed(TESTS), ONE_IN, "1")
    assert drawn(TESTS, ONE_IN, "1") != drawn(TESTS, ONE_IN, "2")
    ever = set().union(*(drawn(TESTS, ONE_IN, str(seed)) for seed in range(40)))
    assert ever == {test for test in TESTS if "never" not in test}


def test_files_of_which_nothing_runs_are_not_imported():
    assert left_out("tests/adoption")
    assert left_out("tests/adoption/test_live.py")
    assert not left_out("tests")
    assert not left_out("tests/e2e")
    assert [path for path, one_in in DRAWN.items() if left_out(path.rstrip("/")) != (one_in == 0)] == []


def test_every_path_of_the_table_is_there():
    assert [path for path in DRAWN if not (HERE / path).exists()] == []
