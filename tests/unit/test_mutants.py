"""Faults can be planted in every named module, and a planted fault is seen by the tests or not."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from sublet.kernel import ledger
from tests.figures import HERE
from tests.mutants.__main__ import wilson
from tests.mutants.covering import covering
from tests.mutants.draw import MODULES, drawn, files_of, mutants_of, path_of
from tests.mutants.equivalent import EQUIVALENT, why_equivalent
from tests.mutants.named import NAMED
from tests.mutants.plant import changed_functions
from tests.mutants.reach import Reach, Tracer
from tests.mutants.run import outcome_of

LEDGER, SIA, TESTS = "kernel/ledger.py", "sublet_lab/rivals/sia/policy.py", ("tests/unit/kernel/test_ledger.py",)


def said_of(text, file=LEDGER, tests=TESTS):
    """What a process of its own says: here the modules of Sublet are loaded already."""
    script = (
        "import sys; from tests.mutants.run import outcome_of; print(*outcome_of(*sys.argv[1:3], sys.argv[3:])[:2])"
    )
    words = [sys.executable, "-c", script, file, text, *tests]
    return subprocess.run(words, cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()


def test_a_fault_is_seen_and_sound_code_is_not_taken_for_one():
    text = path_of(LEDGER).read_text(encoding="utf-8")
    assert said_of(text) == "alive"
    planted = said_of(text.replace("meter.open_count += 1", "pass"))
    assert planted == f"killed {TESTS[0]}::test_a_node_is_paid_from_the_order_on"


def test_a_fault_with_which_a_file_of_tests_cannot_be_imported_is_seen_by_single_tests_of_it():
    tests = "tests/unit/lab/rivals/sia/test_policy.py"
    text = path_of(SIA).read_text(encoding="utf-8")
    planted = said_of(
        text.replace("if not self.power < 0", "if self.power < 0"),
        SIA,
        [f"{tests}::test_a_lone_job_has_what_is_fastest"],
    )
    assert planted == f"killed {tests} cannot be imported"


def test_where_the_module_is_loaded_already_nothing_is_taken_for_seen():
    with pytest.raises(RuntimeError, match="loaded already"):
        outcome_of(LEDGER, "", TESTS)


def test_a_draw_repeats_and_changes_one_place_of_a_module_that_still_is_python():
    some = (LEDGER, "sublet_lab/rivals/sia", "train/data/samples.py")
    once = drawn(40, 3, some)
    assert once == drawn(40, 3, some)
    assert once != drawn(40, 4, some)
    for mutant in once:
        text, changed = path_of(mutant.file).read_text(encoding="utf-8"), mutant.source()
        assert changed != text
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        assert text.splitlines()[: mutant.line - 1] == changed.splitlines()[: mutant.line - 1]


def test_every_module_has_places_to_change_and_tests_that_should_see_it():
    for module in MODULES:
        files = files_of((module,))
        assert files
        assert all(covering(file) for file in files)


def test_lengths_that_zip_asserts_are_not_changed():
    text = path_of(SIA).read_text(encoding="utf-8")
    asserted = [number for number, line in enumerate(text.splitlines(), 1) if "strict=True" in line]
    assert asserted
    assert not [each for each in mutants_of(SIA) if each.line in asserted and each.old == "True"]


def test_what_is_said_in_errors_or_of_types_is_not_changed():
    for mutant in mutants_of(SIA):
        assert "raise" not in mutant.old
        assert "@" not in mutant.old


def test_every_fault_of_the_list_can_still_be_planted():
    for each in NAMED:
        ast.parse(each.source())


def test_what_is_said_to_change_nothing_stands_in_its_line_and_only_there():
    for each in EQUIVALENT:
        fitting = [mutant for mutant in mutants_of(each.file) if each.fits(mutant)]
        assert fitting, each
        assert all(why_equivalent(mutant) == each.why for mutant in fitting)
        assert len({mutant.line for mutant in fitting}) == 1, each


def test_what_no_event_can_reach_changes_nothing():
    never = [mutant for mutant in mutants_of("kernel/kernel.py") if why_equivalent(mutant)]
    assert len(never) == 3
    assert all(mutant.old.startswith("assert_never(") for mutant in never)


def test_the_interval_of_a_share_is_wilsons():
    low, high = wilson(0, 300)
    assert (round(low, 4), round(high, 4)) == (0.0, 0.0126)
    assert tuple(round(end, 3) for end in wilson(30, 300)) == (0.071, 0.139)


# ---------------------------------------------------------------------- which tests, and what is planted where


TEXT = """
LIMIT = 3

class Meter:
    step = 1

    def read(self, at):
        if at > LIMIT:
            return [each + self.step for each in range(at)]
        return []

def other(at=2):
    return at
"""


def functions(old, new):
    found = changed_functions(path_of("x.py"), TEXT, TEXT.replace(old, new))
    return None if found is None else [before.co_qualname for before, _ in found]


def test_a_change_inside_of_a_function_is_planted_there_and_one_of_import_is_not():
    assert functions("at > LIMIT", "at >= LIMIT") == ["Meter.read"]
    assert functions("each + self", "each - self") == ["Meter.read"]  # in what it has inside
    assert functions("        if at > LIMIT:\n            return", "        if at:\n\n            return") == [
        "Meter.read"
    ]
    for old, new in (("LIMIT = 3", "LIMIT = 4"), ("step = 1", "step = 2"), ("at=2", "at=3")):
        assert functions(old, new) is None
    assert functions("return at", "return at") == []


def test_tests_are_asked_that_come_by_the_line_the_own_and_the_quickest_first(tmp_path):
    lines, first = path_of(LEDGER).read_text(encoding="utf-8").splitlines(), "meter.open_count += 1"
    at = next(number for number, line in enumerate(lines, 1) if first in line)
    reach = Reach()
    for name, cpu_s in (("tests/property/a", 0.1), ("tests/unit/kernel/b", 2.0), ("tests/unit/kernel/c", 1.0)):
        reach.add(name, cpu_s, [(LEDGER, at)])
    reach.add("tests/unit/kernel/d", 0.0, [(LEDGER, at + 30)])
    reach.write(tmp_path / "reach.json")
    read = Reach.read(tmp_path / "reach.json")
    in_order = ["tests/unit/kernel/c", "tests/unit/kernel/b", "tests/property/a"]
    assert read.tests_of(LEDGER, at, 60.0) == in_order
    assert read.tests_of(LEDGER, at, 2.5) == [in_order[0], in_order[2]]  # what lasts longer than patience is left out
    assert set(read.tests_of(LEDGER, 1, 60.0)) == {*in_order, "tests/unit/kernel/d"}  # run on import: any that comes by
    read.forget(["tests/unit/kernel/c"])
    assert read.tests_of(LEDGER, at, 60.0) == list(read.cpu_s) == ["tests/unit/kernel/c"]
    assert Reach.read(tmp_path / "none.json").tests_of(LEDGER, at, 60.0) == []


def test_a_tracer_sees_the_lines_of_the_modules_and_no_others():
    tracer = Tracer()
    tracer.start()
    try:
        ledger.Ledger([])
    finally:
        seen = tracer.stop()
    assert {file for file, _ in seen} == {LEDGER}
    start = next(n for n, line in enumerate(path_of(LEDGER).read_text().splitlines(), 1) if "billed_anew = 0" in line)
    assert (LEDGER, start) in seen
