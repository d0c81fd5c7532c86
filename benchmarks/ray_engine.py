"""Elastic training on a Ray cluster of four nodes on this machine: Sublet's engine, and Ray Train's own beside it.

    python -m benchmarks.ray_engine [--no-peer] [--rounds 5] [--json FILE]

Both train one network on the same data with gloo, log every step, and lose the same: all processes of one Ray node
by SIGKILL (raylet, workers, and what they started). Ray Train runs with its defaults, elastic from 1 to 4 workers, with
a checkpoint every second; it needs pip install 'ray[train]'. Of Sublet also: Ray alone killed on a node, a node
drained, a node added, and the time from submit to the first step on warm nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sublet.runtime.agent import processes

NODES = 4
STORE_BYTES = 80_000_000
BATCH, SAMPLES, MS_PER_SAMPLE = 256, 20_000, 1.0  # a step takes 64 ms on four workers
PEER_S = 240.0  # for Ray Train to make a step again
ROOT = Path(__file__).resolve().parent.parent


# -------------------------------------------------------------------------------------- what both train


def training_set() -> Any:
    """Two spirals, and which one a point is on."""
    import torch

    generator = torch.Generator().manual_seed(0)
    turn = torch.rand(SAMPLES, generator=generator).sqrt() * 9.0
    which = torch.randint(0, 2, (SAMPLES,), generator=generator)
    angle = turn + which * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 9.0
    return torch.utils.data.TensorDataset(points, which)


def network() -> Any:
    """Small: what is measured is not the arithmetic."""
    from torch import nn

    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def log_step(path: str, step: int, world: int) -> None:
    """One line per step, by rank 0: when, which, with how many."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{time.time():.4f} {step} {world}\n")


def steps_in(path: Path) -> list[tuple[float, int, int]]:
    """(when, step, world) of all steps made so far."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [(float(at), int(step), int(world)) for at, step, world in (line.split() for line in lines)]


def our_worker(log: str, epochs: int) -> None:
    """The script under Sublet."""
    import torch
    from torch import nn

    from sublet import train

    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with train.session(model, optimizer, training_set(), global_batch=BATCH) as session:
        for points, which in session.batches(epochs=epochs):
            step = session.steps
            session.step(nn.functional.cross_entropy(model(points), which))
            time.sleep(len(points) * MS_PER_SAMPLE / 1000.0)
            if session.rank == 0 and session.steps > step:
                log_step(log, session.steps, session.world)


def peer_worker(config: dict[str, Any]) -> None:
    """The script under Ray Train, as its guide for elastic training has it."""
    import ray.train
    import ray.train.torch
    import torch
    from torch import nn

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = ray.train.torch.prepare_model(model)
    data = training_set()
    saved_s = time.monotonic()
    while step < config["epochs"] * SAMPLES // BATCH:
        picked = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(step))[:BATCH][rank::world]
        points, which = data[picked]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), which).backward()
        optimizer.step()
        time.sleep(len(points) * MS_PER_SAMPLE / 1000.0)
        step += 1
        if rank == 0:
            log_step(config["log"], step, world)
        due = torch.tensor(float(time.monotonic() - saved_s > 1.0))
        torch.distributed.broadcast(due, 0)  # everybody must report together
        if due:
            saved_s = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if rank == 0:
                    plain = getattr(model, "module", model).state_dict()
                    state = {"model": plain, "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, Path(folder) / "state.pt")
                    checkpoint = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"step": step}, checkpoint=checkpoint)


# -------------------------------------------------------------------------------------- the cluster


@contextmanager
def cluster() -> Iterator[Any]:
    """A head and four nodes; ended with everything on them."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NODES):
            add_node(nodes, wait=False)
        nodes.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = nodes.address
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def add_node(nodes: Any, *, wait: bool = True) -> Any:
    """One more, with one CPU."""
    return nodes.add_node(wait=wait, num_cpus=1, object_store_memory=STORE_BYTES)


def raylet_of(nodes: Any, ray_node: str) -> int:
    """The pid of Ray's process on a node."""
    node = next(node for node in nodes.worker_nodes if node.node_id == ray_node)
    return node.all_processes["raylet"][0].process.pid


def machine_of(nodes: Any, ray_node: str) -> set[int]:
    """All processes of a node."""
    raylet = raylet_of(nodes, ray_node)
    found, everybody = {raylet}, processes.everybody()
    while grown := {p.pid for p in everybody if p.parent in found} - found:
        found |= grown
    return found


def kill(pids: Iterable[int]) -> float:
    """All at once, as a machine goes."""
    at_s = time.time()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return at_s


def back(log: Path, killed_s: float, wait_s: float) -> tuple[float | None, int | None]:
    """(seconds from the kill to the next step, steps made again), as soon as there is one in a new group."""
    ends_s = time.monotonic() + wait_s
    while time.monotonic() < ends_s:
        steps = steps_in(log)
        width = [world for at_s, _, world in steps if at_s <= killed_s][-1]
        after = [(at_s, step) for at_s, step, world in steps if at_s > killed_s and world < width]
        if after:
            # A step under way at the kill may have ended and been logged after it, still at the old width.
            made = max(step for at_s, step, world in steps if at_s <= killed_s or world == width)
            return after[0][0] - killed_s, max(0, made + 1 - after[0][1])
        time.sleep(0.01)
    return None, None


# -------------------------------------------------------------------------------------- Sublet


class Ours:
    """A controller on the cluster, and what is measured with it."""

    def __init__(self, nodes: Any, folder: Path) -> None:
        from sublet.runtime.controller_api.assemble import controller_from
        from sublet.runtime.settings import Settings

        self._nodes, self._folder = nodes, folder
        self._api = controller_from(Settings(state_dir=str(folder / "state"), provider="ray", engine="ray"))
        self._provider: Any = self._api._controller.provider._provider  # noqa: SLF001 - the benchmark picks its victims
        self._running: asyncio.Task[None] | None = None
        self.found: dict[str, Any] = {}

    async def start(self) -> None:
        """Until jobs can be brought."""
        began_s = time.monotonic()
        self._running = asyncio.create_task(self._api.run())
        started = asyncio.create_task(self._api.started())
        await asyncio.wait([self._running, started], return_when=asyncio.FIRST_COMPLETED)
        self.found["start of the controller, four nodes made warm (s)"] = time.monotonic() - began_s

    async def first_steps(self, rounds: int) -> None:
        """From submit to the first step on warm nodes that nobody holds."""
        first_s = []
        for number in range(rounds):
            log, at_s = self._folder / f"first-{number}.log", time.time()
            job_id = await self._submit(f"first-{number}", log)
            await self._until(lambda log=log: steps_in(log), "the first step")
            first_s.append(steps_in(log)[0][0] - at_s)
            await self._until(lambda job_id=job_id: self._api.record(job_id).group.size == NODES, "four workers")
            await self._api.cancel(job_id)
            await self._until(lambda: not self._provider._held, "all given back")  # noqa: SLF001
        self.found[f"submit to first step, warm, median of {rounds} (s)"] = statistics.median(first_s)
        self.found["submit to first step, warm, longest (s)"] = max(first_s)

    async def losses(self) -> None:
        """4 -> 3 as a machine dies, 3 -> 2 as Ray alone dies on one, 2 -> 3 as one joins, 3 -> 2 as one is drained."""
        log = self._folder / "ours.log"
        job_id = await self._submit("ours", log)
        await self._at_width(log, 4)
        await self._lose("node killed", machine_of(self._nodes, self._victim(job_id)), log)
        await self._at_width(log, 3)
        await self._lose("raylet alone killed", {raylet_of(self._nodes, self._victim(job_id))}, log)
        await self._at_width(log, 2)
        add_node(self._nodes, wait=False)  # in this thread, as Ray will have it: the controller stands still meanwhile
        joined_s = time.time()
        await self._at_width(log, 3)
        what = "node added: from its join to a step with it, its steward started (s)"
        self.found[what] = _first_after(log, joined_s, 3) - joined_s
        drained, drained_s = self._victim(job_id), time.time()
        _drain(self._provider, drained, drained_s + 10.0)
        await self._at_width(log, 2)
        what = "node drained with 10 s notice: to a step without it (s)"
        self.found[what] = _first_after(log, drained_s, 2) - drained_s
        held = self._provider._held  # noqa: SLF001
        await self._until(lambda: drained not in {claim.ray_node for claim in held.values()}, "given back")
        self.found["steps lost in all"] = self._api.record(job_id).steps_lost
        numbers = [step for _, step, _ in steps_in(log)]
        self.found["every step made once and in order"] = numbers == list(range(1, len(numbers) + 1))

    async def stop(self) -> None:
        """Give everything back."""
        began_s = time.monotonic()
        await self._api.shutdown(end_jobs=True)
        if self._running is not None:
            await self._running
        self.found["shutdown (s)"] = time.monotonic() - began_s

    async def _submit(self, name: str, log: Path) -> str:
        from sublet.runtime.jobs.spec import JobSpec

        argv = (sys.executable, "-m", "benchmarks.ray_engine", "--worker", str(log))
        spec = JobSpec(name=name, argv=argv, cwd=str(ROOT), max_workers=NODES, checkpoint_every_s=600.0)
        return (await self._api.submit(spec))["job_id"]

    async def _lose(self, what: str, pids: Iterable[int], log: Path) -> None:
        killed_s = kill(pids)
        next_s, lost = await asyncio.to_thread(back, log, killed_s, 60.0)
        self.found[f"{what}: to the next step (s)"], self.found[f"{what}: steps lost"] = next_s, lost

    def _victim(self, job_id: str) -> str:
        """The Ray node of the last rank."""
        workers = self._api.record(job_id).group.workers.values()
        last = max(workers, key=lambda worker: worker.rank)
        return str(self._provider._held[last.node_id].ray_node)  # noqa: SLF001

    async def _at_width(self, log: Path, width: int) -> None:
        await self._until(lambda: steps_in(log) and steps_in(log)[-1][2] == width, f"{width} workers")
        await asyncio.sleep(2.0)

    async def _until(self, reached: Callable[[], Any], what: str, wait_s: float = 60.0) -> None:
        ends_s = time.monotonic() + wait_s
        while not reached():
            if self._running is not None and self._running.done():
                self._running.result()
            if time.monotonic() > ends_s:
                raise TimeoutError(what)
            await asyncio.sleep(0.005)


async def ours(nodes: Any, folder: Path, rounds: int) -> dict[str, Any]:
    """All figures of our engine."""
    run = Ours(nodes, folder)
    await run.start()
    await run.first_steps(rounds)
    await run.losses()
    await run.stop()
    return run.found


def _first_after(log: Path, at_s: float, width: int) -> float:
    return next(made_s for made_s, _, world in steps_in(log) if made_s > at_s and world == width)


def _drain(provider: Any, ray_node: str, ends_unix_s: float) -> None:
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    provider._cluster._gcs.drain_node(ray_node, reason, "benchmark", int(ends_unix_s * 1000))  # noqa: SLF001


# -------------------------------------------------------------------------------------- Ray Train


def peer(nodes: Any, folder: Path) -> dict[str, Any]:
    """Ray Train v2, elastic, with the same fault."""
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    import ray
    import ray.train
    import ray.train.torch

    log = folder / "peer.log"
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    trainer = ray.train.torch.TorchTrainer(
        peer_worker,
        train_loop_config={"log": str(log), "epochs": 1_000},
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=(1, NODES), resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(
            storage_path=str(folder / "storage"),
            name="peer",
            failure_config=ray.train.FailureConfig(max_failures=10),
        ),
    )
    began_s = time.time()
    threading.Thread(target=_fit, args=(trainer,), daemon=True).start()
    ends_s = time.monotonic() + PEER_S
    while len(steps_in(log)) < 40:
        if time.monotonic() > ends_s:
            raise TimeoutError("Ray Train made no 40 steps")
        time.sleep(0.05)
    found = {"fit() to first step (s)": steps_in(log)[0][0] - began_s, "workers": steps_in(log)[-1][2]}
    busy = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
    killed_s = kill(machine_of(nodes, min(busy)))
    found["node killed: to the next step (s)"], found["node killed: steps lost"] = back(log, killed_s, PEER_S)
    return found


def _fit(trainer: Any) -> None:
    try:
        trainer.fit()
    except BaseException as error:  # noqa: BLE001 - it is ended with its cluster
        print(f"  Ray Train ended: {type(error).__name__}", file=sys.stderr)


# --------------------------------------------------------------------------------------


def main() -> None:
    """Measure, print, and write the figures down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peer", action="store_true", help="Sublet alone")
    parser.add_argument("--rounds", type=int, default=5, help="submissions to the warm cluster")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, default=1_000, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        our_worker(asked.worker, asked.epochs)
        return
    folder = Path(tempfile.mkdtemp(prefix="sublet-ray-"))
    results: dict[str, Any] = {}
    try:
        with cluster() as nodes:
            results["sublet"] = asyncio.run(ours(nodes, folder, asked.rounds))
        show("sublet", results["sublet"])
        if not asked.no_peer and importlib.util.find_spec("pyarrow") is None:
            print("Ray Train: not measured; pip install 'ray[train]'")
        elif not asked.no_peer:
            with cluster() as nodes:
                results["ray train"] = peer(nodes, folder)
            show("Ray Train v2, elastic, defaults", results["ray train"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


def show(name: str, figures: Mapping[str, Any]) -> None:
    """A table."""
    print(f"\n{name}")
    for what, value in figures.items():
        print(f"  {what:72} {value:.3f}" if isinstance(value, float) else f"  {what:72} {value}")


if __name__ == "__main__":
    main()
