"""A script without the SDK, as light as one can be: `python counting_script.py STEPS STEP_MS [EXIT_CODE]`.

It counts steps in a file below SUBLET_CHECKPOINT_DIR, goes on from there, and saves when it is told to end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

steps, step_s = int(sys.argv[1]), float(sys.argv[2]) / 1e3
saved = Path(os.environ["SUBLET_CHECKPOINT_DIR"]) / "step"
saved.parent.mkdir(parents=True, exist_ok=True)
made = int(saved.read_text(encoding="ascii")) if saved.exists() else 0
first = int(os.environ.get("RANK", "0")) == 0


def save() -> None:
    """Whole or not at all."""
    if first:
        draft = saved.with_name(f"draft.{os.getpid()}")
        draft.write_text(str(made), encoding="ascii")
        draft.replace(saved)


def end(number: int, _frame: FrameType | None) -> None:
    """Told to go."""
    save()
    os._exit(128 + number)


signal.signal(signal.SIGTERM, end)
print(f"from step {made}", flush=True)
while made < steps:
    time.sleep(step_s)
    made += 1
    if made % 10 == 0:
        save()
        print(f"step {made}", flush=True)
save()
print("done", flush=True)
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
