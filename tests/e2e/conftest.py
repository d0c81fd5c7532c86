"""The command line as a function: arguments in; exit code, standard output and standard error out."""

from __future__ import annotations

import gc
import json
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from sublet.cli.main import run

HEADER = "job_id,submit_s,duration_s,gpus,min_gpus"


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch):
    for name in ("COLUMNS", "NO_COLOR", "SUBLET_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def leftovers():
    """Of a controller in this process that ends while an agent still shakes hands: asyncio has that connection alone.

    Python 3.11 gives no way to end it. It goes here, and does not fail whichever test it would be found in.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def sublet(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def jobs_csv(tmp_path):
    """Four jobs of an hour on one to four GPUs, ten minutes apart."""
    path = tmp_path / "jobs.csv"
    rows = [f"j{number},{number * 600},3600,{gpus},1" for number, gpus in enumerate((1, 2, 4, 1))]
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def short_trace(tmp_path):
    """A spot market of one zone: four nodes for half an hour, then two; the record ends after an hour."""
    path = tmp_path / "market.csv"
    path.write_text("t_s,zone,available\n0,z,4\n1800,z,2\n3600,z,2\n", encoding="utf-8")
    return path
