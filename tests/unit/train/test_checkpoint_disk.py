"""A full or read-only disk: training goes on, the error is told, the old checkpoints stay, nothing is left half."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sublet.errors import CheckpointFailed
from sublet.train.checkpoint.checkpoints import Checkpoints

OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
SCRIPT = """
import subprocess, sys, torch
from pathlib import Path
from sublet.train.checkpoint.checkpoints import Checkpoints

home = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", home], check=True)
kept = Checkpoints(home / "c", writer="w", generation=1)

def save(step, size):
    pending = kept.save(step, {"w": torch.full((size // 4,), float(step))}, {})
    try:
        pending.wait()
    except Exception:
        pass
    left = len(list((home / "c" / "staging").iterdir()))
    print(step, pending.error.why if pending.error else "committed", left, kept.newest().step, flush=True)

save(1, 100_000)
save(2, 2_000_000)
save(3, 100_000)
(home / "filler").write_bytes(bytes(600_000))
save(4, 500_000)
(home / "filler").unlink()
save(5, 100_000)
subprocess.run(["mount", "-o", "remount,ro", home], check=True)
save(6, 100_000)
again = Checkpoints(home / "c", writer="w", generation=2)
print(again.newest().step)
subprocess.run(["mount", "-o", "remount,rw", home], check=True)
save(7, 100_000)
kept.close()
"""


def may_mount():
    try:
        return subprocess.run([*OWN_MOUNTS, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not may_mount(), reason="no mounts of our own on this machine")
def test_a_full_and_a_read_only_disk_cost_one_checkpoint_each_and_no_more(tmp_path):
    command = [*OWN_MOUNTS, sys.executable, "-c", SCRIPT, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert told.splitlines() == [
        "1 committed 0 1",
        "2 No space left on device 0 1",
        "3 committed 0 3",
        "4 No space left on device 0 3",
        "5 committed 0 5",
        "6 Read-only file system 0 5",
        "5",
        "7 committed 0 7",
    ]


def test_a_write_refused_by_the_system_at_any_size_leaves_the_old_one(tmp_path):
    with Checkpoints(tmp_path, writer="w", generation=1) as kept:
        kept.save(1, {"w": torch.ones(1_000)}, {}).wait()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for limit in (0, 1, 500, 3_999):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                pending = kept.save(2, {"w": torch.ones(1_000)}, {})
                with pytest.raises(CheckpointFailed, match="File too large"):
                    pending.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert list((tmp_path / "staging").iterdir()) == []
            assert kept.newest().step == 1
        assert kept.save(2, {"w": torch.ones(1_000)}, {}).wait().step == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_fails_the_save_and_can_be_read(tmp_path):
    with Checkpoints(tmp_path, writer="w", generation=1) as kept:
        kept.save(1, {"w": torch.ones(10)}, {}).wait()
    for path in (tmp_path, tmp_path / "staging"):
        path.chmod(0o555)
    try:
        with Checkpoints(Path(tmp_path), writer="w", generation=1) as kept:
            with pytest.raises(CheckpointFailed, match="Permission denied"):
                kept.save(2, {"w": torch.ones(10)}, {}).wait()
            assert kept.newest().step == 1
    finally:
        for path in (tmp_path, tmp_path / "staging"):
            path.chmod(0o755)
