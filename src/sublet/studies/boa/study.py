"""Budget-optimal rental: the published theory reproduced, the published system rebuilt, and both beside `price`."""

from __future__ import annotations

from sublet.studies.boa.envelope import tight_budgets
from sublet.studies.boa.kinds import kinds
from sublet.studies.boa.limits import quota, wrong_load
from sublet.studies.boa.pollux import pollux
from sublet.studies.boa.purse import purse
from sublet.studies.boa.restarts import restarts
from sublet.studies.boa.theory import golden, theory
from sublet.studies.study import Findings, Study, Tell

__all__ = ["STUDY"]


def _run(quick: bool, tell: Tell) -> Findings:
    """Every comparison of the notes on budget-optimal rental."""
    parts = [golden(), theory(quick, tell), kinds(), restarts(quick, tell), quota(quick, tell)]
    parts += [wrong_load(quick, tell), purse(quick, tell), pollux(quick, tell), tight_budgets(quick, tell)]
    return Findings(
        checks=[check for part in parts for check in part.checks],
        tables=[table for part in parts for table in part.tables],
        notes=[note for part in parts for note in part.notes],
    )


STUDY = Study(name="boa", title="Budget-optimal rental: theory, the published system, and price beside it", run=_run)
