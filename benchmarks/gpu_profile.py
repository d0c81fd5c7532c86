"""How well a GPT that measures itself foretells its step at batches that it has not tried.

A worker, or two that share the GPU, trains at a few batches by order; what its session tells becomes rows, the rows a
fit, and the fit is asked about batches that were measured too, but kept from it. The step of two workers that share a
GPU is another one than that of two GPUs, so each width is a kind of its own here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_work import start_work
from sublet.perf.live.fit import fitted_step
from sublet.perf.live.rows import StepRow
from sublet.perf.steptime import iteration_s
from sublet.runtime.profiles.learned import Profiling
from sublet.wire.messages import Stepped
from sublet_lab.trainers import World

__all__ = ["PROFILED", "PROFILED_TINY", "Wanted", "profile"]

PATIENCE_S = 90.0  # for a start, and for a batch to be measured
REPORTS = 4  # of each batch, about one a second; the first of a group is of its first steps, and not learned from
COLUMNS = "  batch samples   step ms  piece ms   wait ms  error       seen as"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Global batches to learn from, and others to be asked about."""

    width: int
    learned: tuple[int, ...]
    kept: tuple[int, ...]


PROFILED = (Wanted(1, (4, 8, 16, 32), (6, 12, 24, 48)), Wanted(2, (8, 16, 32, 64), (24, 48)))
PROFILED_TINY = (Wanted(1, (4, 8, 16, 32), (12,)), Wanted(2, (8, 16, 32, 64), (24,)))


def profile(wanted: Wanted, *, tiny: bool) -> dict[str, Any]:
    """Rows, the fit, and how far off it is."""
    kind = f"GPU shared by {wanted.width}" if wanted.width > 1 else "GPU"
    batches = sorted((*wanted.learned, *wanted.kept), reverse=True)  # what does not fit into memory is known at once
    with tempfile.TemporaryDirectory(prefix="sublet-gpu-") as folder:
        heard = _heard(Path(folder), wanted.width, batches, tiny=tiny)
    rows = {batch: _row(reports, kind, wanted.width) for batch, reports in heard.items()}
    fit = fitted_step(tuple(rows[batch] for batch in wanted.learned))
    print(f"profile, {wanted.width} worker{'s' * (wanted.width > 1)} on the GPU")
    print(COLUMNS)
    found = []
    for batch, row in sorted(rows.items()):
        local, spread = np.array([float(row.samples)]), (wanted.width,)
        foretold_s = float(iteration_s(fit, spread, local, np.zeros(1))[0])
        found.append(
            {
                "batch": batch,
                "samples": row.samples,
                "step_ms": 1e3 * row.step_s,
                "piece_ms": 1e3 * row.piece_s,
                "wait_ms": 1e3 * row.wait_s,
                "kept_from_fit": batch in wanted.kept,
                "foretold_ms": 1e3 * foretold_s,
                "off": foretold_s / row.step_s - 1.0,
                "said_error": float(fit.error(spread, local)[0]),
            }
        )
        told = f"foretold {1e3 * foretold_s:.2f} ms" if batch in wanted.kept else "learned"
        print(
            f"{batch:7} {row.samples:7} {1e3 * row.step_s:9.2f} {1e3 * row.piece_s:9.2f} {1e3 * row.wait_s:9.2f} "
            f"{found[-1]['off']:+6.2%}  {told}",
            flush=True,
        )
    worst = {kept: max(abs(each["off"]) for each in found if each["kept_from_fit"] is kept) for kept in (False, True)}
    print(f"  off at most {worst[False]:.2%} where it learned, {worst[True]:.2%} where it did not\n", flush=True)
    model = fit._fit.model  # noqa: SLF001 - to be printed
    return {
        "width": wanted.width,
        "rows": found,
        "fit": {name: getattr(model, name) for name in ("alpha_c_s", "beta_c_s", "alpha_r_s", "beta_r_s", "gamma")}
        | {"other_s": fit.other_s},
        "worst_off_learned": worst[False],
        "worst_off_kept": worst[True],
    }


def _heard(folder: Path, width: int, batches: Sequence[int], *, tiny: bool) -> dict[int, list[Stepped]]:
    """What rank 0 tells at each batch, with the first of it."""
    env = {"TINY": int(tiny), "SAMPLES": 1_024, "EPOCHS": 1_000_000, "BATCH": min(batches), "MICRO": 0}
    env |= {"LOW": min(batches), "HIGH": max(batches)}
    world = World(start_work, folder, **{f"GPT_{name}": str(value) for name, value in env.items()})
    world.forgives = True  # two cores with other work on them are late now and then
    found: dict[int, list[Stepped]] = {}
    try:
        members = world.start(width)
        world.until(lambda: all(m.ready or m.code is not None for m in members), "start", wait_s=PATIENCE_S)
        for batch in batches:
            world.batch = batch
            world.regroup(members)

            def reports(batch: int = batch) -> list[Stepped]:
                said = [each for _, _, each in world.messages if isinstance(each, Stepped) and each.profile is not None]
                return [each for each in said if each.global_batch == batch]

            world.until(lambda r=reports: len(r()) > REPORTS, f"batch {batch}", wait_s=PATIENCE_S)
            found[batch] = reports()
    finally:
        world.end()
    return found


def _row(reports: list[Stepped], kind: str, width: int) -> StepRow:
    profiling = Profiling()
    for report in reports:
        profiling.hear(report, kind, width, 1)
    return max(profiling.rows, key=lambda row: len(profiling.forms[row.form]))  # what it mostly did
