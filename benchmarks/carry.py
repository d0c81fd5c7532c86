"""What it costs to carry a checkpoint from a node's own disk to the controller, and back to another node.

    python -m benchmarks.carry                         256 MB of random bytes, over TLS on this machine
    python -m benchmarks.carry --against OTHER/TREE    ... and the same by the code of another tree, in turns

The other tree must have `sublet_lab.tiers.carried`, too. What carries is what ships. Figures are MiB for each
second that both ends used a processor, for hashing at the node, the line and the disk; beside them a plain copy of the
same files with one fsync each, and their SHA-256. What comes back is compared to the byte.
"""

from __future__ import annotations

import argparse
import asyncio
import filecmp
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sublet_lab.tiers.carried import Carrying

FILES_EACH = 4
CAPTIONS = {"to": "to the controller", "back": "back to a node", "copy": "cp and sha256"}


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another tree of this project")
    parser.add_argument("--json", action="store_true", help="one run, its figures alone")
    chosen = parser.parse_args()
    if chosen.json:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(measured(Path(folder), chosen.megabytes))))
        return
    trees = {"this tree": Path(__file__).parents[1], **({"the other": chosen.against} if chosen.against else {})}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(chosen.repeats):
        for name, tree in trees.items():
            rows[name].append(_in_tree(tree, chosen.megabytes))
    print(f"{chosen.megabytes} MiB in {FILES_EACH} files, MiB per CPU second of both ends, medians of {chosen.repeats}")
    print(f"  {'':<20}" + "".join(f"{name:>12}" for name in trees) + (f"{'ratio':>10}" if chosen.against else ""))
    for key, caption in CAPTIONS.items():
        found = [statistics.median(row[key] for row in rows[name]) for name in trees]
        ratio = f"{found[0] / found[1]:>9.1f}x" if chosen.against else ""
        print(f"  {caption:<20}" + "".join(f"{each:>12.0f}" for each in found) + ratio, flush=True)


def _in_tree(tree: Path, megabytes: int) -> dict[str, float]:
    env = {**os.environ, "PYTHONPATH": f"{tree.resolve() / 'src'}{os.pathsep}{tree.resolve() / 'lab' / 'src'}"}
    command = [sys.executable, __file__, "--json", "--megabytes", str(megabytes)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def measured(folder: Path, megabytes: int) -> dict[str, float]:
    """MiB per CPU second, by way."""
    line = Carrying(folder)
    await line.open()
    source = line.place_of("first")
    source.mkdir(parents=True)
    for index in range(FILES_EACH):
        (source / f"weights-{index}.bin").write_bytes(os.urandom((megabytes << 20) // FILES_EACH))
    to, back = await line.carry("first", sdk=False), await line.bring("second")
    await line.close()
    names = [path.name for path in source.iterdir()]
    same = filecmp.cmpfiles(source, line.place_of("second"), names, shallow=False)
    assert len(same[0]) == FILES_EACH, same
    return {"to": megabytes / to.cpu_s, "back": megabytes / back.cpu_s, "copy": megabytes / _copy(folder, source)}


def _copy(folder: Path, source: Path) -> float:
    target = folder / "copy"
    target.mkdir()
    before_s = time.process_time()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
        with (target / path.name).open("rb") as file:
            os.fsync(file.fileno())
            hashlib.file_digest(file, "sha256")
    return time.process_time() - before_s


if __name__ == "__main__":
    main()
