"""Tests that are killed leave nobody behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sublet.runtime.agent.processes import look

PATIENCE_S = 60.0
POOL = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from tests.rigs.ending import end_with_parent
forks = multiprocessing.get_context("forkserver")
with ProcessPoolExecutor(1, mp_context=forks, initializer=end_with_parent) as pool:
    print(pool.submit(os.getpid).result(), pool.submit(os.getppid).result(), flush=True)
    time.sleep(1000)
"""


def test_a_fork_server_and_its_processes_end_with_tests_that_are_killed():
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True, cwd=root) as tests:
        pids = [int(word) for word in tests.stdout.readline().split()]
        assert all(look(pid) for pid in pids)
        os.kill(tests.pid, signal.SIGKILL)
    until_s = time.monotonic() + PATIENCE_S
    while any(left := [pid for pid in pids if look(pid)]) and time.monotonic() < until_s:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
