"""Budget-optimal rental: the published theory reproduced, the published system rebuilt, and both beside `price`."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.studies.boa.envelope import tight_budgets
from sublet.studies.boa.kinds import kinds
from sublet.studies.boa.limits import quota, wrong_load
from sublet.studies.boa.pollux import pollux
from sublet.studies.boa.purse import purse
from sublet.studies.boa.restarts import restarts
from sublet.studies.boa.theory import golden, theory
from sublet.studies.parts import Part, findings_of, joined
from sublet.studies.study import Findings, Study, Tell

__all__ = ["STUDY"]


PARTS: Sequence[Part] = (theory, restarts, quota, wrong_load, purse, pollux, tight_budgets)
LONGEST: Sequence[Part] = (quota, purse, wrong_load)


def _run(quick: bool, tell: Tell) -> Findings:
    """Every comparison of the notes on budget-optimal rental."""
    theories, *others = findings_of(PARTS, quick, tell, longest=LONGEST)
    return joined([golden(), theories, kinds(), *others])


STUDY = Study(name="boa", title="Budget-optimal rental: theory, the published system, and price beside it", run=_run)
