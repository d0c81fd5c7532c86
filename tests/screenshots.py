"""Pictures of every view of the page, for the documentation: `make screenshots`, into docs/pictures.

A real controller over a cloud in memory, with jobs that train, a notice, a loss and a resize; Debian's Chromium looks.
Nodes there have no GPU: what their agents tell of some is made up, in the words in which real ones tell it, and the
documentation says so. `python -m tests.screenshots job cost` takes these views alone.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from sublet.client import Fleet
from sublet.runtime.jobs.file import job_from_command
from sublet.wire import messages as wire
from tests.rigs.console import browser, fleet

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
SIZE = {"width": 1100, "height": 760}
PHONE = {"width": 360, "height": 740}
STEPS = {"mlp": 300, "bert": 60_000, "resnet": 9_000, "gpt-small": 30_000}
QUALITY = 60
T4_BYTES = 16_106_127_360
JOB = "name: next-job\nworkdir: {folder}\nrun: python -c 'print(1)'\nelastic: {{workers: 1..2}}\nbudget: {{total: 5}}\n"
BUSY = (0.94, 0.91, 0.97)  # made up, as is the memory taken: 11 GB and some


def main() -> None:
    """All of them."""
    FOLDER.mkdir(exist_ok=True)
    with browser() as chromium, tempfile.TemporaryDirectory() as folder, fleet(Path(folder), STEPS) as there:
        ours = Fleet(replace(there.client, timeout_s=120.0))
        _live(ours, there)
        for scheme in ("light", "dark"):
            page = chromium.new_context(color_scheme=scheme, viewport=SIZE).new_page()
            page.goto(there.link())
            page.get_by_role("heading", name="Now").wait_for()
            _take(page, there, scheme)
        phone = chromium.new_context(viewport=PHONE).new_page()
        phone.goto(there.link())
        phone.get_by_role("heading", name="Now").wait_for()
        if _is_wanted("now"):
            _save(phone, "now-phone")


def _is_wanted(view: str) -> bool:
    return view.partition("/")[0] in sys.argv[1:] or not sys.argv[1:]


def _tell_gpus(there, job_id: str) -> None:
    """As agents do every five seconds where there are GPUs."""
    for number, worker in enumerate(_workers_of(there, job_id)):
        facts = {"gpus": 1, "busy": BUSY[number % len(BUSY)], "memory_of_bytes": T4_BYTES}
        taken = 11_400_000_000 + 210_000_000 * number
        seen = wire.GpuSeen(worker_id=worker.id, memory_bytes=taken, **facts)
        there.do(there.cloud._say, worker.node_id, seen)


def _live(ours: Fleet, there) -> None:
    """Some minutes of a fleet."""
    ours.set_budget(burn_limit_usd_per_h=1.5, purse_usd=60.0)
    for name, steps in STEPS.items():
        facts = {"sdk": True, "work": float(steps), "samples_per_s": 20.0}
        ours.submit(replace(job_from_command(["true"], name=name, workers=(1, 3)), **facts))
    ours.budgets.set("team", "vision", amount_usd=500, period="month")
    ours.line.post("/v1/tokens", {"name": "ann", "scope": "user", "team": "vision"})
    ours.wait("bert", until={"running"})
    ours.wait("mlp", timeout_s=60.0)
    ours.scale("resnet", 1, 2)
    for lose in (there.cloud.warn, there.cloud.take):
        node_ids = ours.job("gpt-small")["node_ids"] or ours.job("bert")["node_ids"]
        there.do(lose, node_ids[0], *((90.0,) if lose == there.cloud.warn else ()))
        time.sleep(4.0)


def _print_some(there, job_id: str) -> None:
    """Nothing runs there that would print: lines are made up, and the documentation says so."""
    folder = there.state.path / "jobs" / job_id / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for worker in _workers_of(there, job_id):
        lines = [f"step {step}: loss {4.2 / (1 + step / 300):.3f}" for step in range(100, 1100, 100)]
        (folder / f"{worker.id}.log").write_text("\n".join(lines) + "\n")


def _workers_of(there, job_id: str) -> list[Any]:
    return [w for node in list(there.cloud.nodes.values()) for w in node.workers.values() if w.job_id == job_id]


def _take(page, there, scheme: str) -> None:
    for view in ("now", "timeline", "job/bert-1", "what-if", "logs/bert-1", "events", "cost", "submit"):
        if (scheme == "dark" and view not in ("now", "timeline")) or not _is_wanted(view):
            continue
        if view.startswith("logs/"):
            _print_some(there, "bert-1")
        if view.startswith("job/"):
            _tell_gpus(there, "bert-1")
        page.goto(f"{there.client.address}/#{view}")
        page.get_by_role("heading", level=2).wait_for()
        if view == "submit":
            page.get_by_label("Job file").fill(JOB.format(folder=there.state.path.parent))
            page.get_by_text("next-job is right").wait_for()
        if view == "timeline":
            box = page.locator(".u-over").first.bounding_box()
            told = there.client.get("/v1/events", limit=10_000)["events"]
            noticed = next(event["at_s"] for event in told if event["kind"] == "NodeNoticed")
            share = noticed / there.client.get("/v1/health")["now_s"]
            page.mouse.move(box["x"] + share * box["width"], box["y"] + 30)
        if view == "what-if":
            page.get_by_label("Hours to look ahead").fill("12")
            page.get_by_role("button", name="Look ahead").click()
            page.get_by_role("heading", name="As it is").wait_for(timeout=90_000)
        time.sleep(1.5)  # charts are drawn with what is told next
        _save(page, view.partition("/")[0] + ("" if scheme == "light" else "-dark"))


def _save(page, name: str) -> None:
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    picture = picture.crop((0, 0, picture.width, min(picture.height, 1500)))
    path = FOLDER / f"{name}.webp"
    picture.save(path, quality=QUALITY, method=6)
    sys.stdout.write(f"{path.name}: {picture.width} x {picture.height}, {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
