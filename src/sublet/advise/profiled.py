"""A measured script (`sublet profile`) as the adviser knows it: for each kind the curve through its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from sublet.advise.profiles import Curve, Profile
from sublet.errors import InvalidValue
from sublet.market.gpus import load_gpus
from sublet.perf.live.fit import fitted_step
from sublet.perf.live.stored import StoredProfile, speed_from

__all__ = ["profile_from_stored"]

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
