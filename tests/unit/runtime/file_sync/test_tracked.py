"""A tracker that keeps files is told of at submit, where nodes share no disk."""

from __future__ import annotations

import asyncio

import pytest

from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.jobs.spec import JobSpec


def noted(folder, script, *, elsewhere=True, **more):
    (folder / "train.py").write_text(script)
    spec = JobSpec(**{"name": "job", "argv": ("python", "train.py"), "cwd": str(folder), **more})
    carrier = FileSync(folder, files=FILES, rng=RNG, engine=None, logs=None, elsewhere=elsewhere)

    async def no_buckets(spec, *, make):
        return []

    carrier.buckets = no_buckets
    return asyncio.run(carrier.check(spec))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from sublet.integrations.tensorboard import TensorBoard", ["TensorBoard"]),
        ("import sublet.integrations.wandb", ["Wandb"]),
        ("if x:\n    from sublet.integrations import mlflow, wandb as w, tensorboard", ["TensorBoard", "Wandb"]),
        ("from sublet.integrations.mlflow import Mlflow", []),
        ("from torch.utils.tensorboard import SummaryWriter", []),
        ("# from sublet.integrations.wandb import Wandb", []),
    ],
)
def test_what_keeps_files_is_named(line, names, tmp_path):
    assert [note.split()[0] for note in noted(tmp_path, f"import torch\n{line}\n")] == names


WANDB = "from sublet.integrations.wandb import Wandb\n"


def test_nothing_is_said_where_files_last(tmp_path):
    assert noted(tmp_path, WANDB)
    assert not noted(tmp_path, WANDB, elsewhere=False)
    assert not noted(tmp_path, WANDB, mounts={"/runs": "s3://bucket/runs"}, kept_mounts=("/runs",))
    assert not noted(tmp_path, WANDB, argv=("python", "other.py"))
    assert not noted(tmp_path, WANDB, code="a" * 64)  # who sent it has looked
