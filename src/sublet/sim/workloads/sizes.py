"""How large jobs are, and how many GPUs they ask for: each law a value with one verb."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sublet.domain.quantity import positive, whole
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats, Ints

__all__ = ["Deterministic", "Exponential", "GpuMix", "Lognormal", "Pareto", "Sizes"]


MAX_CV = 1e6  # wider, or narrower than its inverse, is beyond floating point and beyond any trace


class Sizes(Protocol):
    """A law of job size."""

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """`n_jobs` independent sizes above 0 with this mean, in its unit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic:
    """All the same."""

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:  # noqa: ARG002 - see Sizes
        """See Sizes."""
        return np.full(n_jobs, mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Memoryless; coefficient of variation 1."""

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """See Sizes."""
        return np.maximum(rng.exponential(mean, n_jobs), np.finfo(float).tiny)  # the law's one zero is no job


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """A long tail, as in most cluster traces; `cv` = standard deviation / mean."""

    cv: float = 2.0

    def __post_init__(self) -> None:
        _check_cv(self.cv)

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """See Sizes."""
        sigma = math.sqrt(math.log1p(self.cv**2))
        return rng.lognormal(math.log(mean) - sigma**2 / 2.0, sigma, n_jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto:
    """A power-law tail: P(size > x) falls as x ** -shape. Up to shape 2 the variance is infinite."""

    shape: float = 2.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shape) and self.shape > 1.0):
            raise InvalidValue("shape", self.shape, "a finite number above 1, so that there is a mean")

    @classmethod
    def from_cv(cls, cv: float) -> Pareto:
        """The one with this coefficient of variation: cv**2 = 1 / (shape (shape - 2))."""
        _check_cv(cv)
        return cls(shape=1.0 + math.sqrt(1.0 + cv**-2))

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """See Sizes."""
        smallest = mean * (self.shape - 1.0) / self.shape
        return smallest * (1.0 + rng.pareto(self.shape, n_jobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMix:
    """How many GPUs a job asks for: (GPUs, weight) pairs; weights need not sum to 1."""

    choices: tuple[tuple[int, float], ...] = ((1, 1.0),)

    def __post_init__(self) -> None:
        if not self.choices:
            raise InvalidValue("gpus", self.choices, "at least one (GPUs, weight) pair")
        for gpus, weight in self.choices:
            whole("gpus", gpus, 1)
            positive("weight of gpus", weight)

    def draw(self, rng: np.random.Generator, n_jobs: int) -> Ints:
        """`n_jobs` independent requests."""
        gpus_C = np.array([gpus for gpus, _ in self.choices], dtype=np.int64)  # C choices
        weight_C = np.array([weight for _, weight in self.choices])
        return rng.choice(gpus_C, size=n_jobs, p=weight_C / weight_C.sum())


def _check_cv(cv: float) -> None:
    if not 1.0 / MAX_CV <= cv <= MAX_CV:
        raise InvalidValue("cv", cv, f"between {1.0 / MAX_CV:g} and {MAX_CV:g}")
