"""All forty scenarios, in full: `make scenarios`, or `python -m tests.scenarios [NUMBER...] [--json FILE]`.

Prints a table and writes it as JSON. A scenario is met where its test passes; met in part where the test passes and
says what it does not cover; not met where the product does not do it yet (a strict xfail: the day it does, the run says
so).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

WORST = ("FAILED", "not run", "not met", "in part", "met")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main() -> None:
    """Run, and show; exits with 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=int, nargs="*", help="of scenarios; all without")
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "scenarios.json")
    parser.add_argument("--quick", action="store_true", help="in the size that `make test` runs")
    asked = parser.parse_args()
    rows = tempfile.NamedTemporaryFile("r", suffix=".jsonl", encoding="utf-8")  # noqa: SIM115 - read below
    env = {**os.environ, "SCENARIOS_JSON": rows.name, "OMP_NUM_THREADS": "1"}
    if not asked.quick:
        env["SCENARIOS"] = "all"
    names = " or ".join(f"test_{number:02d}_" for number in asked.numbers)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "900", str(HERE)]
    code = subprocess.run([*command, *(["-k", names] if names else [])], env=env, cwd=ROOT, check=False).returncode
    found = together([json.loads(line) for line in rows])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = {"commit": commit.stdout.strip(), "scenarios": found}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(table(found))
    sys.exit(code)


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each scenario, whose tests may be several: it is as well met as the worst of them."""
    found: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["number"], row["test"])):
        kept = found.setdefault(row["number"], {**row, "tests": []})
        kept["tests"].append(row["test"])
        if kept["tests"] == [row["test"]]:
            continue
        kept["state"] = min(kept["state"], row["state"], key=WORST.index)
        kept["level"] = ", ".join(dict.fromkeys(f"{kept['level']}, {row['level']}".split(", ")))
        for name in ("seconds", "cpu_s"):
            kept[name] = round(kept[name] + row[name], 2)
        for name in ("why", "figure"):
            kept[name] = "; ".join(dict.fromkeys(text for text in (kept[name], row[name]) if text))
    return [found[number] for number in sorted(found)]


def table(rows: list[dict[str, Any]]) -> str:
    """For a person; Markdown, so that it can be put into a page."""
    lines = ["| # | fault | level | state | figure of this run | what is missing |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row["number"], row["fault"], row["level"], row["state"], row["figure"], row["why"])
        lines.append("| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    count = Counter(str(row["state"]) for row in rows)
    lines.append("")
    spent = f"{sum(row['cpu_s'] for row in rows):.0f} s of a processor"
    lines.append(", ".join([*(f"{count[state]} {state}" for state in sorted(count)), spent]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
