"""Generated workloads by name: `poisson:rate=40,n=200,seed=1,size=lognormal,mean=3600,cv=2`.

    recipe   = arrivals [":" setting ("," setting)*]
    arrivals = "poisson" | "bursty" | "daily"
    setting  = key "=" value

| key | value | default |
|---|---|---|
| n | jobs | 100 |
| rate | jobs per hour | 10 |
| seed | of the random generator | 0 |
| size | exponential, lognormal, pareto or deterministic | exponential |
| mean | mean work in seconds on one GPU | 3600 |
| cv | standard deviation / mean of the size (lognormal, pareto) | 2 (lognormal) |
| shape | exponent of the tail (pareto; not with cv) | 2.5 |
| gpus | GPUs asked for, or a mix with weights: 1x70+2x10+4x10+8x10 | 1 |
| max_gpus | the most GPUs that a job can use | what it asks for |
| burst | mean jobs per burst (bursty) | 5 |
| swing, peak | height 0..1 and hour of the daily peak (daily) | 0.8, 14 |
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from sublet.domain.job import Speed
from sublet.errors import InvalidValue, UnknownName
from sublet.sim.workloads.generate import (
    MAX_JOBS,
    Arrivals,
    Bursty,
    Daily,
    Deterministic,
    Exponential,
    GpuMix,
    Lognormal,
    Pareto,
    Poisson,
    Sizes,
    generate,
)
from sublet.sim.workloads.jobrows import MAX_GPUS
from sublet.sim.workloads.workload import Workload

ARRIVAL_NAMES = ("bursty", "daily", "poisson")
SIZE_NAMES = ("deterministic", "exponential", "lognormal", "pareto")
EXAMPLE = "poisson:rate=40,n=200,seed=1,size=lognormal,mean=3600,cv=2"
MAX_SEED = 2**63  # any more is a slip of the hand

_COMMON_KEYS = ("gpus", "max_gpus", "mean", "n", "rate", "seed", "size")
_ARRIVAL_KEYS = {"poisson": (), "bursty": ("burst",), "daily": ("peak", "swing")}
_SIZE_KEYS = {"deterministic": (), "exponential": (), "lognormal": ("cv",), "pareto": ("cv", "shape")}


def is_recipe(name: str) -> bool:
    """Whether the name starts like a recipe; its settings may still be wrong."""
    return name.partition(":")[0] in ARRIVAL_NAMES


def workload_from_recipe(recipe: str, *, speed: Speed | None = None) -> Workload:
    """Draw what the recipe says."""
    law, _, settings_text = recipe.partition(":")
    if law not in ARRIVAL_NAMES:
        raise UnknownName("arrival law", law, ARRIVAL_NAMES, hint=f"for example {EXAMPLE}")
    settings = _settings(settings_text)
    size = settings.get("size", "exponential")
    if size not in SIZE_NAMES:
        raise UnknownName("size law", size, SIZE_NAMES)
    _refuse_others(settings, (*_COMMON_KEYS, *_ARRIVAL_KEYS[law], *_SIZE_KEYS[size]), f"{law} with size={size}")
    return generate(
        np.random.default_rng(_whole(settings, "seed", 0, 0, MAX_SEED)),
        n_jobs=_whole(settings, "n", 100, 1, MAX_JOBS),
        rate_per_h=_number(settings, "rate", 10.0),
        arrivals=_arrivals(law, settings),
        sizes=_sizes(size, settings),
        mean_work_s=_number(settings, "mean", 3600.0),
        gpus=_gpu_mix(settings.get("gpus", "1")),
        max_gpus=_whole(settings, "max_gpus", 0, 1, MAX_GPUS),
        speed=speed,
        name=recipe,
    )


def _settings(text: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value):
            raise InvalidValue("setting", part, f"key=value, as in {EXAMPLE}")
        if key in settings:
            raise InvalidValue("setting", part, f"given once; {key} is there twice")
        settings[key] = value
    return settings


def _refuse_others(settings: Iterable[str], known: tuple[str, ...], where: str) -> None:
    for key in settings:
        if key not in known:
            raise UnknownName(f"setting of {where}", key, known, hint=f"for example {EXAMPLE}")


def _arrivals(law: str, settings: dict[str, str]) -> Arrivals:
    if law == "bursty":
        return Bursty(mean_burst=_number(settings, "burst", 5.0))
    if law == "daily":
        return Daily(swing=_number(settings, "swing", 0.8), peak_h=_number(settings, "peak", 14.0))
    return Poisson()


def _sizes(size: str, settings: dict[str, str]) -> Sizes:
    if size == "lognormal":
        return Lognormal(cv=_number(settings, "cv", 2.0))
    if size == "pareto":
        if "cv" not in settings:
            return Pareto(shape=_number(settings, "shape", 2.5))
        if "shape" in settings:
            raise InvalidValue("cv", settings["cv"], "left out when shape is given: each determines the other")
        return Pareto.from_cv(_number(settings, "cv", 1.0))
    return Deterministic() if size == "deterministic" else Exponential()


def _gpu_mix(text: str) -> GpuMix:
    choices: list[tuple[int, float]] = []
    for part in text.split("+"):
        gpus, times, weight = part.partition("x")
        field = {"gpus": gpus.strip(), "weight": weight.strip() if times else "1"}
        choices.append((_whole(field, "gpus", 1, 1, MAX_GPUS), _number(field, "weight", 1.0)))
    return GpuMix(choices=tuple(choices))


def _number(settings: dict[str, str], key: str, default: float) -> float:
    text = settings.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text or not text.isascii():
        raise InvalidValue(key, text, "a finite number")
    return value


def _whole(settings: dict[str, str], key: str, default: int, low: int, high: int) -> int:
    text = settings.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high):
        raise InvalidValue(key, text, f"a whole number from {low} to {high}")
    return int(text)
