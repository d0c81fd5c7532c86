"""Studies run beside one another, each in a process of its own, with the commit that they are of."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from sublet import plugins
from sublet.errors import MissingData
from sublet_lab.studies.claims.results import Result, Shown
from sublet_lab.studies.parts import end_with_parent
from sublet_lab.studies.report import Report
from sublet_lab.studies.study import Study

AT_ONCE = 2
ALONE = ("boa", "whole", "live")  # these have processes of their own; the last measures them
LONGEST_FIRST = ("cluster", "regions", "liveput", "fleet")  # so that the last one is not waited for


def run_all(names: Sequence[str], *, quick: bool, commit: str) -> Iterator[tuple[str, Result]]:
    """As they end."""
    order = sorted(names, key=lambda name: LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST))
    context = multiprocessing.get_context("spawn")  # no inherited threads, nor files read by another
    with ProcessPoolExecutor(
        max_workers=AT_ONCE, mp_context=context, max_tasks_per_child=1, initializer=end_with_parent
    ) as pool:
        runs = [pool.submit(run_one, name, quick=quick, commit=commit) for name in order if name not in ALONE]
        for done in as_completed(runs):
            yield done.result()
    for name in order:
        if name in ALONE:
            yield run_one(name, quick=quick, commit=commit)


def run_one(name: str, *, quick: bool, commit: str) -> tuple[str, Result]:
    """One study; where its data is not here, the result says which."""
    study = plugins.load("sublet.studies", name)
    if not isinstance(study, Study):
        raise TypeError(name)
    started_s, cpu_began_s = time.perf_counter(), _cpu_s()

    def tell(what: str) -> None:
        print(f"{name:>14} {time.perf_counter() - started_s:7.1f} s  {what}", file=sys.stderr, flush=True)

    try:
        findings = study.run(quick, tell)
    except MissingData as missing:
        tell(str(missing))
        return name, Result(commit=commit, quick=quick, seconds=0.0, missing=str(missing).splitlines()[0])
    seconds = round(time.perf_counter() - started_s, 1)
    tell("done")
    report = Report(study=study, findings=findings, seconds=seconds, command="")
    checks = tuple(Shown(**check) for check in report.json()["checks"])
    cpu_s = round(_cpu_s() - cpu_began_s, 1)
    return name, Result(commit=commit, quick=quick, seconds=seconds, cpu_s=cpu_s, checks=checks)


def _cpu_s() -> float:
    """CPU time of this process and of those that it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def commit_of(folder: Path) -> str:
    """The commit of this tree, with a plus where files differ from it; `unknown` outside of a clone."""
    try:
        commit, changes = (
            subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603, S607 - git of the user
            for words in (
                ("rev-parse", "--short=9", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "src", "lab"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + "+" * bool(changes)
