"""The log of a session as metrics of one MLflow run.

    with train.session(..., tracker=Mlflow("my experiment")) as s:

The run is found by its tag `sublet.run`, or made. `tracking_uri` is MLflow's own ($MLFLOW_TRACKING_URI without it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric

from sublet.machine.wall import WALL

TAG = "sublet.run"


class Mlflow:
    """A run in an experiment of this name, which is made if there is none."""

    def __init__(self, experiment: str = "sublet", tracking_uri: str | None = None) -> None:
        self._experiment, self._uri = experiment, tracking_uri
        self._client: Any = None
        self._run_id = ""

    def begin(self, run: str) -> Mapping[str, int]:
        client = self._client = MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(self._experiment)
        place = client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        there = client.search_runs([place], filter_string=f"tags.`{TAG}` = '{run}'", order_by=["attributes.start_time"])
        if not there:
            self._run_id = client.create_run(place, run_name=run, tags={TAG: run}).info.run_id
            return {}
        self._run_id = there[0].info.run_id
        client.update_run(self._run_id, status="RUNNING")
        names = client.get_run(self._run_id).data.metrics
        return {name: max(each.step for each in client.get_metric_history(self._run_id, name)) for name in names}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        at_ms = int(WALL.unix() * 1e3)
        metrics = [Metric(name, value, at_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, *, finished: bool) -> None:
        if finished:
            self._client.set_terminated(self._run_id)
