"""Kill tests with real processes, in full: `python -m tests.chaos.episodes [WHAT...] [--quick]`.

    workers      one job of two workers; 50 SIGKILLs of a worker at random moments
    controller   one episode per crash point (or for those that are named): the controller dies there, another comes
                 and brings the job to its end
    budget       a purse that is spent in mid-run, a top-up, and the same step again
    everything   controller, agents and workers are killed at one moment, at random, several times

After each: the job has made every step, no step is lost where a survivor was, nothing runs that should not, no node was
rented twice, and the bill is that of the log to the grain. `make test` runs a few of each.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time

from sublet.errors import Refused
from tests.chaos.rig import CRASH_POINTS, Rig, rig

SEED = 7


class DoneTooSoon(Exception):
    """On a busy machine: the job had ended before it could be paused, so that nothing was tried."""


def kill_workers(kills: int, seed: int = SEED) -> dict[str, float]:
    """Kill one of two workers, again and again, at random moments of a step, a regroup or a start."""
    rng = random.Random(seed)
    with rig() as world:
        world.start()
        job_id = world.submit(steps=200 + 60 * kills, step_ms=10, key="job")
        world.until(lambda: world.job(job_id).get("step", 0) > 0, "it trains")
        done = alone = 0
        while done < kills:
            time.sleep(rng.uniform(0.2, 1.2))
            if world.job(job_id).get("phase") in ("finished", "failed"):
                break
            alone += len(world.workers()) < 2  # then no survivor has the state
            done += world.kill_a_worker(rng)
        (job,) = world.until_ended(job_id, patience_s=90 + 3 * kills)
        assert job["phase"] == "finished", job["error"]
        assert job["step"] == 200 + 60 * kills, job["step"]
        # A checkpoint a second: what a lone worker can lose.
        assert job["steps_lost"] <= alone * 100, f"{job['steps_lost']} steps lost, {alone} times nobody survived"
        world.down()
        audit = world.audit()
    return {"kills": done, "alone": alone, "steps_lost": job["steps_lost"], "nodes": audit["nodes"]}


def crash(point: str) -> dict[str, float]:
    """One life with a controller that dies at `point`, and a second one that finishes the work."""
    for step_ms in (10.0, 40.0):
        with contextlib.suppress(DoneTooSoon):
            return _crash(point, step_ms)
    return _crash(point, 160.0)


def _crash(point: str, step_ms: float) -> dict[str, float]:
    policy = "pollux" if "TimerFired" in point else "max-speedup"  # the one asks to be asked again
    with rig(strikes=("420:notice:1",), policy=policy) as world:
        began = time.monotonic()
        world.start(point)
        job_id = world.submit(steps=500, step_ms=step_ms, key="job")
        assert world.submit(steps=500, step_ms=step_ms, key="job") == job_id, "one submission made two jobs"
        world.until(lambda: world.revive_if_dead() or world.job(job_id).get("step", 0) > 50, "it trains")
        try:
            world.post(f"jobs/{job_id}/pause")
        except Refused:
            if world.steady(job_id)["phase"] == "finished":
                raise DoneTooSoon from None
            raise
        world.until(lambda: world.revive_if_dead() or world.job(job_id).get("phase") == "paused", "it pauses")
        paused_at = world.steady(job_id)["step"]
        world.post(f"jobs/{job_id}/resume")
        world.until(lambda: world.revive_if_dead() or world.job(job_id).get("step", 0) > paused_at + 20, "it goes on")
        world.kill_a_node()
        (job,) = world.until_ended(job_id)
        assert (job["phase"], job["step"]) == ("finished", 500), job
        assert job["steps_lost"] <= 100, f"{job['steps_lost']} steps lost: more than a checkpoint interval"
        assert world.deaths, "the point was never reached"
        _settled(world)
        world.down()
        audit = world.audit()
        return {
            "deaths": world.deaths,
            "steps_lost": job["steps_lost"],
            "paused_at": paused_at,
            "nodes": audit["nodes"],
            "wall_s": time.monotonic() - began,
        }


def kill_everything(times: int, seed: int = SEED) -> dict[str, float]:
    """The machine goes down, and comes back."""
    rng = random.Random(seed)
    with rig() as world:
        world.start()
        job_id = world.submit(steps=300 + 100 * times, step_ms=10, key="job")
        for _ in range(times):
            world.until(lambda: world.job(job_id).get("checkpoint_step") is not None, "it has saved once")
            time.sleep(rng.uniform(0.0, 2.0))
            world.kill_everything()
            world.deaths += 1
            world.start()
        (job,) = world.until_ended(job_id)
        assert (job["phase"], job["step"]) == ("finished", 300 + 100 * times), job
        world.down()
        audit = world.audit()
    return {"deaths": world.deaths, "steps_lost": job["steps_lost"], "nodes": audit["nodes"]}


def spend_a_purse() -> dict[str, float]:
    """A purse that ends before the job does; then more money, and the rest of the steps."""
    with rig(purse_usd=0.042, lease_s=3.0) as world:
        world.start()
        job_id = world.submit(steps=2000, step_ms=10, max_workers=1, key="job")
        world.until(lambda: world.job(job_id).get("phase") == "out-of-budget", "the budget is spent")
        world.until(lambda: not world.agents(), "everything is given back")
        stopped, spent = world.job(job_id), (world.ask("budget") or {})["spent_usd"]
        assert spent <= 0.042, spent
        assert stopped["checkpoint_step"] == stopped["step"] > 0, "the last step is not saved"
        world.post("budget/top-up", {"usd": 0.2})
        world.until(lambda: world.job(job_id).get("phase") == "running", "it goes on")
        (job,) = world.until_ended(job_id)
        assert (job["phase"], job["step"], job["steps_lost"]) == ("finished", 2000, 0), job
        world.down()
        audit = world.audit()
    return {"stopped_at": stopped["step"], "spent_usd": spent, "in_all_usd": audit["spent"].usd}


def _settled(world: Rig) -> None:
    """Two comparisons later, what runs is what the controller holds."""

    def same() -> bool:
        nodes = world.ask("nodes")
        held = [n for n in (nodes or {}).get("nodes", []) if n["phase"] != "gone"]
        return nodes is not None and len(world.agents()) == len(held)

    world.until(same, "what runs is what is held")


def main() -> None:
    """Run what is asked for, and say what was found."""
    asked, quick = [a for a in sys.argv[1:] if a != "--quick"], "--quick" in sys.argv
    if not asked or "workers" in asked:
        print("workers:", kill_workers(5 if quick else 50), flush=True)
    if not asked or "everything" in asked:
        print("everything:", kill_everything(1 if quick else 5), flush=True)
    if not asked or "budget" in asked:
        print("budget:", spend_a_purse(), flush=True)
    if not asked or "controller" in asked:
        points = [point for point in CRASH_POINTS if point in asked] or CRASH_POINTS[:: 8 if quick else 1]
        missed = []
        for point in points:
            try:
                print(f"controller, {point}:", crash(point), flush=True)
            except AssertionError as error:
                missed.append(point)
                print(f"controller, {point}: FAILED {error}", flush=True)
        print(f"controller: {len(points) - len(missed)} of {len(points)} crash points survived")
        if missed:
            sys.exit(1)


if __name__ == "__main__":
    main()
