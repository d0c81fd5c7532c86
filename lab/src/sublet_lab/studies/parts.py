"""The parts of a study that need nothing of one another, run side by side: as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from sublet_lab.studies.study import Findings, Tell

Part = Callable[[bool, Tell], Findings]  # (quick, tell), as a study; a function of a module, to be found by its name


def findings_of(parts: Sequence[Part], quick: bool, tell: Tell, *, longest: Sequence[Part] = ()) -> list[Findings]:
    """Findings of each part, in their order.

    A quick run stays in this process; else those that take longest begin first.
    """
    if quick:
        return [part(quick, tell) for part in parts]
    context = multiprocessing.get_context("spawn")  # no inherited threads, nor files read by another
    with ProcessPoolExecutor(
        max_workers=os.cpu_count(), mp_context=context, max_tasks_per_child=1, initializer=end_with_parent
    ) as pool:
        order = [*longest, *(part for part in parts if part not in longest)]
        runs = {pool.submit(part, quick, _untold): part for part in order}
        try:
            for count, done in enumerate(as_completed(runs), 1):
                done.result()  # what went wrong there goes wrong here
                tell(f"{count} of {len(parts)} parts: {runs[done].__name__}")
        except BaseException:
            pool.shutdown(cancel_futures=True)  # else those that have not begun are run first
            raise
        found = {part: run.result() for run, part in runs.items()}
    return [found[part] for part in parts]


def end_with_parent() -> None:
    """In a process of a pool: it ends as soon as the reader of its results is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.join,), daemon=True).start()


def _end_after(wait: Callable[[], None]) -> None:
    wait()
    os._exit(1)


def joined(parts: Sequence[Findings]) -> Findings:
    """One after another."""
    return Findings(
        checks=[check for part in parts for check in part.checks],
        tables=[table for part in parts for table in part.tables],
        notes=[note for part in parts for note in part.notes],
    )


def _untold(_what: str) -> None:
    """Lines of several parts would be mixed up."""
