"""One brain, two worlds: real processes, and the same scenarios in the simulator.

Twice. In the demonstration the live run comes first, and what it measured of its jobs (speed at each worker count,
pauses) and of its nodes (time to boot) goes into the simulator, with the same offers, market, budget and policy.
Makespan and bill should agree: then what the simulator says of a policy holds for the system that users run. In the
scenarios the simulator comes first: it foretells what has not run yet, from a profile of the script that was taken
beforehand.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sublet.demo.scene import demo_jobs, demo_settings
from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.market.traces import load_trace
from sublet.runtime.controller_api.assemble import budget_from, policy_from
from sublet.runtime.providers.local.build import local_offers, local_supply
from sublet.runtime.settings import Settings
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet_lab.studies.live.foretelling import foretelling
from sublet_lab.studies.live.run import LiveRun, run_live
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_least, equals, within

TOLERANCE = 0.10  # of users.md: makespan and cost, simulator against local processes
QUICK = 0.4  # of the work of the demonstration
UNNOTICED_S = 3_600.0  # at a time, for the simulator knows no other


def simulate_live(settings: Settings, live: LiveRun) -> tuple[float, float]:
    """Makespan and dollars of the same scenario in the simulator."""
    traces = [load_trace(name, repeat=True) for name in settings.market]
    offers = [replace(offer, boot_s=live.boot_s) for offer in local_offers(settings, traces)]
    most = settings.most_nodes

    def market() -> Iterator[AvailabilityChanged]:
        """The recorded supply, less the node that was taken without a word."""
        gone = False
        for change in local_supply(settings, traces, offers):
            if change.at_s > 2 * UNNOTICED_S + live.makespan_s:
                return
            if change.at_s >= UNNOTICED_S and not gone:
                gone = True
            taken = 1 if gone and change.nodes else 0
            yield replace(change, nodes=None if change.nodes is None else change.nodes - taken)

    cloud = Cloud(
        offers=offers,
        limits={offer.id: Limit(max_nodes=most) for offer in offers},
        budget=budget_from(settings),
        physics=Physics(provision_s=live.boot_s, notice_s=settings.notice_s),
        market=market,
    )
    run = simulate(live.jobs, policy_from(settings), cloud, seed=settings.seed)
    return run.metrics.makespan_s, run.metrics.usd


def _run(quick: bool, tell: Tell) -> Findings:
    fed_back, foretold = _fed_back(quick, tell), foretelling(quick, tell)
    return Findings(
        checks=[*fed_back.checks, *foretold.checks],
        tables=[*fed_back.tables, *foretold.tables],
        notes=[*fed_back.notes, *foretold.notes],
    )


def _fed_back(quick: bool, tell: Tell) -> Findings:
    """The demonstration: the live run first."""
    folder = Path(tempfile.mkdtemp(prefix="sublet-live-"))
    try:
        strikes = (f"{UNNOTICED_S:g}:kill:1",)
        settings = replace(
            demo_settings(folder), hurry=True, strikes=strikes
        )  # by time alone, as it always was measured
        live = run_live(settings, [(0.0, spec) for spec in demo_jobs(QUICK if quick else 1.0)], tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell("the same in the simulator")
    makespan_s, usd = simulate_live(settings, live)
    finished = sum(view["phase"] == "finished" for view in live.views)
    checks: list[Check] = [
        equals("jobs finished", finished, len(live.views)),
        equals("steps lost", sum(view["steps_lost"] for view in live.views), 0, unit="steps"),
        within("makespan, live over simulated", live.makespan_s / makespan_s, 1.0, TOLERANCE),
        within("dollars, live over simulated", live.usd / usd, 1.0, TOLERANCE),
    ]
    if not quick:
        losses = sum(view["preemptions_noticed"] + view["preemptions_unnoticed"] for view in live.views)
        checks.append(at_least("nodes lost under jobs", losses, 1))
    rows = [
        ["live", f"{live.makespan_s:,.0f}", f"{live.usd:.3f}", f"{live.wall_s:.0f}"],
        ["simulated", f"{makespan_s:,.0f}", f"{usd:.3f}", ""],
    ]
    table = StudyTable(
        title="The same scenario in both worlds, with what the live run measured",
        columns=["world", "makespan s", "USD", "wall s"],
        rows=rows,
    )
    note = f"nodes took {live.boot_s:.0f} s of cloud time to boot, as measured; a wall second is {settings.speedup:g} s"
    return Findings(checks=checks, tables=[table], notes=[note])


STUDY = Study(name="live", title="real processes agree with the simulator, which foretells them", run=_run)
