"""Trackers, and what their runs hold: {run: {name: [(step, value)]}} in the order in which it was written."""

from __future__ import annotations

import struct
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

__all__ = ["TRACKERS", "tensorboard", "tensorboard_values"]

Values = dict[str, dict[str, list[tuple[int, float]]]]


def tensorboard(directory: Path) -> Any:
    with warnings.catch_warnings():  # of what it imports, as it imports it
        warnings.simplefilter("ignore")
        from sublet.integrations.tensorboard import TensorBoard
    return TensorBoard(directory)


def tensorboard_values(directory: Path) -> Values:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: Values = defaultdict(lambda: defaultdict(list))
    for path in sorted(directory.glob("*/events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                found[path.parent.name][value.tag].append((event.step, number))
    return {run: dict(values) for run, values in found.items()}


def mlflow(directory: Path) -> Any:
    from sublet.integrations.mlflow import Mlflow

    return Mlflow("trials", tracking_uri=directory.as_uri())


def mlflow_values(directory: Path) -> Values:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=directory.as_uri())
    (experiment,) = [each for each in client.search_experiments() if each.name == "trials"]
    found: Values = {}
    for run in client.search_runs([experiment.experiment_id]):
        names, run_id = run.data.metrics, run.info.run_id
        found[run.info.run_name] = {
            name: [(each.step, each.value) for each in client.get_metric_history(run_id, name)] for name in names
        }
    return found


def wandb(directory: Path) -> Any:
    from sublet.integrations.wandb import Wandb

    return Wandb(project="trials", directory=directory, mode="offline")


def wandb_values(directory: Path) -> Values:
    """Of all its parts, which have a file each."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    found: Values = defaultdict(lambda: defaultdict(list))
    for path in sorted((directory / "wandb").glob("offline-run-*/run-*.wandb")):
        run = path.stem.removeprefix("run-")
        for data in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                step = int(items["_step"])
                for name, value in items.items():
                    if not name.startswith("_"):
                        found[run][name].append((step, json.loads(value)))
    return {run: dict(values) for run, values in found.items()}


def _records(data: bytes) -> list[bytes]:
    """As LevelDB writes a log: blocks of 32 KiB with pieces of records; W&B has seven bytes before the first."""
    found, at, partly = [], 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0 or at + 7 + length > len(data):
            break  # torn: its writer was killed
        partly += data[at + 7 : at + 7 + length]
        if kind in (1, 4):
            found.append(partly)
            partly = b""
        at += 7 + length
    return found


TRACKERS = {
    "tensorboard": (tensorboard, tensorboard_values),
    "mlflow": (mlflow, mlflow_values),
    "wandb": (wandb, wandb_values),
}
