"""What a checkpoint costs by where it goes: a directory of this disk, and an object store.

    python -m benchmarks.stores                                200 MB to a directory, and to S3 as moto plays it here
    python -m benchmarks.stores --uri s3://bucket/prefix       ... to a real one; access comes from the environment

`blocked` is what a step waits for, the copy to host memory; the rest goes on behind the training. Steps beside it are
shown next to undisturbed ones: on a machine with few cores moto takes one of them, which a real store does not. What is
loaded is compared to the bit.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sublet.train.checkpoint.checkpoints import Checkpoints, newest

TENSOR = (1_000, 1_000)  # of 4 MB
State = dict[str, Any]


def main() -> None:
    """Print a row for each place."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--uri", default="", help="an empty prefix of an object store; moto's here otherwise")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    state: State = {f"w{index}": torch.randn(TENSOR) for index in range(max(1, chosen.megabytes // 4))}
    if not chosen.uri:
        with moto() as uri:
            compare(state, {"moto's S3": uri}, chosen.repeats)
        return
    compare(state, {chosen.uri: chosen.uri}, chosen.repeats)


@contextmanager
def moto() -> Iterator[str]:
    """A bucket on a server of its own."""
    import boto3

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("moto_server")
    server = subprocess.Popen(  # noqa: S603 - a program of our own environment
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        os.environ |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
        while server.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                break
            except OSError:
                time.sleep(0.05)
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="benchmark")
        yield "s3://benchmark/job"
    finally:
        server.kill()
        server.wait()


def compare(state: State, places: dict[str, str], repeats: int) -> None:
    """A directory, and these."""
    size = sum(tensor.nbytes for tensor in state.values())
    print(f"{size / 1e6:,.0f} MB in {len(state)} tensors, {os.cpu_count()} cores, medians of {repeats}")
    print("  place                       blocked    behind it              load, verified         a step beside it")
    with tempfile.TemporaryDirectory() as folder:
        for name, place in {"directory": folder, **places}.items():
            measure(name, place, state, size, repeats)


def measure(name: str, place: str, state: State, size: int, repeats: int) -> None:
    """Saves one after the other, one beside steps, and a load."""
    factor = torch.randn(384, 384)

    def step_s() -> float:
        begun_s = time.perf_counter()
        factor @ factor
        return time.perf_counter() - begun_s

    alone_s, beside_s = [step_s() for _ in range(300)], []
    with Checkpoints(place, keep=2, writer="benchmark", generation=1) as kept:
        kept.reserve(state)
        saves = []
        for step in range(repeats + 1):
            saves.append(kept.save(step, state, {"step": step}))
            saves[-1].wait()
        pending = kept.save(repeats + 1, state, {})
        while not pending.done:
            beside_s.append(step_s())
        pending.wait()
    begun_s = time.perf_counter()
    loaded = newest(place)
    load_s = time.perf_counter() - begun_s
    assert loaded is not None
    assert loaded.step == repeats + 1
    assert all(torch.equal(loaded.state[key], tensor) for key, tensor in state.items())
    blocked_s = statistics.median(save.blocked_s for save in saves[1:])
    behind_s = statistics.median(save.seconds - save.blocked_s for save in saves[1:])
    one_s, other_s = statistics.median(alone_s), statistics.median(beside_s)
    print(
        f"  {name:<24} {1e3 * blocked_s:8.1f} ms {behind_s:8.2f} s {size / 1e6 / behind_s:7.0f} MB/s"
        f" {load_s:8.2f} s {size / 1e6 / load_s:7.0f} MB/s {1e3 * one_s:8.2f} -> {1e3 * other_s:.2f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
