"""The form in which a job runs: on what, and how wide."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.quantity import named, whole
from sublet.errors import InvalidValue

MOST_BATCH = 2**31 - 1  # samples in one step: beyond any, and still a number that every framework counts with
Placement = tuple[tuple[str, int], ...]  # (node id, GPUs used there), in the order in which ranks are laid out
Spread = tuple[int, ...]  # the same without names: GPUs used on each node


def packed(gpus: int, gpus_per_node: int) -> Spread:
    """The spread over as few nodes as possible, full nodes first: `packed(10, 4) == (4, 4, 2)`."""
    full, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())


def first_gpus(placement: Placement, gpus: int) -> Placement:
    """The first `gpus` of a placement, in its order.

    >>> first_gpus((("a", 4), ("b", 4)), 5)
    (('a', 4), ('b', 1))
    """
    found: list[tuple[str, int]] = []
    for node_id, held in placement:
        if gpus <= 0:
            break
        found.append((node_id, min(held, gpus)))
        gpus -= held
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Grid:
    """`copies` of a model side by side, each cut into `parts`: what one GPU holds is a stage of a pipeline, or a shard.

    One part is data parallel training.
    """

    copies: int
    parts: int = 1

    def __post_init__(self) -> None:
        whole("copies", self.copies, 1)
        whole("parts", self.parts, 1)

    @property
    def gpus(self) -> int:
        """In use, one for each part of each copy."""
        return self.copies * self.parts

    def __str__(self) -> str:
        return f"{self.copies} x {self.parts}"


@dataclass(frozen=True, slots=True)
class Shape:
    """`gpus` GPUs of one pool; which nodes they are on is the kernel's business, not the policy's.

    `steady` of them, at least, are on demand, and hold one whole copy where there are enough (`domain.seats`). `grid`
    is how they are used, and what is over is spare: held, idle, the first to step in. `batch` is the global batch size
    that the plan chose. None leaves grid or batch to the job's own speed model.
    """

    pool: str
    gpus: int
    steady: int = 0
    grid: Grid | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        named("pool", self.pool)
        whole("gpus", self.gpus, 1)
        whole("steady", self.steady)
        if self.steady > self.gpus:
            raise InvalidValue("steady", self.steady, f"at most the {self.gpus} GPUs of the shape")
        if self.grid is not None and self.grid.gpus > self.gpus:
            raise InvalidValue("grid", str(self.grid), f"of at most the {self.gpus} GPUs of the shape")
        if self.batch is not None:
            whole("batch", self.batch, 1)
            if self.batch > MOST_BATCH:
                raise InvalidValue("batch", self.batch, f"at most {MOST_BATCH}")

    @property
    def is_seated(self) -> bool:
        """Seats count: some are on demand, and stay. Elsewhere all are alike, and any may be lost."""
        return self.grid is not None and self.steady > 0

    @property
    def spares(self) -> int:
        """GPUs that are in no copy."""
        return self.gpus - self.used

    @property
    def used(self) -> int:
        """GPUs that train: all but the spares."""
        return self.gpus if self.grid is None else self.grid.gpus

    def trains_like(self, other: Shape | None) -> bool:
        """Whether it differs from the other in spares alone, if at all: going from one to the other is no resize."""
        if other is None or (self.grid is None and self.gpus != other.gpus):
            return False
        return (self.pool, self.grid, self.batch) == (other.pool, other.grid, other.batch)

    def __str__(self) -> str:
        on_demand = f", {self.steady} on demand" if self.steady else ""
        grid = f", {self.grid}" if self.grid is not None else ""
        batch = f", batch {self.batch}" if self.batch is not None else ""
        return f"{self.gpus} x {self.pool}{on_demand}{grid}{batch}"
