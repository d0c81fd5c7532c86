"""Tiers of one machine with real bytes: a node's disk, a controller host's disk, a bucket, another worker's memory."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from sublet.errors import MissingExtra
from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from sublet.train.checkpoint.store import copy_newest, open_store

State = dict[str, torch.Tensor]
TENSOR_BYTES = 4 << 20
UP_S = 120.0  # for a server to answer
ACCESS = {"AWS_ACCESS_KEY_ID": "study", "AWS_SECRET_ACCESS_KEY": "study", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of one checkpoint in one tier."""

    write_s: float
    read_s: float
    blocked_s: float = 0.0  # of training


def state_of(size_bytes: int, seed: int = 0) -> State:
    """Random: nothing on its way makes it smaller."""
    torch.manual_seed(seed)
    count = max(1, size_bytes // TENSOR_BYTES)
    each = size_bytes // count // 4
    return {f"w{index}": torch.randn(each) for index in range(count)}


class Tiers:
    """The tiers of a folder of this machine, and a bucket."""

    def __init__(self, folder: Path, bucket: str) -> None:
        self.folder, self.bucket = folder, bucket
        self._made = 0

    def measure(self, size_bytes: int, state: State) -> Mapping[str, Took]:
        """One checkpoint through all of them, and back from each to a node that has nothing."""
        self._made += 1
        here = self.folder / f"{size_bytes}-{self._made}"
        node, anchor, bucket = here / "node", here / "anchor", f"{self.bucket}/{size_bytes}-{self._made}"
        with Checkpoints(node, writer="study", generation=1) as checkpoints:
            checkpoints.reserve(state)  # as after the first of a run
            pending = checkpoints.save(1, state, {})
            pending.wait()
        carried_s = _timed(lambda: _copy(node, anchor))
        copied_s = _timed(lambda: _copy(anchor, bucket))
        return {
            "disk": Took(write_s=pending.seconds, read_s=_timed(lambda: _load(node)), blocked_s=pending.blocked_s),
            "anchor": Took(write_s=carried_s, read_s=_timed(lambda: _bring(anchor, here / "new"))),
            "bucket": Took(write_s=copied_s, read_s=_timed(lambda: _bring(bucket, here / "newer"))),
        }


def _copy(source: Path | str, target: Path | str) -> None:
    if copy_newest(open_store(source), open_store(target), keep=2) is None:
        raise AssertionError(f"there is nothing in {source}")


def _bring(source: Path | str, node: Path) -> None:
    _copy(source, node)
    _load(node)


def _load(node: Path) -> None:
    if newest(node) is None:
        raise AssertionError(f"nothing whole is in {node}")


def _timed(work: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


@contextmanager
def bucket_server() -> Iterator[tuple[str, Mapping[str, str]]]:
    """The URI of an empty bucket on a server of its own (moto's S3 over HTTP), and the variables that open it."""
    if find_spec("moto") is None or find_spec("obstore") is None:
        raise MissingExtra("moto, which plays the bucket, or obstore", "box", place="'./lab[{}]'")
    import boto3

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - of our own environment
    try:
        _await(port)
        keys = {"aws_access_key_id": "study", "aws_secret_access_key": "study", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket="tiers")
        yield "s3://tiers", {**ACCESS, "AWS_ENDPOINT_URL": endpoint}
    finally:
        server.terminate()
        server.wait()


def _await(port: int) -> None:
    deadline_s = time.monotonic() + UP_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"moto_server does not answer on port {port}")
        time.sleep(0.05)
