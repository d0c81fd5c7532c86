"""Real jobs to the same loss, with the batch that the plan chooses and with a fixed one: foretold, then measured.

    python -m benchmarks.live_batch [--policies elastic-batch price]

Three jobs of a script whose seconds and gradient noise are known (`sublet.testing.paced.script`). First the simulator
runs them with these numbers, under the same policy and offers, with a batch that may change and with the initial one;
then real processes do. Told is how many times sooner the jobs are at the same loss, in the mean of the three.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from statistics import fmean

from sublet.domain.budget import Limit
from sublet.domain.job import Job
from sublet.perf.live.rows import StepRow
from sublet.perf.live.speed import LiveSpeed, batch_steps
from sublet.runtime.controller_api.assemble import budget_from, policy_from
from sublet.runtime.providers.local.build import local_offers
from sublet.runtime.settings import Settings
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.paced.run import Outcome, PacedJob, run_paced

INITIAL, LARGEST, FEATURES, SAMPLES = 16, 512, 127, 30_000
NOISE = FEATURES + 1.0  # eight times the initial batch: much more could not be told within a minute
RATE = 0.1 / (1.0 + NOISE / INITIAL)  # a tenth of that with which a step comes closest: then steps add up
SHRINKS = 2.0 * RATE - RATE**2 * (1.0 + NOISE / INITIAL)  # the squared distance, in a step at the initial batch
UNTIL = 3e-6  # of the squared distance at the beginning, which is about 1
SPEEDUP, NODES, LEAST, MOST = 200.0, 4, 2, 3
PACES = {"a": (60.0, 4.0), "b": (80.0, 4.0), "c": (60.0, 5.0)}  # milliseconds: of a micro-batch, of each sample
SYNC_MS = 5.0


def steps_needed() -> float:
    """At the initial batch, in the mean."""
    return math.log(UNTIL) / math.log(1.0 - SHRINKS)


def settings_of(policy: str, state_dir: str = "/nowhere") -> Settings:
    """As both worlds have them."""
    hurry = policy == "price"
    return Settings(state_dir=state_dir, policy=policy, hurry=hurry, speedup=SPEEDUP, most_nodes=NODES, lease_s=30.0)


def foretold_s(policy: str, *, dynamic: bool) -> float:
    """Mean wall seconds of a job from its submission to the loss, in the simulator."""
    settings = settings_of(policy)
    offers = local_offers(settings, [])
    limits = {offer.id: Limit(max_nodes=NODES) for offer in offers}
    cloud = Cloud(offers=offers, limits=limits, budget=budget_from(settings))
    jobs = [_job(name, *pace, gpu=offers[0].gpu, dynamic=dynamic) for name, pace in PACES.items()]
    return simulate(jobs, policy_from(settings), cloud).metrics.mean_s / SPEEDUP


def _job(name: str, floor_ms: float, sample_ms: float, *, gpu: str, dynamic: bool) -> Job:
    rows = []
    for gpus in range(1, MOST + 1):
        for samples in (4, 16, 64):
            piece_s = (floor_ms + sample_ms * samples) / 1e3
            wait_s = SYNC_MS / 1e3 if gpus > 1 else 0.0
            rows.append(
                StepRow(
                    gpu=gpu,
                    gpus=gpus,
                    nodes=gpus,
                    samples=samples,
                    step_s=piece_s + wait_s,
                    piece_s=piece_s,
                    wait_s=wait_s,
                    error=0.02,
                )
            )
    speed = LiveSpeed(
        rows=tuple(rows),
        batches=batch_steps(INITIAL, INITIAL, LARGEST),
        initial=INITIAL,
        batch_now=INITIAL,
        noise=NOISE if dynamic else None,
        unit=steps_needed() * INITIAL * SPEEDUP,
    )
    return Job(
        id=name,
        submit_s=0.0,
        work=1.0,
        speed=speed,
        gpus=MOST,
        min_gpus=LEAST,
        max_gpus=MOST,
        restart_s=0.3 * SPEEDUP,
    )


def measured_s(policy: str, *, dynamic: bool) -> tuple[float, dict[str, Outcome]]:
    """The same of real processes, from when the first of them took its first step."""
    jobs = [PacedJob(name=name, least=LEAST, most=MOST, flags=_flags(*pace, dynamic)) for name, pace in PACES.items()]
    settings = settings_of(policy)
    found = run_paced(
        jobs,
        policy=policy,
        hurry=settings.hurry,
        speedup=SPEEDUP,
        most_nodes=NODES,
        lease_s=settings.lease_s,
    )
    assert all(job.view["phase"] == "finished" for job in found.values())
    assert all(job.steps[-1].distance <= UNTIL for job in found.values())
    began_s = min(job.steps[0].at_s for job in found.values())
    return fmean(job.steps[-1].at_s - began_s for job in found.values()), found


def _flags(floor_ms: float, sample_ms: float, dynamic: bool) -> dict[str, float | str]:  # noqa: FBT001 - of one call
    return {
        "samples": SAMPLES,
        "features": FEATURES,
        "batch": INITIAL,
        "largest": LARGEST if dynamic else 0,
        "rate": RATE,
        "decay": 1.0,
        "until": UNTIL,
        "floor-ms": floor_ms,
        "sample-ms": sample_ms,
        "sync-ms": SYNC_MS,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Both ratios of each policy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policies", nargs="+", default=["elastic-batch", "price"])
    parser.add_argument("--foretell", action="store_true", help="the simulator alone")
    asked = parser.parse_args(arguments)
    for policy in asked.policies:
        ahead = {dynamic: foretold_s(policy, dynamic=dynamic) for dynamic in (False, True)}
        ratio = ahead[False] / ahead[True]
        print(f"{policy}: foretold {ahead[False]:.1f} s fixed, {ahead[True]:.1f} s dynamic: {ratio:.2f} times sooner")
        if asked.foretell:
            continue
        began = time.monotonic()
        fixed_s, _ = measured_s(policy, dynamic=False)
        dynamic_s, found = measured_s(policy, dynamic=True)
        batches = {
            name: [shape.batch for shape in job.orders if shape.batch is not None] for name, job in found.items()
        }
        print(
            f"{policy}: measured {fixed_s:.1f} s fixed, {dynamic_s:.1f} s dynamic: {fixed_s / dynamic_s:.2f} times "
            f"sooner, {fixed_s / dynamic_s / ratio - 1.0:+.0%} beside what was foretold; the plan's batches {batches}; "
            f"{time.monotonic() - began:.0f} s"
        )


if __name__ == "__main__":
    main()
