"""`sublet study` itself: its list, and what an interrupt leaves."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from sublet import plugins
from sublet.cli.main import run
from sublet_lab.studies.parts import findings_of
from sublet_lab.studies.study import Findings, Study
from sublet_lab.studies.titles import TITLES


def test_the_list_has_the_titles_of_the_studies():
    """As their source has them: to import all of them takes longer than all other tests here."""
    found = {}
    for point in metadata.entry_points(group="sublet.studies"):
        tree = ast.parse(Path(find_spec(point.module).origin).read_text(encoding="utf-8"))
        (made,) = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and ast.unparse(call.func) == "Study"]
        found[point.name] = next(word.value.value for word in made.keywords if word.arg == "title")
    assert dict(TITLES) == found


def test_the_list_imports_neither_torch_nor_a_study():
    code = "import sys; from sublet.cli.main import run; run(['study', '--list']); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *listed, modules = done.stdout.splitlines()
    assert len([line for line in listed if line.split()[0] in TITLES]) == len(TITLES)
    assert {"torch", "scipy", "sublet_lab.studies.boa.study"} & set(modules.split()) == set()


def test_an_interrupt_is_said_with_what_ran_and_leaves_no_report(tmp_path, monkeypatch, capsys):
    def interrupted(_quick, tell):
        tell("the second half")
        raise KeyboardInterrupt

    study = Study(name="halves", title="two", run=interrupted)
    load = plugins.load
    monkeypatch.setattr(plugins, "load", lambda group, name: study if name == "halves" else load(group, name))
    assert run(["study", "halves", "--report", str(tmp_path / "report")]) == 130
    told = capsys.readouterr()
    assert "halves: interrupted after" in told.err
    assert ", at: the second half" in told.err
    assert "nothing was written" in told.err
    assert told.out == ""
    assert list((tmp_path / "report").iterdir()) == []


def broken(_quick, _tell):
    raise ArithmeticError("at once")


def noted(_quick, _tell):
    (Path(os.environ["PARTS_RAN"]) / str(os.getpid())).touch()
    return Findings(checks=[])


def test_parts_that_have_not_begun_are_not_run_once_one_has_failed(tmp_path, monkeypatch):
    """One at a time, of which the pool hands out one or two ahead."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setenv("PARTS_RAN", str(tmp_path))
    with pytest.raises(ArithmeticError, match="at once"):
        findings_of([broken, *[noted] * 6], False, lambda _: None)
    assert len(list(tmp_path.iterdir())) < 4
