"""Real jobs to the same loss, with the batch that the plan chooses and with a fixed one: foretold, then measured.

    python -m benchmarks.live_batch [--settings first slight ...] [--policies elastic-batch price]

Three jobs of a script whose seconds and gradient noise are known (`sublet.testing.paced.script`). First the simulator
runs them with these numbers, under the same policy and offers, with a batch that may change and with the initial one;
then real processes do. Told is how many times sooner the jobs are at the same loss, in the mean of the three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
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

SPEEDUP, NODES, LEAST, MOST = 200.0, 4, 2, 3
SYNC_MS, STEPS = 5.0, 595  # at the initial batch, in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What three jobs are like: batches, features (the noise is one more), milliseconds of a step and of a sample."""

    initial: int
    features: int
    paces: tuple[tuple[float, float], ...]
    largest: int = 512

    @property
    def noise(self) -> float:
        """In samples."""
        return self.features + 1.0

    @property
    def rate(self) -> float:
        """Of learning: a tenth of that with which a step comes closest. Then steps add up."""
        return 0.1 / (1.0 + self.noise / self.initial)

    @property
    def until(self) -> float:
        """Of the squared distance at the beginning, which is about 1: there is training enough."""
        shrinks = 2.0 * self.rate - self.rate**2 * (1.0 + self.noise / self.initial)
        return float((1.0 - shrinks) ** STEPS)


QUICK = ((60.0, 4.0), (80.0, 4.0), (60.0, 5.0))
SETTINGS = {
    "first": Setting(initial=16, features=127, paces=QUICK),  # the one that was chosen among four
    "slight": Setting(initial=32, features=127, paces=((80.0, 2.0), (100.0, 2.0), (80.0, 3.0))),
    "small": Setting(initial=8, features=63, paces=((100.0, 8.0), (140.0, 8.0), (100.0, 12.0))),
    "noisy": Setting(initial=16, features=255, paces=QUICK),
    "large": Setting(initial=32, features=511, paces=((60.0, 1.0), (80.0, 1.0), (60.0, 1.5)), largest=1024),
    "lost": Setting(initial=16, features=1023, paces=QUICK),  # 64 times: far above what a step can tell
}


def settings_of(policy: str, state_dir: str = "/nowhere") -> Settings:
    """As both worlds have them."""
    hurry = policy == "price"
    return Settings(state_dir=state_dir, policy=policy, hurry=hurry, speedup=SPEEDUP, most_nodes=NODES, lease_s=30.0)


def foretold_s(setting: Setting, policy: str, *, dynamic: bool) -> float:
    """Mean wall seconds of a job from its submission to the loss, in the simulator."""
    settings = settings_of(policy)
    offers = local_offers(settings, [])
    limits = {offer.id: Limit(max_nodes=NODES) for offer in offers}
    cloud = Cloud(offers=offers, limits=limits, budget=budget_from(settings))
    jobs = [_job(setting, at, gpu=offers[0].gpu, dynamic=dynamic) for at in range(len(setting.paces))]
    return simulate(jobs, policy_from(settings), cloud).metrics.mean_s / SPEEDUP


def _job(setting: Setting, at: int, *, gpu: str, dynamic: bool) -> Job:
    rows, (floor_ms, sample_ms) = [], setting.paces[at]
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
        batches=batch_steps(setting.initial, setting.initial, setting.largest),
        initial=setting.initial,
        batch_now=setting.initial,
        noise=setting.noise if dynamic else None,
        unit=STEPS * setting.initial * SPEEDUP,
    )
    return Job(
        id=f"job{at}",
        submit_s=0.0,
        work=1.0,
        speed=speed,
        gpus=MOST,
        min_gpus=LEAST,
        max_gpus=MOST,
        restart_s=0.3 * SPEEDUP,
    )


def measured_s(setting: Setting, policy: str, *, dynamic: bool) -> tuple[float, dict[str, Outcome]]:
    """The same of real processes, from when the first of them took its first step."""
    jobs = [
        PacedJob(name=f"job{at}", least=LEAST, most=MOST, flags=_flags(setting, at, dynamic))
        for at in range(len(setting.paces))
    ]
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
    assert all(job.steps[-1].distance <= setting.until for job in found.values())
    began_s = min(job.steps[0].at_s for job in found.values())
    return fmean(job.steps[-1].at_s - began_s for job in found.values()), found


def _flags(setting: Setting, at: int, dynamic: bool) -> dict[str, float | str]:  # noqa: FBT001 - of one call
    floor_ms, sample_ms = setting.paces[at]
    return {
        "samples": 4 * STEPS * setting.initial,
        "features": setting.features,
        "batch": setting.initial,
        "largest": setting.largest if dynamic else 0,
        "rate": setting.rate,
        "decay": 1.0,
        "until": setting.until,
        "floor-ms": floor_ms,
        "sample-ms": sample_ms,
        "sync-ms": SYNC_MS,
    }


def compare(name: str, policy: str, *, foretell: bool) -> None:
    """Both ratios."""
    setting, title = SETTINGS[name], f"{name}, {policy}"
    ahead = {dynamic: foretold_s(setting, policy, dynamic=dynamic) for dynamic in (False, True)}
    ratio = ahead[False] / ahead[True]
    print(f"{title}: foretold {ahead[False]:.1f} s fixed, {ahead[True]:.1f} s dynamic: {ratio:.2f} times sooner")
    if foretell:
        return
    began = time.monotonic()
    fixed_s, _ = measured_s(setting, policy, dynamic=False)
    dynamic_s, found = measured_s(setting, policy, dynamic=True)
    batches = {each: [shape.batch for shape in job.orders if shape.batch is not None] for each, job in found.items()}
    print(
        f"{title}: measured {fixed_s:.1f} s fixed, {dynamic_s:.1f} s dynamic: {fixed_s / dynamic_s:.2f} times sooner, "
        f"{fixed_s / dynamic_s / ratio - 1.0:+.0%} beside what was foretold; the plan's batches {batches}; "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Each setting with each policy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", nargs="+", default=["first"], choices=SETTINGS)
    parser.add_argument("--policies", nargs="+", default=["elastic-batch", "price"])
    parser.add_argument("--foretell", action="store_true", help="the simulator alone")
    asked = parser.parse_args(arguments)
    for name in asked.settings:
        for policy in asked.policies:
            compare(name, policy, foretell=asked.foretell)


if __name__ == "__main__":
    main()
