"""Step times of many models on several kinds of GPU, from which unmeasured ones are predicted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from types import MappingProxyType

import numpy as np

from sublet.advise.profiles import curve_step_s, fitted_curve
from sublet.advise.transfer import Measured
from sublet.errors import MissingData
from sublet.perf.measured import MODELS
from sublet.perf.tables import read_profile
from sublet.solve.arrays import Floats

# R rows of (nodes, GPUs, local batch)


@cache
def known_shelf() -> Mapping[tuple[str, str], Measured]:
    """All that was measured, by model and kind; without Sia's where these are not installed."""
    try:
        sia = sia_shelf()
    except MissingData:
        sia = {}
    return MappingProxyType({(model, shelf_name(kind)): found for (model, kind), found in sia.items()} | gavel_shelf())


def shelf_name(kind: str) -> str:
    """Name of a kind in the measurements: Sia's V100 has more memory than Gavel's, and is as fast."""
    return "V100" if kind == "V100-32GB" else kind


def sia_shelf(models: tuple[str, ...] = MODELS) -> dict[tuple[str, str], Measured]:
    """All step times of Sia; curves are fitted when they are asked. MissingData where they are not installed."""
    table = read_profile("sia-step-time")
    shelf = {}
    for model in models:
        for kind in sorted(set(table.rows(model=model).texts("gpu"))):
            rows = table.rows(model=model, gpu=kind)
            confs = np.column_stack([rows.floats(name) for name in ("nodes", "gpus", "local_bsz")])
            step_s = rows.floats("step_time_s")
            unique, group = np.unique(confs, axis=0, return_inverse=True)
            group = group.reshape(-1)
            mean_s = np.bincount(group, step_s) / np.bincount(group)
            shelf[model, kind] = Measured(unique, mean_s, partial(_sia_step_s, model, kind))
    return shelf


def _sia_step_s(model: str, kind: str, confs: Floats) -> Floats:
    return curve_step_s(fitted_curve(model, kind, "sia"), confs)


def gavel_shelf() -> dict[tuple[str, str], Measured]:
    """Gavel's steps on K80, P100 and V100. It states no nodes: GPUs that are not consolidated are taken for two."""
    table = read_profile("gavel-simulation")
    batch_R = np.nan_to_num(table.floats("batch_size"), nan=1.0)  # where it is not stated it is always the same
    nodes_R = np.where((table.floats("consolidated") == 1) | (table.floats("gpus") == 1), 1.0, 2.0)
    confs_R = np.column_stack([nodes_R, table.floats("gpus"), batch_R])
    model_R, kind_R = np.array(table.texts("model")), np.array(table.texts("gpu"))
    step_s_R = table.floats("step_time_s")
    shelf = {}
    for model, kind in sorted(set(zip(model_R.tolist(), kind_R.tolist(), strict=True))):
        own = (model_R == model) & (kind_R == kind)
        known = {tuple(conf): step for conf, step in zip(confs_R[own].tolist(), step_s_R[own].tolist(), strict=True)}
        shelf[model, kind] = Measured(
            confs_R[own],
            step_s_R[own],
            partial(_look_up, known),
        )
    return shelf


def _look_up(known: Mapping[tuple[float, ...], float], confs: Floats) -> Floats:
    return np.array([known.get(tuple(conf), np.nan) for conf in confs.tolist()])
