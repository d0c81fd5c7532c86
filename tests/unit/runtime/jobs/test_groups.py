"""Whether a script joins a process group, as far as its text says; one that does not is for one worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.jobs.command import joins_group
from sublet.runtime.jobs.file import job_from_command, job_from_text
from sublet.runtime.jobs.spec import JobSpec

PLAIN = """
import argparse, os
import numpy as np
import torch
from torch import nn
from helpers import data

model = nn.Linear(4, 1)
model.train(), model.eval()
for batch in data():
    model(batch).mean().backward()
torch.save(model.state_dict(), os.path.join(os.environ["SUBLET_CHECKPOINT_DIR"], "model.pt"))
"""
EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(PLAIN, encoding="utf-8")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("from .loading import data\n", encoding="utf-8")
    (tmp_path / "helpers" / "loading.py").write_text("def data():\n    return []\n", encoding="utf-8")
    return tmp_path


def joins(folder, text="", argv=("python", "train.py")):
    if text:
        (folder / "train.py").write_text(text, encoding="utf-8")
    return joins_group(argv, str(folder))


def test_a_plain_loop_with_modules_of_its_own_joins_none(folder):
    assert joins(folder) == "no"
    assert joins(folder, argv=("python3", "-u", "-X", "dev", "train.py", "--lr", "0.1")) == "no"
    assert joins(folder, argv=("python", "-m", "train")) == "no"
    assert joins(folder, argv=("python", "-c", PLAIN)) == "no"
    assert joins(folder, argv=("env", "X=1", "python", "train.py")) == "no"
    assert joins(folder, argv=("bash", "-c", "X=1 python train.py > log")) == "no"


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.init_process_group('gloo')",
        "from torch import nn, distributed",
        "from accelerate import Accelerator",
        "import lightning as L",
        "from transformers import Trainer",
        "import deepspeed",
        "import horovod.torch as hvd",
        "from torch.distributed.fsdp import fully_shard",
        "import jax; jax.distributed.initialize()",
        "from jax import distributed",
        "from timm.utils import init_distributed_device",
        "import ray",
        "part = int(os.environ['RANK'])",
        "with train.session(model, optimizer, data, global_batch=8) as s: pass",
    ],
)
def test_one_word_by_which_a_group_is_joined_will_do(folder, line):
    assert joins(folder, f"{PLAIN}{line}\n") == "yes"


def test_the_word_may_be_in_a_module_that_a_module_imports(folder):
    (folder / "helpers" / "loading.py").write_text("from .. import shared\n", encoding="utf-8")
    (folder / "shared.py").write_text("import torch.distributed\n", encoding="utf-8")
    assert joins(folder) == "yes"


@pytest.mark.parametrize(
    "line",
    [
        "import ours",
        "from .gone import x",
        "import subprocess",
        "from hydra.utils import instantiate",
        "importlib.import_module(name)",
        "os.execvp('x', [])",
        "exec(text)",
        "def (:",
    ],
)
def test_of_what_is_run_unread_nothing_is_said(folder, line):
    assert joins(folder, f"{PLAIN}{line}\n") == ""


def test_of_a_script_that_trains_nothing_nothing_is_said(folder):
    assert joins(folder, "print('hello')\n") == ""


@pytest.mark.parametrize(
    "argv", [("python", "gone.py"), ("python", "-m", "gone"), ("./train",), ("bash", "-c", "make\npython train.py")]
)
def test_of_commands_that_are_no_script_nothing_is_said(folder, argv):
    assert joins(folder, argv=argv) == ""


def test_a_line_for_a_shell_may_name_what_joins(folder):
    assert joins(folder, argv=("bash", "-c", "accelerate launch train.py")) == "yes"
    (folder / "run.sh").write_text("cd .\npython ddp.py\n", encoding="utf-8")
    assert joins(folder, argv=("bash", "run.sh")) == ""
    (folder / "ddp.py").write_text("dist.init_process_group('gloo')\n", encoding="utf-8")
    assert joins(folder, argv=("bash", "run.sh")) == "yes"


@pytest.mark.parametrize("line", ["cd src\npython ddp.py", "make; python -m src.ddp", "cd src; sh run.sh"])
def test_a_line_for_a_shell_may_go_to_what_joins(folder, line):
    (folder / "src").mkdir()
    assert joins(folder, argv=("bash", "-c", line)) == ""
    (folder / "src" / "ddp.py").write_text("dist.init_process_group('gloo')\n", encoding="utf-8")
    assert joins(folder, argv=("bash", "-c", line)) == "yes"


def test_a_licence_is_no_word_of_a_group(folder):
    assert joins(folder, f"# Distributed under the MIT License, and distributed as it is.\n{PLAIN}") == "no"


def test_the_examples_join_as_they_do():
    assert joins_group(("python", "train_unmodified.py"), str(EXAMPLES)) == "yes"


# ---------------------------------------------------------------------- at submit


def test_a_script_that_joins_none_is_refused_where_it_may_have_several_workers(folder):
    with pytest.raises(InvalidValue) as caught:
        job_from_command(["python", "train.py"], cwd=str(folder), workers=(1, 3))
    told = str(caught.value)
    assert told.startswith("elastic.workers = '1..3' is not allowed; it must be 1, for its script joins no process")
    assert "next: --workers 1; or call torch.distributed.init_process_group()" in told
    assert job_from_command(["python", "train.py"], cwd=str(folder)).joins == "no"


def test_one_for_one_worker_cannot_be_scaled_to_more_later(folder):
    spec = job_from_command(["python", "train.py"], cwd=str(folder))
    with pytest.raises(InvalidValue, match=r"elastic\.workers = 2"):
        replace(spec, min_workers=2, max_workers=2)


def test_a_file_is_refused_with_the_line_of_its_workers(folder):
    text = "run: python train.py\nelastic: {workers: 1..3}\n"
    with pytest.raises(BadInput, match=r"line 2: elastic\.workers = '1\.\.3' is not allowed; it must be 1"):
        job_from_text(text, source="job.yaml", base=folder)
    with pytest.raises(BadInput, match="its script joins no process group"):
        job_from_text("run: python train.py\nnum_nodes: 2\n", source="job.yaml", base=folder)
    brought = job_from_text(f"setup: ./get.sh\n{text}", source="job.yaml", base=folder)
    assert brought.joins == "", "its setup may bring another script"


def test_one_that_may_join_one_and_one_that_nobody_can_read_are_taken(folder):
    (folder / "ddp.py").write_text("dist.init_process_group('gloo')\n", encoding="utf-8")
    assert job_from_command(["python", "ddp.py"], cwd=str(folder), workers=(1, 3)).joins == "yes"
    assert job_from_command(["./train"], cwd=str(folder), workers=(1, 3)).joins == ""


def test_a_session_and_a_command_for_a_node_have_groups_of_their_own():
    for facts in ({"sdk": True}, {"sdk": False, "per_node": 2}):
        JobSpec(name="j", argv=("x",), cwd="/", joins="no", **{"min_workers": 2, "max_workers": 2, **facts})
    with pytest.raises(InvalidValue, match="joins = 'maybe'"):
        JobSpec(name="j", argv=("x",), cwd="/", joins="maybe")
