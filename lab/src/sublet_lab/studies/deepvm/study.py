"""DeepVM: the published cluster planner reproduced, and Sublet's cluster adviser beside it."""

from __future__ import annotations

from sublet_lab.studies.deepvm.advice import on_the_scaling_table, predicted
from sublet_lab.studies.deepvm.catalogue import on_the_catalogue
from sublet_lab.studies.deepvm.sweep import at_three_dollars, sweep
from sublet_lab.studies.study import Findings, Study, Tell


def _run(quick: bool, tell: Tell) -> Findings:
    """The published planner, then the adviser."""
    parts = [at_three_dollars(), sweep(quick, tell), on_the_scaling_table(), predicted(tell), on_the_catalogue(tell)]
    return Findings(
        checks=[check for part in parts for check in part.checks],
        tables=[table for part in parts for table in part.tables],
        plots={caption: png for part in parts for caption, png in part.plots.items()},
        notes=[note for part in parts for note in part.notes],
    )


STUDY = Study(name="deepvm", title="which machines to rent for one job: DeepVM's planner, and the adviser", run=_run)
