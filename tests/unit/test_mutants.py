"""Faults can be planted in every named module, and a planted fault is seen by the tests or not."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from sublet.kernel import ledger  # noqa: F401 - so that it is loaded
from tests.figures import HERE
from tests.mutants.__main__ import wilson
from tests.mutants.covering import covering
from tests.mutants.draw import MODULES, SOURCE, drawn, mutants_of
from tests.mutants.named import NAMED
from tests.mutants.run import outcome_of

LEDGER, TESTS = "kernel/ledger.py", ("tests/unit/kernel/test_ledger.py",)


def said_of(text):
    """What a process of its own says: here the modules of Sublet are loaded already."""
    script = (
        "import sys; from tests.mutants.run import outcome_of; print(*outcome_of(*sys.argv[1:3], sys.argv[3:])[:2])"
    )
    words = [sys.executable, "-c", script, LEDGER, text, *TESTS]
    return subprocess.run(words, cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()


def test_a_fault_is_seen_and_sound_code_is_not_taken_for_one():
    text = (SOURCE / LEDGER).read_text(encoding="utf-8")
    assert said_of(text) == "alive"
    planted = said_of(text.replace("meter.open_count += 1", "pass"))
    assert planted == f"killed {TESTS[0]}::test_a_node_is_paid_from_the_order_on"


def test_where_the_module_is_loaded_already_nothing_is_taken_for_seen():
    with pytest.raises(RuntimeError, match="loaded already"):
        outcome_of(LEDGER, "", TESTS)


def test_a_draw_repeats_and_changes_one_place_of_a_module_that_still_is_python():
    some = (LEDGER, "policies/sia", "train/samples.py")
    once = drawn(40, 3, some)
    assert once == drawn(40, 3, some)
    assert once != drawn(40, 4, some)
    for mutant in once:
        text, changed = (SOURCE / mutant.file).read_text(encoding="utf-8"), mutant.source()
        assert changed != text
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        assert text.splitlines()[: mutant.line - 1] == changed.splitlines()[: mutant.line - 1]


def test_every_module_has_places_to_change_and_tests_that_should_see_it():
    for module in MODULES:
        paths = [SOURCE / module] if module.endswith(".py") else (SOURCE / module).rglob("*.py")
        files = [path.relative_to(SOURCE).as_posix() for path in paths]
        assert files
        assert all(covering(file) for file in files)


def test_what_is_said_in_errors_or_of_types_is_not_changed():
    for mutant in mutants_of("policies/sia/policy.py"):
        assert "raise" not in mutant.old
        assert "@" not in mutant.old


def test_every_fault_of_the_list_can_still_be_planted():
    for each in NAMED:
        ast.parse(each.source())


def test_the_interval_of_a_share_is_wilsons():
    low, high = wilson(0, 300)
    assert (round(low, 4), round(high, 4)) == (0.0, 0.0126)
    assert tuple(round(end, 3) for end in wilson(30, 300)) == (0.071, 0.139)
