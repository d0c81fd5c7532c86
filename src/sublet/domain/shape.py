"""The form in which a job runs: on what, and how wide."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.quantity import named, whole
from sublet.errors import InvalidValue

__all__ = ["Placement", "Shape", "Spread", "packed"]

MOST_BATCH = 2**31 - 1  # samples in one step: beyond any, and still a number that every framework counts with
Placement = tuple[tuple[str, int], ...]  # (node id, GPUs used there), in the order in which ranks are laid out
Spread = tuple[int, ...]  # the same without names: GPUs used on each node


def packed(gpus: int, gpus_per_node: int) -> Spread:
    """The spread over as few nodes as possible, full nodes first: `packed(10, 4) == (4, 4, 2)`."""
    full, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True)
class Shape:
    """`gpus` GPUs of one pool; which nodes they are on is the kernel's business, not the policy's.

    `batch` is the global batch size that the plan chose; None leaves it to the job's own speed model.
    `stages` is the pipeline depth: gpus / stages pipelines run side by side.
    """

    pool: str
    gpus: int
    batch: int | None = None
    stages: int = 1

    def __post_init__(self) -> None:
        named("pool", self.pool)
        whole("gpus", self.gpus, 1)
        whole("stages", self.stages, 1)
        if self.batch is not None:
            whole("batch", self.batch, 1)
            if self.batch > MOST_BATCH:
                raise InvalidValue("batch", self.batch, f"at most {MOST_BATCH}")

    def __str__(self) -> str:
        return f"{self.gpus} x {self.pool}"
