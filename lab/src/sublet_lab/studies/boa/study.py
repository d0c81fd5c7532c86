"""Budget-optimal rental: the published theory reproduced, the published system rebuilt, and both beside `price`."""

from __future__ import annotations

from collections.abc import Sequence

from sublet_lab.studies.boa.envelope import tight_budgets
from sublet_lab.studies.boa.kinds import kinds
from sublet_lab.studies.boa.limits import quota, wrong_load
from sublet_lab.studies.boa.pollux import pollux
from sublet_lab.studies.boa.restarts import restarts
from sublet_lab.studies.boa.theory import golden, theory
from sublet_lab.studies.boa.total import purse
from sublet_lab.studies.parts import Part, findings_of, joined
from sublet_lab.studies.study import Findings, Study, Tell

PARTS: Sequence[Part] = (theory, restarts, quota, wrong_load, purse, pollux, tight_budgets)
LONGEST: Sequence[Part] = (quota, purse, wrong_load)


def _run(quick: bool, tell: Tell) -> Findings:
    """Every comparison of the notes on budget-optimal rental."""
    theories, *others = findings_of(PARTS, quick, tell, longest=LONGEST)
    return joined([golden(), theories, kinds(), *others])


STUDY = Study(name="boa", title="Budget-optimal rental: theory, the published system, and price beside it", run=_run)
