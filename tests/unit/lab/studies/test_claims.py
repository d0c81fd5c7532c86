"""The README's claims: what is shown of them, what is marked as missed, and that the page is what was run."""

from __future__ import annotations

import re
import shutil

import pytest

from sublet import plugins
from sublet.data import external
from sublet.errors import BadInput
from sublet_lab.studies.claims.__main__ import MARK, main
from sublet_lab.studies.claims.catalogue import CLAIMS
from sublet_lab.studies.claims.claim import Claim, Data, Figure, Source, Take
from sublet_lab.studies.claims.results import Result, Shown, read_results, write_results
from sublet_lab.studies.claims.run import ALONE, LONGEST_FIRST, run_one
from sublet_lab.studies.claims.table import MISSED, NOT_RUN, not_shown, table, with_table
from tests.figures import HERE

FILE = HERE / "docs" / "claims.json"


def claim(*figures, study="s"):
    return Claim(what="it is fast", over="them", study=study, figures=figures, source=Source.REBUILD, data=Data.TUNED)


def check(name, ours=1.0, *, ok=True, goal="<= 2", off=None, unit=""):
    return Shown(name=name, ours=ours, goal=goal, ok=ok, off=off, unit=unit)


def results(*checks, missing="", quick=False):
    return {"s": Result(commit="abc1234de", quick=quick, seconds=1.0, checks=checks, missing=missing)}


def cells(claims, found):
    return [cell.strip() for cell in table([claims], found).splitlines()[2].strip("| ").split(" | ")]


def test_a_row_says_who_knew_what_whose_figure_on_which_data_and_the_commit():
    row = cells(claim(Figure(check="a")), results(check("a", 1.234, off=0.05, unit="x")))
    assert row == [
        *("it is fast", "them", "", "our rebuild", "tuned on"),
        *("1.23 +- 0.05 x", "<= 2 x", "`sublet study s`", "abc1234de"),
    ]


def test_a_goal_that_is_missed_is_marked():
    row = cells(claim(Figure(check="a", label="time"), Figure(check="b")), results(check("a", ok=False), check("b")))
    assert row[5] == f"time 1.00 {MISSED}; 1.00"


def test_the_worst_of_several_is_told_and_any_that_is_missed_marks_it():
    found = results(check("x/1", 3.0), check("x/2", 5.0), check("x/3", 4.0, ok=False, goal="<= 3"))
    assert cells(claim(Figure(check="x/*", take=Take.MOST)), found)[5:7] == [f"5.00 {MISSED}", "<= 2"]
    assert cells(claim(Figure(check="x/*", take=Take.LEAST)), found)[5:7] == [f"3.00 {MISSED}", "<= 2"]
    assert cells(claim(Figure(check="x/*", take=Take.HELD)), found)[5:7] == [f"2 of 3 {MISSED}", "all"]


def test_a_check_without_a_number_is_the_worst():
    found = results(check("x/1", 3.0), check("x/2", None, ok=False))
    assert cells(claim(Figure(check="x/*", take=Take.LEAST)), found)[5] == f"none {MISSED}"


def test_what_no_check_shows_is_told():
    sought = [claim(Figure(check="gone")), claim(Figure(check="x/*")), claim(Figure(check="a"), study="other")]
    found = results(check("x/1"), check("x/2"))
    assert [NOT_RUN in line for line in table(sought, found).splitlines()[2:]] == [True, True, True]
    assert len(not_shown(sought, found)) == 3
    assert not_shown([claim(Figure(check="x/1"))], found) == []
    assert "the file" in not_shown([claim(Figure(check="x/1"))], results(check("x/1"), missing="the file"))[0]


def test_a_quick_run_is_said_to_be_one():
    assert "`sublet study s --quick`" in table([claim(Figure(check="a"))], results(check("a"), quick=True))


def test_a_page_without_its_marks_is_refused():
    page = "a\n<!-- x: by make -->\nold\n<!-- end of x -->\nb"
    assert with_table(page, "x", "new") == "a\n<!-- x: by make -->\n\nnew\n\n<!-- end of x -->\nb"
    for bad in (page.replace("end of x", ""), page + page):
        with pytest.raises(BadInput, match="marks"):
            with_table(bad, "x", "new")


def test_results_are_read_as_they_were_written(tmp_path):
    found = results(check("a", None, off=0.5), check("b"))
    write_results(tmp_path / "claims.json", found)
    assert read_results(tmp_path / "claims.json") == found


def test_the_claims_are_run_shown_and_written_on_the_page(tmp_path):
    """In seconds: a study that is quick, and a page that nothing was written on yet."""
    if not (external() / "oracles").exists():
        pytest.skip("the completion times of Pollux are not here: sublet data")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"<!-- {MARK}: here -->\n<!-- end of {MARK} -->\n", encoding="utf-8")
    assert main(["--quick", "--only", "pollux-oracle", "--root", str(tmp_path)]) == 1  # the others were not run
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if "sublet study pollux-oracle --quick" in line]
    assert len(rows) == sum(claim.study == "pollux-oracle" for claim in CLAIMS)
    assert not any(NOT_RUN in row for row in rows)


def test_a_study_without_its_data_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path))
    name, result = run_one("pollux-oracle", quick=True, commit="c")
    assert (name, result.checks) == ("pollux-oracle", ())
    assert "pollux_artifact_job_times" in result.missing


# ---------------------------------------------------------------------- the README


def test_every_claim_is_of_a_study_and_says_where_the_other_figure_is_from():
    assert {claim.study for claim in CLAIMS} <= set(plugins.names("sublet.studies"))
    assert set(ALONE) | set(LONGEST_FIRST) <= {claim.study for claim in CLAIMS}
    assert [claim.what for claim in CLAIMS if claim.source is not Source.ITSELF and not claim.over] == []


def test_the_table_of_the_readme_is_what_the_last_runs_gave(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(FILE, tmp_path / "docs")
    shutil.copy(HERE / "README.md", tmp_path)
    main(["--render", "--root", str(tmp_path)])
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == (HERE / "README.md").read_text(encoding="utf-8")


def test_every_claim_whose_study_was_run_is_shown_by_a_full_run_of_a_commit():
    found = read_results(FILE)
    assert not_shown([claim for claim in CLAIMS if claim.study in found], found) == []
    assert [name for name, result in found.items() if result.quick] == []
    assert [name for name, result in found.items() if not re.fullmatch(r"[0-9a-f]{9}\+?", result.commit)] == []
