"""Parts of a study give the same side by side as one after another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sublet_lab.studies.parts import findings_of, joined
from sublet_lab.studies.study import Findings, StudyTable, equals


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
    from sublet_lab.studies.boa.study import LONGEST, PARTS  # not for the processes of the others to import

    assert set(LONGEST) <= set(PARTS)


KILLED = """
import os, signal, time
from sublet_lab.studies.parts import findings_of
from sublet_lab.studies.study import Findings

def long(_quick, _tell):
    print(os.getpid(), flush=True)
    time.sleep(600)
    return Findings(checks=[], tables=[])

if __name__ == "__main__":
    findings_of([long], False, print)
"""


def test_whoever_computes_ends_with_whoever_asked_even_if_that_is_killed(tmp_path):
    script = tmp_path / "study.py"
    script.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as asked:
        pid = int(asked.stdout.readline())
        asked.kill()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def eventually(holds, within_s=60.0):
    end_s = time.monotonic() + within_s
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.05)
    return holds()
