"""What only a real process can show: start-up, streams, signals, pipes and completion."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUBLET = Path(sys.executable).with_name("sublet")

pytestmark = pytest.mark.skipif(not SUBLET.exists(), reason="the entry point is not installed beside this Python")


def sublet(*arguments, **environment):
    env = {**os.environ, **environment}
    return subprocess.run([SUBLET, *arguments], capture_output=True, text=True, timeout=120, check=False, env=env)


def on_a_terminal(arguments, **environment):
    """What the process writes to a terminal of 200 columns that is both its output and its error stream."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        [SUBLET, *arguments],
        stdout=side,
        stderr=side,
        env={**os.environ, "COLUMNS": "200", "TERM": "xterm", **environment},
    )
    os.close(side)
    said = b""
    try:
        while chunk := os.read(main, 65536):
            said += chunk
    except OSError:  # Linux reports the end of a terminal as an error
        pass
    os.close(main)
    assert process.wait(timeout=120) == 0
    return said.decode()


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from sublet.cli.main import run; run(['--help']); run(['simulate', '--help']);"
        "heavy = {'numpy', 'scipy', 'matplotlib', 'rich.console', 'sublet.sim', 'sublet.market'} & set(sys.modules);"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_json_goes_to_standard_output_and_nothing_else_does(tmp_path):
    done = sublet("simulate", "pollux-1", "--jobs", "3", "--json", "--report", str(tmp_path / "report"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["metrics"]["finished"] == 3
    *progress, last = done.stderr.splitlines()
    assert last == f"report: {tmp_path / 'report' / 'report.html'}"
    assert all(line.startswith("max-speedup: ") for line in progress)  # told where it takes longer than a moment


def test_an_error_reaches_the_shell():
    done = sublet("simulate", "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no workload is called 'nosuch'")


def test_no_color_leaves_no_escape_codes_in_a_table():
    assert "\x1b[1m" in on_a_terminal(["policies"])
    assert "\x1b" not in on_a_terminal(["policies"], NO_COLOR="1")


def test_a_terminal_shows_a_bar_and_quiet_none():
    command = ["simulate", "pollux-1", "--jobs", "5"]
    assert "5 of 5 jobs" in on_a_terminal(command)
    assert "5 of 5 jobs" not in on_a_terminal([*command, "--quiet"])


def test_a_reader_that_leaves_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"{SUBLET} offers --limit 0 | head -1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith("offer")
    assert done.stderr == ""


def test_an_interrupt_ends_a_run_with_130_and_leaves_nothing_half_written(tmp_path):
    listen = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(  # a test that runs in the background inherits deaf ears for Ctrl-C
        [
            sys.executable,
            "-c",
            listen,
            SUBLET,
            "simulate",
            "poisson:n=50000,rate=1000",
            "--log",
            tmp_path / "log.jsonl",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any(tmp_path.iterdir()) and process.poll() is None:  # until the run has begun
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"
    assert not any(tmp_path.iterdir())


def test_a_shell_completes_names():
    environment = {"_SUBLET_COMPLETE": "complete_bash", "COMP_WORDS": "sublet compare x --policies fifo,eq"}
    assert sublet(COMP_CWORD="4", **environment).stdout.split() == ["fifo,equal"]


def test_a_terminal_that_knows_only_ascii_gets_ascii():
    done = sublet("policies", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
