"""The log of a controller's process: short lines, a bounded file, nobody's eyes but the owner's."""

from __future__ import annotations

import os
import subprocess
import sys

from sublet.runtime.settings import Settings, settings_to_json

# The controller's own way in, with something else behind it that has much to say.
TALKS = """
import logging, sys
from sublet.api import main
def talk(state, settings):
    log = logging.getLogger("sublet.somebody")
    for number in range(1500):
        log.warning("number %d says %s", number, "\\x1b[31m\\n" + "x" * 20_000)
    log.warning("the last word")
main._run_or_leave_reason = talk
sys.argv = ["main", sys.argv[1]]
main.main()
"""
MOST_BYTES = 9 << 20


def test_what_strangers_make_it_say_is_cut_and_escaped_and_its_log_stays_small(tmp_path):
    (tmp_path / "settings.json").write_text(settings_to_json(Settings(state_dir=str(tmp_path))), encoding="utf-8")
    path = tmp_path / "controller.log"
    path.write_bytes(b"of an earlier life\n" * 450_000)  # nearly full
    path.chmod(0o600)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as log:
        subprocess.run([sys.executable, "-c", TALKS, str(tmp_path)], stdout=log, stderr=log, check=True, timeout=120)
    text = path.read_text(encoding="utf-8")
    assert text.endswith("the last word\n")
    assert path.stat().st_size < MOST_BYTES
    new = [line for line in text.splitlines() if "says" in line]
    assert new
    assert max(map(len, new)) < 300
    assert "\x1b" not in text
    assert (tmp_path / "controller.log.1").stat().st_size < MOST_BYTES
    assert (tmp_path / "controller.log.1").stat().st_mode & 0o777 == 0o600
