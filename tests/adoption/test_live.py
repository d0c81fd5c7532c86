"""Scripts of frameworks under a real controller that loses the node of one of two workers: the other goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.chaos.rig import rig  # noqa: E402
from tests.rigs.struck_cloud import Struck  # noqa: E402

SCRIPTS = Path(__file__).parent / "scripts"
PACED = """
import runpy
import sys
import time
from pathlib import Path

from sublet.train.sessions import loop

step = loop.Session.step


def slow_step(self, *given, **named):
    if "SUBLET_WORKER_ID" in os.environ and not Path("enough").exists():
        time.sleep(0.1 * max(1, self.steps - 20))  # ever longer, so that no strike comes too late
    step(self, *given, **named)
    if self.updated and "SUBLET_WORKER_ID" in os.environ:
        with Path("widths").open("a") as noted:
            noted.write(f"{self.steps} {self.world}\\n")


loop.Session.step = slow_step
runpy.run_path(sys.argv[1], run_name="__main__")
"""
pytestmark = pytest.mark.timeout(400)


def command(folder, name):
    folder.mkdir(exist_ok=True)
    (folder / "paced.py").write_text(f"import os\n{PACED}")
    return sys.executable, str(folder / "paced.py"), str(SCRIPTS / name / "after.py")


def wide(folder):
    """Steps that were made by two workers."""
    noted = folder / "widths"
    rows = [line.split() for line in noted.read_text().splitlines()] if noted.exists() else []
    return len({step for step, width in rows if width == "2"})


@pytest.mark.parametrize(
    ("name", "library"), [("accelerate", "accelerate"), ("hf_trainer", "transformers"), ("lightning", "lightning")]
)
def test_a_framework_that_loses_a_node_goes_on_with_the_other_and_comes_to_the_same(name, library, tmp_path):
    pytest.importorskip(library)
    calm, struck = tmp_path / "calm", tmp_path / "struck"
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command(calm, name), cwd=calm, env=env, check=True, capture_output=True, timeout=300)
    with rig(Struck, policy="max-speedup", most_nodes=2) as world:
        world.start()
        job_id = world.submit(name=name, argv=command(struck, name), cwd=str(struck))

        def view():
            return world.job(job_id)

        def makes_steps(what):
            begun = view().get("step", 0)
            world.until(lambda: view().get("step", 0) > begun + 2, what, 250.0)

        world.until(lambda: view().get("phase") == "running" and len(view()["node_ids"]) == 2, "two workers", 250.0)
        world.until(lambda: wide(struck) > 3, "steps by two", 250.0)
        lost = view()["node_ids"][0]
        world.strike(f"kill:{lost}")
        world.until(lambda: lost not in view().get("node_ids", [lost]), "it is known to be lost", 250.0)
        makes_steps("steps without it")
        (struck / "enough").touch()
        (job,) = world.until_ended(job_id, patience_s=250.0)
        assert (job["phase"], job["failures_user"], job["steps_lost"]) == ("finished", 0, 0), job["error"]
        assert job["preemptions_unnoticed"] == 1
        world.down()
        world.audit()
    expected, found = torch.load(calm / "model.pt"), torch.load(struck / "model.pt")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
