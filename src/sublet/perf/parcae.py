"""Parcae's migration costs and speeds on p3.2xlarge: what its simulator charges for every kind of change.

The constants are read off its artifact; the tables are among the profiles. Its quirks are kept where they decide what
was published: a change within stages is charged even if only spares were lost, and of a change of depth only the last
new stage's transfer is. One is not: the last stage with a single replica left counts as alive here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sublet.domain.job import Job, Pauses
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import UnknownName
from sublet.perf.gridded import Gridded
from sublet.perf.grids import SpotJob, spot_job
from sublet.perf.migration import BYTES_PER_PARAM, Layers, Rates
from sublet.perf.tables import read_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCosts:
    """The constants of Parcae's simulator for one model, in seconds. `groups_s` is (wide, deep, grow) -> seconds."""

    model: str
    layers: Layers
    transfer_at: tuple[tuple[float, float], ...]  # bytes, seconds
    build_s: Mapping[int, float]  # of a stage, by depth
    groups_s: Callable[[int, int, bool], float]
    process_s: float
    join_s: float  # rendezvous, and what else a model needs when instances join
    storage_s: float = 14.0  # saving and loading a checkpoint

    def transfer_s(self, params: float) -> float:
        """Between the sizes measured on a straight line, beyond the largest in proportion."""
        volume = params * BYTES_PER_PARAM
        largest, seconds = self.transfer_at[-1]
        if volume > largest:
            return volume / largest * seconds
        return _between(volume, self.transfer_at)

    def regroup_s(self, wide: int, deep: int) -> float:
        """New communicators for fewer members. Charged even if only spares were lost, as in the original."""
        return self.groups_s(wide, deep, False) + self.process_s  # noqa: FBT003 - none joins

    def restart_s(self, wide: int, deep: int, *, grow: bool) -> float:
        """Rendezvous if anyone joins, then communicators, processes and the stages themselves."""
        return (self.join_s if grow else 0.0) + self.groups_s(wide, deep, grow) + self.process_s + self.build_s[deep]

    def ready_s(self, wide: int, deep: int, *, grow: bool) -> float:  # noqa: ARG002 - every pipeline builds at once
        """Rendezvous, processes and stages in host memory; communicators take the GPUs away from training."""
        return (self.join_s if grow else 0.0) + self.process_s + self.build_s[deep]

    def checkpoint_s(self, wide: int, deep: int, *, grow: bool, saved: bool) -> float:
        """A restart, storage, and every stage sent one after the other."""
        sent_s = sum(self.transfer_s(params) for params in self.layers.stages(deep))
        return self.restart_s(wide, deep, grow=grow) + (self.storage_s if saved else 0.0) + sent_s


GROUP_INIT_S = 0.035
PROCESS_S = {"gpt": 0.240, "": 0.030}
RENDEZVOUS_S = 6.600
EXTRA_S = {"gpt-6.7b": 2.0, "resnet152": 3.360374}
GPT_GROUP_S = {"gpt-1.5b": (0.5, 0.0393), "gpt-6.7b": (0.5, 0.1156)}  # per communicator: joining, leaving
RING_S = ((12, 2.0), (6, 1.5), (0, 1.0))  # bert and resnet152, from so many pipelines on; half as much again to join
BLOCKS = {"bert": 24, "gpt-1.5b": 48, "gpt-6.7b": 36, "resnet152": 50}  # repeated layers between the first and the last
GPT_15B_BUILD_S, GPT_15B_EMBEDDING_BYTES = 0.430, 50257 * 1024 * 4
LARGE_S = {  # the profile has six digits; published sums repeat to the last one only with all of them
    134217728.0: 0.153550589,
    268435456.0: 0.305811282,
    536870912.0: 0.601380752,
    1073741824.0: 1.1982559,
}
PARCAE_MODELS = tuple(BLOCKS)
PARCAE_BATCHES = {"bert": 1024, "gpt-1.5b": 128, "gpt-6.7b": 64, "resnet152": 2048}  # samples a step, in any grid


@cache
def parcae_costs(model: str) -> PublishedCosts:
    """The published constants for one of PARCAE_MODELS."""
    if model not in BLOCKS:
        raise UnknownName("model with published migration costs", model, BLOCKS)
    points = read_profile("parcae-reconfiguration").rows(cost="p2p_transfer_10Gbps")
    seconds = dict(zip(points.floats("x").tolist(), points.floats("seconds").tolist(), strict=True))
    transfer_at = tuple((seconds | LARGE_S).items())
    build = read_profile("parcae-build-cost").rows(model=model)
    build_s = dict(zip(build.floats("pp").astype(int).tolist(), build.floats("build_s").tolist(), strict=True))
    if model == "gpt-1.5b":  # not measured: the embedding is sent, then a block after the other is built
        sent_s = _between(GPT_15B_EMBEDDING_BYTES, transfer_at)
        build_s = {deep: sent_s + GPT_15B_BUILD_S * math.ceil(48 / deep) for deep in range(6, 49)}
    return PublishedCosts(
        model=model,
        layers=_parcae_layers(model),
        transfer_at=transfer_at,
        build_s=build_s,
        groups_s=_gpt_groups(*GPT_GROUP_S[model]) if model in GPT_GROUP_S else _ring_groups,
        process_s=PROCESS_S["gpt" if model.startswith("gpt") else ""],
        join_s=RENDEZVOUS_S + EXTRA_S.get(model, 0.0),
    )


@cache
def parcae_rates(model: str) -> Rates:
    """Samples per second by configuration, as profiled on p3.2xlarge; outliers included."""
    table = read_profile("parcae-dp-pp").rows(model=model)
    if not len(table):
        known = sorted(set(read_profile("parcae-dp-pp").texts("model")))
        raise UnknownName("model profiled by Parcae", model, known)
    wide, deep = (table.floats(name).astype(int).tolist() for name in ("dp", "pp"))
    return dict(zip(zip(wide, deep, strict=True), table.floats("samples_per_s").tolist(), strict=True))


def _between(volume: float, at: Sequence[tuple[float, float]]) -> float:
    return float(np.interp(volume, [x for x, _ in at], [y for _, y in at]))


def _parcae_layers(model: str) -> Layers:
    table = read_profile("parcae-layer-times").rows(model=model)
    kind, params = table.floats("layer_kind").astype(int).tolist(), table.floats("params").tolist()
    by_kind = dict(zip(kind, params, strict=True))
    if model == "resnet152":  # 51 equal blocks and the classifier
        return Layers((by_kind[0],) * (BLOCKS[model] + 1) + (by_kind[1],))
    return Layers((by_kind[0], *(by_kind[1],) * BLOCKS[model], by_kind[2]))


def _gpt_groups(join_s: float, leave_s: float) -> Callable[[int, int, bool], float]:
    def groups_s(wide: int, deep: int, grow: bool) -> float:  # noqa: FBT001 - of the two tables
        return GROUP_INIT_S + (wide + deep + 1 + wide * deep) * (join_s if grow else leave_s)

    return groups_s


def _ring_groups(wide: int, deep: int, grow: bool) -> float:  # noqa: ARG001, FBT001 - as above
    return GROUP_INIT_S + next(seconds for least, seconds in RING_S if wide >= least) * (1.5 if grow else 1.0)


SPOT_USD_PER_H = 0.918  # p3.2xlarge in the public price traces, flat
ON_DEMAND_USD_PER_H = 3.06  # the same on demand, in Bamboo's simulator
KEPT_EVERY_S = 1e-3  # the state is kept aside all the time, as in Parcae: nothing is redone though all are lost


def measured_job(model: str, *, step_s: float = 60.0) -> SpotJob:
    """A model under Parcae's tables and costs."""
    return spot_job(model, parcae_rates(model), parcae_costs(model), step_s=step_s)


@cache
def shared_job(model: str) -> SpotJob:
    """The same one whenever it is asked for: jobs of one model share all that was worked out for it."""
    return measured_job(model)


def gridded_job(profile: SpotJob, pauses: Pauses | None, **facts: Any) -> Job:
    """A job of the kernel that trains in the grids of a profile; `facts` are fields of the job."""
    usual = {"gpus": profile.least, "min_gpus": profile.least, "checkpoint_every_s": KEPT_EVERY_S, "survives": True}
    return Job(**{**usual, "speed": Gridded(profile), "pauses": pauses, **facts})


def least_usd_per_sample(job: SpotJob, usd_per_h: float = SPOT_USD_PER_H) -> float:
    """In the thriftiest grid, without any change."""
    return usd_per_h / SECONDS_PER_H / float((job.rate_C[1:] / job.use_C[1:]).max())
