"""Parts of a study give the same side by side as one after another."""

from __future__ import annotations

import os

import pytest

from sublet.studies.parts import findings_of, joined
from sublet.studies.study import Findings, StudyTable, equals


def first(quick, tell):
    tell("first")
    table = StudyTable(title="a", columns=["process"], rows=[[str(os.getpid())]])
    return Findings(checks=[equals("one", 1, 1)], tables=[table], notes=[f"quick: {quick}"])


def second(quick, _tell):
    return Findings(checks=[equals("two", 2, 3)], notes=[f"quick: {quick}"])


def broken(_quick, _tell):
    raise ArithmeticError("in another process")


def test_parts_run_in_processes_of_their_own_and_are_put_in_order():
    heard = []
    apart = findings_of([first, second], False, heard.append, longest=[second])
    here = findings_of([first, second], True, heard.append)
    assert list(map(str, joined(apart).checks)) == list(map(str, joined(here).checks))  # NaN is not equal to itself
    assert [check.name for check in joined(apart).checks] == ["one", "two"]
    assert apart[0].tables[0].rows != here[0].tables[0].rows == [[str(os.getpid())]]
    assert joined(apart).notes == ["quick: False"] * 2
    assert sorted(heard) == ["1 of 2 parts: " + heard[0].split()[-1], "2 of 2 parts: " + heard[1].split()[-1], "first"]


def test_what_goes_wrong_in_a_part_goes_wrong():
    with pytest.raises(ArithmeticError, match="in another process"):
        findings_of([second, broken], False, lambda _: None)


def test_the_parts_of_boa_that_take_longest_are_among_its_parts():
    from sublet.studies.boa.study import LONGEST, PARTS  # not for the processes of the others to import

    assert set(LONGEST) <= set(PARTS)
