"""Scripts as people write them, before and after: few lines change, and strikes do not change what they come to.

The weights are compared with those of a run that nobody disturbed. A sample that were trained twice, or never, would
move them by far more than rounding does.
"""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.rigs.scenario import world  # noqa: E402

SCRIPTS = Path(__file__).parent / "scripts"
MOST_LINES = 5
MORE_LINES = {
    "accumulated": 8,
    "best": 15,
    "resumable": 13,
    "finetune": 9,
    "plateau": 7,
    "shuffled_lines": 8,
}  # of strangers; the rest are 13 of 19
STRIKES = {  # those whose losses draw numbers, or whose layers look at the whole batch, depend on the width by nature
    "accumulated": "resized",
    "best": "resized",
    "dcgan": "restarted",
    "everything": "resized",
    "finetune": "resized",
    "imagenet": "restarted",
    "mnist": "restarted",
    "odd": "resized",
    "plateau": "resized",
    "resumable": "resized",
    "shuffled_lines": "resized",
    "slow_loader": "resized",
    "stream": "resized",
    "vae": "resized",
    "weighted": "resized",
}
STRIKE = "tests.adoption.strikes"


def code_of(path):
    """Its lines, without their indentation, which a `with` around them changes."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SCRIPTS.glob("*/before.py")))
def test_at_most_five_lines_are_written(name):
    before, after = (code_of(SCRIPTS / name / f"{which}.py") for which in ("before", "after"))
    written = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert 0 < len(written) <= MORE_LINES.get(name, MOST_LINES), written


@pytest.mark.parametrize("name", sorted(STRIKES))
def test_a_script_comes_to_the_same_under_strikes(name, tmp_path):
    found = {}
    for strikes in ("alone", STRIKES[name]):
        place = tmp_path / strikes
        run = world(strikes, place, env={"SCRIPT": name}, module=STRIKE)
        assert run["codes"][-1] == 0
        found[strikes] = {path.name: torch.load(path) for path in place.glob("[bm]*.pt")}
    assert run["generations"] == 5  # each strike is one, and each worker that comes: none of them was missed
    assert strikes == "restarted" or run["wide"] >= 5  # steps that two workers made
    expected, struck = found["alone"], found[STRIKES[name]]
    assert "model.pt" in expected
    if strikes == "restarted":  # at one width even rounding is the same
        assert struck.keys() == expected.keys()
        torch.testing.assert_close(struck, expected, rtol=0.0, atol=0.0)
    else:
        torch.testing.assert_close(struck, expected, rtol=1e-4, atol=1e-5)


def test_a_loop_of_its_own_goes_on_after_a_notice_and_after_a_kill(tmp_path):
    """As a controller does: SIGTERM and a start, SIGKILL and a start."""

    def start(place, **more):
        place.mkdir(exist_ok=True)
        env = os.environ | {"SUBLET_CHECKPOINT_DIR": str(place / "checkpoints"), "OMP_NUM_THREADS": "1"} | more
        script = (SCRIPTS / "nanogpt" / "after.py").read_text().replace("    ck.tick", f"    {SLOWLY}\n    ck.tick")
        (place / "train.py").write_text(script)
        return subprocess.Popen([sys.executable, "train.py"], cwd=place, env=env)

    calm, struck = tmp_path / "calm", tmp_path / "struck"
    assert start(calm).wait(200) == 0
    for number, code in ((signal.SIGTERM, 83), (signal.SIGKILL, -signal.SIGKILL)):
        (struck / "step").unlink(missing_ok=True)
        process = start(struck, PAUSE_S="0.05", SUBLET_CHECKPOINT_EVERY_S="0.2")
        before = steps_of(struck)
        wait_until(lambda b=before: (struck / "step").exists() and steps_of(struck) > b)
        process.send_signal(number)
        assert process.wait(200) == code
    assert steps_of(struck)
    assert start(struck).wait(200) == 0
    expected, found = torch.load(calm / "model.pt"), torch.load(struck / "model.pt")
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_what_rank_0_alone_has_measured_is_known_to_whoever_is_rank_0_next(tmp_path):
    run = world("judged", tmp_path, module=STRIKE)
    assert run["codes"] == [-signal.SIGKILL, 0]
    assert (tmp_path / "best").read_text().split() == ["0", "1", "4"]


SLOWLY = "__import__('time').sleep(float(__import__('os').environ.get('PAUSE_S', '0'))); open('step', 'w').close()"


def steps_of(place):
    """Of its newest checkpoint; 0 without any."""
    return max((int(path.name.partition("-")[2]) for path in (place / "checkpoints").glob("step-*")), default=0)


def wait_until(reached):
    for _ in range(4000):
        if reached():
            return
        time.sleep(0.05)
    raise TimeoutError
