"""The speed of a job as the adviser knows it: a closed form for each kind of GPU on which its model was measured.

Three sources: Pollux' and Sia's tables (six models, one to sixteen nodes); this project's own steps on an H200 (eleven
models, one GPU); a file of the user's, or of `sublet profile`. What is exchanged follows from the number of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from sublet.data.csvfile import Bounds, read_columns
from sublet.domain.quantity import at_least, named, positive, whole
from sublet.errors import InvalidValue, MissingData, UnknownName
from sublet.market.catalogue import load_gpus
from sublet.perf.fit import fit_pollux, rows_from_steps
from sublet.perf.live.fit import fitted_step
from sublet.perf.live.stored import StoredProfile, speed_from
from sublet.perf.measured import MODELS, Source, goodput_model
from sublet.perf.memory import memory_from_peaks
from sublet.perf.restart import h200_restart, published_restart_s
from sublet.perf.tables import read_profile
from sublet.solve.arrays import Floats

FITTED = 0.08  # standard deviation of the logarithm: closed forms against the step times they were fitted to
ALIKE = {  # the same chip with more memory, or behind another host: steps take as long
    "A100-80GB": "A100",
    "A100-80GB-PCIe": "A100",
    "V100": "V100-32GB",
    "T4g": "T4",
    "GH200": "H200",
}
BATCH_GROWTH = 8  # the batch that is assumed, in initial ones
LEAST_BATCH = 64
CHECKPOINT_BYTES_PER_PARAM = 12.0  # weights and two moments in fp32
GRADIENT_BYTES_PER_PARAM = 4.0  # autocast leaves gradients in fp32
OVERLAP = 2.0  # gamma of a step that is not fitted: the exchange is hidden in part (Pollux' fits have 1 to 7)
LATENCY_S = 30e-6  # of one message of a ring between nodes
PARAMS = {  # usual sizes of these architectures, for checkpoints and slow networks only; Pollux states none
    "bert": 110e6,
    "cifar10": 11.2e6,
    "deepspeech2": 38e6,
    "imagenet": 25.6e6,
    "ncf": 31.8e6,
    "yolov3": 61.9e6,
}
MEASURED_ON_GBIT = {
    "T4": 50.0,
    "RTX-2080Ti": 50.0,
    "V100-32GB": 100.0,
    "A100": 1600.0,
}  # g4dn.12xlarge, own, ND40rs, DGX


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Step time on one kind: (compute ** gamma + exchange ** gamma) ** (1 / gamma), as Pollux has it.

    Without measurements between GPUs (`fitted` is False) the exchange is a ring over the links of the machine.
    """

    alpha_s: float
    beta_s: float  # per sample
    max_local: int  # what memory holds
    mem_gib: float
    node_alpha_s: float = 0.0  # exchange within a node: alpha + beta (gpus - 2)
    node_beta_s: float = 0.0
    net_alpha_s: float = 0.0  # the same between nodes
    net_beta_s: float = 0.0
    gamma: float = OVERLAP
    gbit_per_s: float = 0.0  # between the nodes where it was measured
    gradient_bytes: float = 0.0
    fitted: bool = True
    most_gpus: int = 1  # the widest measurement

    def __post_init__(self) -> None:
        positive("alpha_s + beta_s", self.alpha_s + self.beta_s)
        whole("max_local", self.max_local, 1)
        positive("mem_gib", self.mem_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model: curves by kind, or rates as the user measured them, and what its checkpoints weigh."""

    name: str
    batch: int
    state_bytes: float
    restart_s: float
    source: str
    curves: Mapping[str, Curve] = field(default_factory=dict, hash=False)
    rates: Mapping[str, Mapping[int, float]] = field(default_factory=dict, hash=False)  # kind -> GPUs -> samples / s
    between: bool = True  # whether rates may be interpolated between measured numbers of GPUs
    spread: float = FITTED  # standard deviation of the logarithm where it was measured

    def __post_init__(self) -> None:
        named("profile", self.name)
        whole("batch", self.batch, 1)
        positive("state_bytes", self.state_bytes)
        at_least("restart_s", self.restart_s, 0.0)
        for kind, by in self.rates.items():
            for gpus, rate in by.items():
                whole(f"GPUs in rates[{kind}]", gpus, 1)
                positive(f"rates[{kind}][{gpus}]", rate)

    @property
    def gradient_bytes(self) -> float:
        """Bytes exchanged in a step; where only checkpoints are known, their part of it."""
        share = GRADIENT_BYTES_PER_PARAM / CHECKPOINT_BYTES_PER_PARAM
        return max((curve.gradient_bytes for curve in self.curves.values()), default=0.0) or share * self.state_bytes


def known_models() -> list[str]:
    """Models with a profile of their own."""
    return sorted({*MODELS, *read_profile("h200-step-time").texts("model")})


@cache
def known_profile(model: str, batch: int | None = None) -> Profile:
    """The profile of one of `known_models`; on T4 alone where Sia's tables are not installed."""
    if model in MODELS:
        return _pollux_profile(model, batch)
    if model not in known_models():
        raise UnknownName("model with a profile", model, known_models(), hint="give your own figures with --profile")
    return _h200_profile(model, batch)


def profile_from_csv(path: str | Path, *, name: str = "", batch: int = 256, state_gib: float = 1.0) -> Profile:
    """Samples per second by `gpu` and `gpus`, as measured; what lies between two numbers of GPUs is interpolated."""
    table = read_columns(path, ("gpu", "gpus", "samples_per_s"), forgiving=True)
    table.check_names("gpu")
    rates: dict[str, dict[int, float]] = {}
    rows = zip(
        table.columns["gpu"],
        table.ints("gpus", Bounds(least=1)).tolist(),
        table.floats("samples_per_s", Bounds(above=0)).tolist(),
        strict=True,
    )
    for row, (gpu, gpus, rate) in enumerate(rows):
        if gpus in rates.setdefault(gpu, {}):
            raise table.refusal(row, f"{gpus} x {gpu} stands twice")
        rates[gpu][gpus] = rate
    return Profile(
        name=name or Path(path).name.removesuffix(".gz").removesuffix(".csv") or "profile",
        batch=batch,
        state_bytes=state_gib * 1024.0**3,
        restart_s=60.0,
        source=str(path),
        rates=rates,
        spread=0.03,
    )


def curve_step_s(curve: Curve, confs: Floats) -> Floats:
    """Seconds of a step at rows of (nodes, GPUs, local batch), where it was measured."""
    nodes, gpus, local = confs.T
    compute = curve.alpha_s + curve.beta_s * local
    wide = np.maximum(gpus - 2.0, 0.0)
    exchange = np.where(
        nodes > 1, curve.net_alpha_s + curve.net_beta_s * wide, curve.node_alpha_s + curve.node_beta_s * wide
    )
    return overlapped_s(compute, np.where(gpus > 1, exchange, 0.0), curve.gamma)


def overlapped_s(compute: Floats, exchange: Floats, gamma: float) -> Floats:
    """Both, partly at the same time; the larger stands outside the power, so that nothing overflows."""
    high, low = np.maximum(compute, exchange), np.minimum(compute, exchange)
    return np.asarray(high * (1.0 + (low / high) ** gamma) ** (1.0 / gamma))


def _pollux_profile(model: str, batch: int | None) -> Profile:
    source: Source = "sia"
    try:
        kinds = sorted(goodput_model(model, source=source).step)
    except MissingData:
        source, kinds = "pollux", ["T4"]
    worth = goodput_model(model, source=source)
    return Profile(
        name=model,
        batch=batch or BATCH_GROWTH * worth.limits[kinds[0]].initial,
        state_bytes=PARAMS[model] * CHECKPOINT_BYTES_PER_PARAM,
        restart_s=published_restart_s(model),
        source=f"step times of {source.capitalize()}",
        curves=MappingProxyType({kind: fitted_curve(model, kind, source) for kind in kinds}),
    )


@cache
def fitted_curve(model: str, kind: str, source: Source) -> Curve:
    """Curve through the step times of one model on one kind."""
    table = read_profile(f"{source}-step-time")
    rows = table.rows(model=model) if source == "pollux" else table.rows(model=model, gpu=kind)
    step = fit_pollux(rows_from_steps(rows, kind)).model
    return Curve(
        alpha_s=step.alpha_c_s,
        beta_s=step.beta_c_s,
        max_local=goodput_model(model, source=source).limits[kind].max_local,
        mem_gib={"T4": 16.0, "RTX-2080Ti": 11.0, "V100-32GB": 32.0, "A100": 40.0}[kind],
        node_alpha_s=step.alpha_r_s,
        node_beta_s=step.beta_r_s,
        net_alpha_s=step.alpha_n_s,
        net_beta_s=step.beta_n_s,
        gamma=step.gamma,
        gbit_per_s=MEASURED_ON_GBIT[kind],
        gradient_bytes=GRADIENT_BYTES_PER_PARAM * PARAMS[model],
        most_gpus=int(rows.columns["gpus"].max()),
    )


def _h200_profile(model: str, batch: int | None) -> Profile:
    rows = read_profile("h200-step-time").rows(model=model)
    local, step_s = rows.floats("per_gpu_batch"), rows.floats("step_time_s")
    params = float(rows.floats("params_m")[0]) * 1e6
    beta_s, alpha_s = np.polyfit(local, step_s, 1) if len(rows) > 1 else (float(step_s[0] / local[0]), 0.0)
    most = int(local.max())
    if len(rows) > 1:
        peaks = rows.floats("peak_mem_gib").tolist()
        memory = memory_from_peaks(params, [int(each) for each in local], peaks)
        most = max(most, memory.max_local_batch(141.0, most=4 * most))
    restart = h200_restart(model)
    return Profile(
        name=model,
        batch=batch or max(BATCH_GROWTH * int(local.max()), LEAST_BATCH),
        state_bytes=params * CHECKPOINT_BYTES_PER_PARAM,
        restart_s=restart.load_s,
        source="own steps on one H200",
        curves=MappingProxyType(
            {
                "H200": Curve(
                    alpha_s=max(float(alpha_s), 0.0),
                    beta_s=max(float(beta_s), 1e-9),
                    max_local=most,
                    mem_gib=141.0,
                    gradient_bytes=GRADIENT_BYTES_PER_PARAM * params,
                    fitted=False,
                )
            }
        ),
    )


STATE_BYTES, RESTART_S = 1024.0**3, 60.0  # not measured: as of a file of the user's
NO_FACTS_GIB = 16.0  # of a kind that is not recorded


def profile_from_stored(profiles: Sequence[StoredProfile], batch: int | None = None, as_gpu: str = "") -> Profile:
    """Profile of one job, at its own batch unless another is given.

    More samples at a time than were tried are not tried.

    Its name is not that of a model: one that is called like a model of ours need not be that. Runs on CPUs say nothing
    of GPUs: `as_gpu` names the kind that it is to be taken for.
    """
    real = [each for each in profiles if not each.is_of_cpus]
    if as_gpu and real:
        allowed = f"left out: it was measured on {' and '.join(each.gpu for each in real)}"
        raise InvalidValue("--as-gpu", as_gpu, allowed)
    if not real and not as_gpu:
        allowed = "one that was measured on a GPU: this one ran on CPUs; --as-gpu KIND takes its figures for that kind"
        raise InvalidValue("--profile", profiles[0].name, allowed)
    profiles = real or [_as_if(max(profiles, key=lambda each: each.date), as_gpu)]
    speed = speed_from(profiles)
    measured = f"measured by 'sublet profile' on {' and '.join(speed.kinds)}"
    return Profile(
        name=f"{profiles[0].name} (measured)",
        batch=batch or speed.initial,
        state_bytes=STATE_BYTES,
        restart_s=RESTART_S,
        source=measured if real else f"measured by 'sublet profile' on CPUs, and taken for {as_gpu}s as asked",
        curves=MappingProxyType({each.gpu: _curve(each) for each in profiles}),
    )


def _as_if(profile: StoredProfile, gpu: str) -> StoredProfile:
    return replace(profile, gpu=gpu, rows=tuple(replace(row, gpu=gpu) for row in profile.rows))


def _curve(profile: StoredProfile) -> Curve:
    fit = fitted_step(profile.rows)
    gpu = load_gpus().get(profile.gpu)
    return Curve(
        alpha_s=fit.model.alpha_c_s + fit.other_s,
        beta_s=fit.model.beta_c_s,
        max_local=max(row.samples for row in profile.rows),
        mem_gib=NO_FACTS_GIB if gpu is None else gpu.mem_gib,
        node_alpha_s=fit.model.alpha_r_s,
        node_beta_s=fit.model.beta_r_s,
        net_alpha_s=fit.model.alpha_n_s,
        net_beta_s=fit.model.beta_n_s,
        gamma=fit.model.gamma,
        most_gpus=max(row.gpus for row in profile.rows),
    )
