"""Hours of small jobs under random faults, on real processes: `make soak HOURS=8`, or `python -m tests.soak --help`.

Hours are those of the cloud; at the speed-up of 16 eight of them are half an hour on the wall. At the end: every job
has come to the end that it should, nothing runs that should not, no node was paid for twice or for less time than it
lived, and neither memory, nor descriptors, nor the store have grown. Ctrl-C ends everything that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chaos.rig import ENDED, rig
from tests.soak.faults import Faults
from tests.soak.findings import Findings, findings_from, table
from tests.soak.machine import sample
from tests.soak.work import Work, draw_work, the_long_one
from tests.soak.world import SoakRig

LOOK_S, CLOSE_LOOK_S, TELL_S = 0.25, 5.0, 30.0  # wall
CALM_S = 180.0  # wall: once nothing goes wrong any more, somebody comes on within it, or all jobs have ended
BASE_USD, USD_PER_H = 2.0, 1.5  # the budget: near twice what a soak of 8 h has cost
CALM_SHARE = 0.6  # of the time controllers are killed; then one lives to the end, and is measured


def soak(
    *, cloud_s: float, speedup: float = 16.0, jobs: int = 200, seed: int = 1, policy: str = "price", say: Any = print
) -> Findings:
    """One of this length."""
    rng = random.Random(f"soak {seed}")
    span_s = cloud_s / speedup
    work = [the_long_one(span_s), *draw_work(rng, jobs, 0.9 * span_s)]
    began_s = time.monotonic()
    purse_usd = BASE_USD + USD_PER_H * cloud_s / 3600.0
    facts = {"speedup": speedup, "seed": seed, "policy": policy, "most_nodes": 6, "lease_s": 20.0}
    with rig(SoakRig, **facts, purse_usd=purse_usd, market_s=cloud_s) as world:
        world.start()
        empty, store_at_first = _empty(world), world.store_bytes()
        faults = Faults(world, rng, calm_controller_s=CALM_SHARE * span_s)
        _live(world, work, faults, span_s=span_s, say=say)
        faults.end()
        ended = _calm(world, work)
        before_down = {"empty": empty, "empty_again": _empty(world)}
        before_down["store"] = {"at_first": store_at_first, "at_the_end": world.store_bytes()}
        bill = world.ask("cost") or {}
        said = (world.state.path / "controller.log").read_text(errors="replace")
        world.down()
        audit = world.audit()
        return findings_from(
            world,
            work=work,
            ended=ended,
            audit=audit,
            bill=bill,
            faults=faults,
            log=said,
            idle=before_down,
            wall_s=time.monotonic() - began_s,
            cloud_s=cloud_s,
            speedup=speedup,
            seed=seed,
            purse_usd=purse_usd,
        )


def _live(world: SoakRig, work: list[Work], faults: Faults, *, span_s: float, say: Any) -> None:
    """Jobs come, things break."""
    began_s = time.monotonic()
    close_s = told_s = 0.0
    while (now_s := time.monotonic() - began_s) < span_s:
        if world.dead:
            world.start()
        for each in work:
            if not each.job_id and each.at_s <= now_s and not world.bring(each):
                break
        world.long_id = work[0].job_id
        faults.tick(now_s)
        world.bring_back()
        closely = now_s - close_s >= CLOSE_LOOK_S
        nodes = world.look(closely=closely)
        if closely:
            close_s = now_s
            world.store_sizes.append((now_s, world.store_bytes()))
        if now_s - told_s >= TELL_S:
            told_s = now_s
            brought = sum(bool(each.job_id) for each in work)
            done = sum(faults.done.values())
            say(
                f"{now_s / 60:5.1f} of {span_s / 60:.1f} min: {brought} jobs brought, {nodes} nodes, {done} faults, "
                f"{world.deaths} controllers killed, store {world.store_bytes() / 1e6:.2f} MB"
            )
        time.sleep(LOOK_S)


class Standstill:
    """Nobody ends, and nobody makes a step that was not made before: they are stuck, not slow."""

    def __init__(self) -> None:
        self._best: dict[str, tuple[bool, int]] = {}  # job -> (has it ended, its highest step)
        self._since_s: float | None = None

    def lasts(self, views: Iterable[dict[str, Any]], now_s: float) -> bool:
        """For longer than anything should take."""
        before = dict(self._best)
        for view in views:
            ended, step = self._best.get(view["id"], (False, -1))
            self._best[view["id"]] = (ended or view["phase"] in ENDED, max(step, view["step"]))
        if self._since_s is None or self._best != before:
            self._since_s = now_s
        return now_s - self._since_s > CALM_S


def _calm(world: SoakRig, work: list[Work]) -> dict[str, dict[str, Any]]:
    """Nothing goes wrong any more: every job comes to its end, however slow the machine is."""

    def over() -> bool:
        world.revive_if_dead()
        world.bring_back()
        world.look(closely=False)
        brought = all(each.job_id or world.bring(each) for each in work)
        views = {view["id"]: view for view in (world.ask("jobs") or {}).get("jobs", [])}
        for view in views.values():
            if view["phase"] == "paused":
                world.wanted_again.add(view["id"])
        found.update(views)
        if standstill.lasts(views.values(), time.monotonic()):
            raise AssertionError
        poor = {each.job_id for each in work if each.is_poor}
        rests = {view["id"] for view in views.values() if view["phase"] == "out-of-budget"} & poor
        return brought and bool(views) and all(v["phase"] in ENDED or v["id"] in rests for v in views.values())

    found: dict[str, dict[str, Any]] = {}
    standstill = Standstill()
    with contextlib.suppress(AssertionError):  # whoever has not ended is told of below
        world.until(over, "all jobs end", math.inf)
    return found


def _empty(world: SoakRig) -> dict[str, int]:
    """What the controller has open while it holds no node."""
    with contextlib.suppress(AssertionError):  # the law about descriptors then says what is open
        world.until(lambda: world.look(closely=False) == 0, "all nodes are given back", 60.0)
    time.sleep(1.0)  # connections of ours end
    assert world.process is not None
    seen = sample(world.process.pid)
    return {} if seen is None else {"files": seen.files, "threads": seen.threads}


def main() -> None:
    """From the command line; exits with 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0, help="of the cloud")
    parser.add_argument("--speedup", type=float, default=16.0, help="seconds of the cloud in one of the wall")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="price")
    parser.add_argument("--json", type=Path, default=Path("out/soak.json"))
    asked = parser.parse_args()
    print(
        f"soak: {asked.hours:g} h of the cloud, {asked.hours * 60 / asked.speedup:.1f} min on the wall "
        f"(speed-up {asked.speedup:g}), {asked.jobs} jobs, seed {asked.seed}",
        flush=True,
    )
    try:
        found = soak(
            cloud_s=asked.hours * 3600.0,
            speedup=asked.speedup,
            jobs=asked.jobs,
            seed=asked.seed,
            policy=asked.policy,
            say=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        print("ended by hand; nothing is left running", flush=True)
        sys.exit(130)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(found.facts, indent=2) + "\n", encoding="utf-8")
    print(table(found), flush=True)
    sys.exit(0 if found.sound else 1)  # what was not measured does not hold: a longer soak measures it


if __name__ == "__main__":
    main()
