"""Which measured tables exist: file, columns, where each comes from and under which licence.

A schema is written as `name:kind` words. Kinds: `text`; `count` (whole, at least 1); `index` (whole, at least 0);
`positive`, `nonneg` and `number` (finite). A trailing `?` lets the field be empty (`""`, or NaN in a numeric column).
"""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.quantity import named
from sublet.errors import InvalidValue, UnknownName

KINDS = ("text", "count", "index", "positive", "nonneg", "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name, what may stand in it, and whether it may be empty."""

    name: str
    kind: str
    optional: bool = False

    def __post_init__(self) -> None:
        named("column name", self.name)
        if self.kind not in KINDS:
            raise InvalidValue("column kind", self.kind, "one of " + ", ".join(KINDS))
        if self.optional and self.kind in {"count", "index"}:
            raise InvalidValue("column kind", f"{self.kind}?", "a kind that can be NaN: whole numbers cannot be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One table: what it is, whence it is, and whether this package may carry it."""

    name: str
    file: str
    description: str
    source: str
    licence: str
    columns: tuple[Column, ...]
    bundled: bool = True  # False: no licence is stated, so it is read from SUBLET_DATA

    def __post_init__(self) -> None:
        named("profile name", self.name)
        if not self.columns:
            raise InvalidValue("columns", self.columns, "at least one column")


def profile(name: str) -> Profile:
    """The table registered as `name`; a typo gets a suggestion."""
    if name not in _BY_NAME:
        raise UnknownName("profile", name, _BY_NAME)
    return _BY_NAME[name]


def _columns(schema: str) -> tuple[Column, ...]:
    words = [word.partition(":") for word in schema.split()]
    return tuple(Column(name=name, kind=kind.rstrip("?"), optional=kind.endswith("?")) for name, _, kind in words)


_NONE_STATED = "none stated"
_POLLUX = "petuum/adaptdl, branch osdi21-artifact, c793c708"
_SIA = "siasosp23/artifacts aaf7a0de"
_PARCAE = "JF-D/Parcae efedee7e"
_OURS = "measured for this project on one NVIDIA H200, PyTorch 2.11, 2026-11"

_STEPS = "local_bsz:count step_time_s:positive sync_time_s:nonneg"
_NOISE = (
    "model:text batch_size:count epoch:index progress:positive iteration:count metric:number "
    "grad_sqr:nonneg grad_var:positive"
)
_GAVEL = (
    "model:text gpu:text gpus:count consolidated:index batch_size:positive? steps_per_s:positive step_time_s:positive"
)

PROFILES: tuple[Profile, ...] = (
    Profile(
        name="pollux-step-time",
        file="pollux_t4_step_time.csv.gz",
        description="step and sync time of six models on T4s, by placement and local batch",
        source=_POLLUX,
        licence="Apache-2.0",
        columns=_columns(f"model:text table:text placement:text? nodes:count gpus:count {_STEPS}"),
    ),
    Profile(
        name="pollux-stat-efficiency",
        file="pollux_stat_efficiency.csv.gz",
        description="gradient statistics per epoch of full training runs at several batch sizes",
        source=_POLLUX,
        licence="Apache-2.0",
        columns=_columns(_NOISE),
    ),
    Profile(
        name="sia-step-time",
        file="sia_step_time.csv.gz",
        description="the same six models and a pipelined GPT on T4, RTX 2080 Ti, V100 and A100",
        source=_SIA,
        licence=_NONE_STATED,
        bundled=False,
        columns=_columns(
            "model:text gpu:text node_type:text gpus_per_node:count table:text nodes:count gpus:count "
            f"placement:text? {_STEPS} samples_per_s:positive?"
        ),
    ),
    Profile(
        name="sia-stat-efficiency",
        file="sia_stat_efficiency.csv.gz",
        description="gradient statistics per epoch, six digits, with the noise scale",
        source=_SIA,
        licence=_NONE_STATED,
        bundled=False,
        columns=_columns(f"{_NOISE} noise_scale_samples:nonneg?"),
    ),
    Profile(
        name="sia-models",
        file="sia_models.csv",
        description="batch sizes and epochs of the models above",
        source=_SIA,
        licence=_NONE_STATED,
        bundled=False,
        columns=_columns(
            "model:text task:text init_batch_size:count max_batch_size:count epochs:count "
            "min_local_bsz:count max_local_bsz:count"
        ),
    ),
    Profile(
        name="gavel-simulation",
        file="gavel_simulation_throughputs.csv",
        description="steps per second on K80, P100 and V100, 1 to 8 GPUs, in one node and spread",
        source="stanford-futuredata/gavel c4fa4009",
        licence="MIT",
        columns=_columns(_GAVEL),
    ),
    Profile(
        name="gavel-physical",
        file="gavel_physical_cluster_throughputs.csv",
        description="the same on Gavel's own cluster",
        source="stanford-futuredata/gavel c4fa4009",
        licence="MIT",
        columns=_columns(_GAVEL),
    ),
    Profile(
        name="shockwave-tacc",
        file="shockwave_tacc_throughputs.csv",
        description="the same, measured again for Shockwave at TACC",
        source="uw-mad-dash/shockwave 8a44f4a2",
        licence="MIT",
        columns=_columns(_GAVEL),
    ),
    Profile(
        name="elasticflow",
        file="elasticflow_throughputs.csv",
        description="steps per second at a fixed global batch, A100 and T4",
        source="pkusys/ElasticFlow 04a0109a",
        licence="Apache-2.0",
        columns=_columns(
            "model:text gpu:text gpus:count global_batch_size:count steps_per_s:positive step_time_s:positive "
            "samples_per_s:positive"
        ),
    ),
    Profile(
        name="parcae-dp-pp",
        file="parcae_dp_pp_throughput.csv",
        description="samples per second by data-parallel workers and pipeline depth on V100s",
        source=_PARCAE,
        licence="MIT",
        columns=_columns(
            "model:text gpu:text instance_type:text global_batch_size:count micro_batch_size:count dp:count pp:count "
            "instances:count step_time_s:positive samples_per_s:positive"
        ),
    ),
    Profile(
        name="parcae-layer-times",
        file="parcae_layer_times.csv",
        description="forward, backward and optimizer time, activations and parameters per layer",
        source=_PARCAE,
        licence="MIT",
        columns=_columns(
            "model:text micro_batch_size:count seq_length:positive? layer_kind:index forward_s:positive "
            "backward_s:positive optimizer_s:positive activation_mib:positive params:positive"
        ),
    ),
    Profile(
        name="parcae-build-cost",
        file="parcae_model_build_cost.csv",
        description="seconds to build a stage, by pipeline depth",
        source=_PARCAE,
        licence="MIT",
        columns=_columns("model:text global_batch_size:count micro_batch_size:count pp:count build_s:positive"),
    ),
    Profile(
        name="parcae-reconfiguration",
        file="parcae_reconfiguration_cost.csv",
        description="seconds to transfer bytes, and to add or remove instances",
        source=_PARCAE,
        licence="MIT",
        columns=_columns("cost:text x:count x_unit:text seconds:positive"),
    ),
    Profile(
        name="muri",
        file="muri_iteration_time.csv",
        description="step time and the time of three stages, 1 to 16 GPUs",
        source="Rivendile/Muri 4e69a78c",
        licence="Apache-2.0",
        columns=_columns(
            "model:text gpus:count per_gpu_batch:count step_time_s:positive stage0_s:nonneg stage1_s:nonneg "
            "stage2_s:nonneg"
        ),
    ),
    Profile(
        name="chronus",
        file="chronus_iteration_time.csv",
        description="mean, spread and percentiles of the step time; the GPU kind is not stated",
        source="S-Lab-System-Group/ChronusArtifact bc7e15fe",
        licence="MIT",
        columns=_columns(
            "task:text model:text gpus:count samples:count mean_s:positive std_s:nonneg p50_s:positive p95_s:positive "
            "p99_s:positive max_s:positive"
        ),
    ),
    Profile(
        name="alibaba-worker-cov",
        file="alibaba_pai_worker_cov.csv",
        description="how much step times differ between ten workers of one job",
        source="alibaba/clusterdata, cluster-trace-gpu-v2020, 7a6c496e",
        licence="CC-BY-4.0",
        columns=_columns(
            "job:text workers:count iterations:count cov_mean:nonneg cov_p50:nonneg cov_p95:nonneg cov_max:nonneg"
        ),
    ),
    Profile(
        name="boa-speedup",
        file="boa_speedup.csv.gz",
        description="goodput by model, epoch and GPUs as BOA's simulator computes it; not a measurement",
        source="Li-Zhouzi/artifacts 3f8207f9",
        licence=_NONE_STATED,
        bundled=False,
        columns=_columns("model:text epoch:index gpus:count goodput:positive throughput:positive efficiency:positive"),
    ),
    Profile(
        name="h200-step-time",
        file="h200_step_time.csv",
        description="step time and peak memory of eleven models on one H200",
        source=_OURS,
        licence="Apache-2.0",
        columns=_columns(
            "model:text params_m:positive gpu:text precision:text seq_len:index per_gpu_batch:count "
            "step_time_s:positive samples_per_s:positive peak_mem_gib:positive"
        ),
    ),
    Profile(
        name="h200-state",
        file="h200_state.csv",
        description="seconds to build, copy, save and load the state of eleven models on one H200",
        source=_OURS,
        licence="Apache-2.0",
        columns=_columns(
            "model:text state_bytes:count build_s:positive d2h_s:positive h2d_s:positive save_shm_s:positive "
            "load_shm_s:positive"
        ),
    ),
    Profile(
        name="h200-start",
        file="h200_start.csv",
        description="seconds to import PyTorch and to initialise CUDA",
        source=_OURS,
        licence="Apache-2.0",
        columns=_columns("import_torch_s:positive cuda_init_s:positive"),
    ),
)

_BY_NAME = {entry.name: entry for entry in PROFILES}
