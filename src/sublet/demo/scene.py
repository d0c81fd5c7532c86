"""The demonstration: three training jobs on a spot market that takes nodes away, for the live system and the simulator.

Half an hour into the recorded p3 market, our share of it falls from four nodes to two within six minutes and comes
back. Besides, one node of a job is noticed and one is taken without a word, each once so much of the work is done: both
come however fast the machine is. At a speed-up of 60 it takes a bit over a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sublet
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings

SPEEDUP = 60.0
MARKET, START_S, SHARE = "bamboo-p3", 1_800.0, 0.15
STRIKES = ("20%:notice:1", "35%:restore:1", "60%:kill:1")
MS_PER_SAMPLE = {"gpt": 12.0, "cnn": 1.6, "mlp": 0.8}  # what an accelerator would need; the examples sleep so long


def demo_settings(state_dir: Path, *, policy: str = "price") -> Settings:
    """A box with four nodes, a budget, and the market."""
    return Settings(
        state_dir=str(state_dir),
        policy=policy,
        burn_usd_per_h=0.95,  # four spot nodes and one on demand
        purse_usd=5.0,
        speedup=SPEEDUP,
        market=(MARKET,),
        market_start_s=START_S,
        market_share=SHARE,
        notice_s=120.0,
        strikes=STRIKES,
        most_nodes=4,
        lease_s=15.0,
    )


def demo_jobs(work: float = 1.0) -> list[JobSpec]:
    """A small GPT on text, a CNN on pictures, an MLP on points, as in examples/; `work` makes their data smaller."""
    folder = examples()
    wanted = [("gpt", 2_048, 3, 3), ("cnn", 4_096, 6, 2), ("mlp", 5_000, 20, 2)]
    return [
        _job(folder, name, samples=round(samples * work), epochs=epochs, most=most)
        for name, samples, epochs, most in wanted
    ]


def _job(folder: Path, name: str, *, samples: int, epochs: int, most: int) -> JobSpec:
    flags = {"--samples": samples, "--epochs": epochs, "--ms-per-sample": MS_PER_SAMPLE[name]}
    return JobSpec(
        name=name,
        argv=(
            sys.executable,
            str(folder / f"train_{name}.py"),
            *(str(part) for flag in flags.items() for part in flag),
        ),
        cwd=str(folder),
        min_workers=1,
        max_workers=most,
        work=float(samples * epochs),
        samples_per_s=1000.0 / MS_PER_SAMPLE[name],
    )


def examples() -> Path:
    """Folder of the scripts: beside this file in a wheel, else in the clone."""
    bundled = Path(__file__).with_name("examples")
    return bundled if bundled.exists() else Path(sublet.__file__).parents[2] / "examples"
