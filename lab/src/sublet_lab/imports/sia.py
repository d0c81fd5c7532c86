"""The artifact of Sia: workloads, and step times of seven models on four kinds of GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sublet_lab.imports.artifact import Artifact, Made
from sublet_lab.imports.jobs import workload_csv
from sublet_lab.imports.tables import MODELS, efficiency_rows, models_csv, rounded, step_rows

CLUSTERS = {  # the file's ending -> GPU, node type, GPUs per node
    "-aws": ("T4", "g4dn.12xlarge", 4),
    "-azure": ("V100-32GB", "ND40rs_v2", 8),
    "-dgx-ext": ("A100", "DGX-A100", 8),
    "-rtx": ("RTX-2080Ti", "on-prem 8-GPU", 8),
}
PIPELINED = "gpt_pmp"  # measured on two kinds; its times are of micro-batches, so that samples per second mean nothing
WORKLOADS = {  # the folder of each trace, and how many of its workloads are read
    "newtrace": ("newtrace", 8),
    "philly": ("philly", 6),
    "saturn": ("saturn", 10),
    **{f"rate_{rate}": (f"scale/rate_{rate}", 10) for rate in (10, 20, 30, 40, 50)},
}


def _sia(clone: Path) -> Iterator[Made]:
    home = clone / "sia-simulator"
    for trace, (folder, count) in WORKLOADS.items():
        for number in range(1, count + 1):
            path = home / "workloads" / folder / f"workload-{number}.csv"
            yield f"jobs/sia_{trace}/workload-{number}.csv", workload_csv(path)
    models = (*MODELS, PIPELINED)
    steps = ["model,gpu,node_type,gpus_per_node,table,nodes,gpus,placement,local_bsz,step_time_s,sync_time_s"]
    steps[0] += ",samples_per_s"
    noise = ["model,batch_size,epoch,progress,iteration,metric,grad_sqr,grad_var,noise_scale_samples"]
    local: dict[str, tuple[int, int]] = {}
    for model in models:
        folder_of = home / "traces" / model
        batches = []
        for suffix, (gpu, node_type, gpus_per_node) in CLUSTERS.items():
            if model == PIPELINED and gpu not in {"A100", "RTX-2080Ti"}:
                continue
            for table, placement, nodes, gpus, batch, step_s, sync_s in step_rows(folder_of, suffix):
                rate = "" if model == PIPELINED else rounded(gpus * int(batch) / step_s)
                where = f"{model},{gpu},{node_type},{gpus_per_node},{table},{nodes},{gpus},{placement}"
                steps.append(f"{where},{batch},{rounded(step_s)},{rounded(sync_s)},{rate}")
                batches.append(int(batch))
        local[model] = (min(batches), max(batches))
        noise += [_with_noise(row) for row in _efficiency(folder_of, model)]
    yield "profiles/sia_step_time.csv.gz", "\n".join(steps) + "\n"
    yield "profiles/sia_stat_efficiency.csv.gz", "\n".join(noise) + "\n"
    yield "profiles/sia_models.csv", models_csv(home / "traces", models, local)


def _efficiency(folder: Path, model: str) -> Iterator[tuple[list[str], int, float, float]]:
    """Each row, rounded, beside the initial batch and the exact noise."""
    full = list(efficiency_rows(folder, model, repr))
    first = int(full[0][1])
    for shown, row in zip(efficiency_rows(folder, model, rounded, 8), full, strict=True):
        yield shown, first, float(row[-2]), float(row[-1])


def _with_noise(row: tuple[list[str], int, float, float]) -> str:
    """The noise scale in samples: the initial batch times variance by square."""
    shown, first, square, variance = row
    return ",".join([*shown, rounded(first * variance / square) if square else ""])


SIA = Artifact(
    name="sia",
    repository="siasosp23/artifacts",
    commit="aaf7a0de7b6cb5eab06ea020467ede5d2fd18e70",
    licence="none stated",
    gives="three kinds of GPU in studies cluster, peers and boa; predictions of study deepvm; workloads sia-*",
    convert=_sia,
)
