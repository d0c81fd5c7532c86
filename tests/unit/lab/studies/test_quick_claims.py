"""`make claims QUICK=1`, study by study, as a clone runs it: what it shows, and what only a full run can."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sublet.data import external
from sublet_lab.studies.claims.__main__ import MARK, main
from sublet_lab.studies.claims.catalogue import CLAIMS
from sublet_lab.studies.claims.results import read_results
from sublet_lab.studies.claims.table import not_shown
from tests.figures import HERE
from tests.rigs.sizes import FULL

SOON = ("regions", "pollux-oracle", "peers", "deepvm")  # half a minute of CPU at most
LONG = ("fleet", "liveput")  # a minute; the quick forms of the others are tested by their parts
IN_FULL_ALONE = {  # what claims name of a study, and its quick form does not run
    "regions": {"v100: cost / best"},
    "peers": {"sia, saturn: mean time"},
    "liveput": {
        f"{model}: {what}"
        for model in ("gpt-6.7b", "resnet152")
        for what in ("samples per dollar of parcae's, *", "parcae's dollars over those *")
    },
}


@pytest.mark.outside_data
@pytest.mark.parametrize("name", [*SOON, *(LONG if FULL else ())])
def test_the_quick_form_shows_its_claims_and_misses_nothing_that_a_full_run_keeps(name, tmp_path):
    if not (external() / "oracles").exists():
        pytest.skip("what does not ship is not here: sublet data")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"<!-- {MARK}: here -->\n<!-- end of {MARK} -->\n", encoding="utf-8")
    assert main(["--quick", "--only", name, "--root", str(tmp_path)]) == 1  # the other studies were not run
    found = read_results(tmp_path / "docs" / "claims.json")
    result = found[name]
    assert (list(found), result.quick, result.missing) == ([name], True, "")
    assert result.checks
    assert all(check.ours is not None and math.isfinite(check.ours) for check in result.checks)
    claims = [claim for claim in CLAIMS if claim.study == name]
    lost = {
        figure.check
        for claim in claims
        for figure in claim.figures
        if not_shown([replace(claim, figures=(figure,))], found)
    }
    assert lost == IN_FULL_ALONE.get(name, set())
    kept = {check.name for check in read_results(HERE / "docs" / "claims.json")[name].checks if check.ok}
    worse = [check for check in result.checks if not check.ok and check.name in kept]
    assert [check.name for check in worse if check.unit not in ("s", "ms")] == []  # no time is asserted
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if f"sublet study {name} --quick" in line]
    assert len(rows) == len(claims)
