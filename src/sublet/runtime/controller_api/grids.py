"""How the workers of a model that is cut sit, what each kind of change has cost them, and how busy GPUs are."""

from __future__ import annotations

from collections.abc import Iterable

from sublet.runtime.controller.memory import KINDS, GridLearning
from sublet.runtime.controller_api.views import GpuView, MoveView, PlaceView
from sublet.runtime.group.protocol import Group
from sublet.runtime.group.workers import WorkerPhase
from sublet.runtime.jobs.bounds import MOST_STAGES
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.messages import NO_PLACE


def place_views(group: Group) -> list[PlaceView]:
    """By copy and part, those without a place last."""
    if group.places.formed is None:
        return []
    found = [
        PlaceView(
            worker_id=worker.id,
            node_id=worker.node_id,
            copy=NO_PLACE if worker.place is None else worker.place[0],
            part=NO_PLACE if worker.place is None else worker.place[1],
            keeps=list(worker.keeps),
        )
        for worker in group.workers.values()
        if worker.phase in (WorkerPhase.READY, WorkerPhase.MEMBER)
    ]
    return sorted(found, key=lambda each: (each["copy"] < 0, each["copy"], each["part"], each["worker_id"]))


def gpu_views(group: Group) -> list[GpuView]:
    """By rank, of those whose nodes tell."""
    found = [
        GpuView(
            worker_id=worker.id,
            node_id=worker.node_id,
            rank=worker.rank,
            gpus=worker.gpu.gpus,
            busy=worker.gpu.busy,
            memory_bytes=worker.gpu.memory_bytes,
            memory_of_bytes=worker.gpu.memory_of_bytes,
        )
        for worker in group.workers.values()
        if worker.gpu is not None
    ]
    return sorted(found, key=lambda each: (each["rank"], each["worker_id"]))


def move_views(grids: Iterable[GridLearning]) -> list[MoveView]:
    """Of one job, or of several together: the kinds that there were."""
    grids = list(grids)
    found = [(kind, [each.changes[kind] for each in grids if kind in each.changes]) for kind in KINDS]
    return [
        MoveView(
            kind=kind,
            count=sum(change.count for change in changes),
            size_bytes=sum(change.size_bytes for change in changes),
            seconds=sum(change.seconds for change in changes),
        )
        for kind, changes in found
        if changes
    ]


def depth_note(spec: JobSpec, learned: GridLearning) -> str:
    """Why it has so many parts at least, where that is the plan's choice."""
    if not spec.cut or spec.stages:
        return ""
    return f"parts: {learned.memory.describe(learned.blocks, min(MOST_STAGES, len(learned.blocks) or MOST_STAGES))}"


def grid_note(group: Group, learned: GridLearning) -> str:
    """In a sentence; "" where nothing is cut."""
    formed = group.places.formed
    if formed is None:
        return ""
    spares = group.places.spares(group.workers.values())
    text = f"it trains as {formed} (copies x parts), with {spares} spare"
    moves = [
        f"{each['kind']} {each['count']} ({each['size_bytes'] / 1e6:.1f} MB, {each['seconds']:.2f} s)"
        for each in move_views([learned])
    ]
    return f"{text}; its grid has changed: {', '.join(moves)}" if moves else text
