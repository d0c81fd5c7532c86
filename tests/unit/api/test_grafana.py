"""The dashboard of Grafana asks for metrics that there are."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from sublet.api.metrics import exposition
from tests.rigs.in_memory_api import RUNNING, InMemoryApi
from tests.rigs.story import a_spec

FILE = Path(__file__).parents[3] / "examples" / "grafana.json"


def test_every_panel_asks_for_metrics_and_labels_that_there_are(tmp_path):
    async def told():
        api = InMemoryApi(tmp_path)
        job_id = (await api.submit(a_spec()))["job_id"]
        api.change(job_id, **RUNNING)
        await api.budgets.set(level="team", name="vision", amount_usd=5.0)
        text, _ = await exposition(api)
        return text.decode()

    text = asyncio.run(told())
    there = {}
    for name, labels in re.findall(r"^(sublet_\w+)(\{.*?\})? ", text, re.MULTILINE):
        there.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    panels = json.loads(FILE.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for target in (target for panel in panels for target in panel["targets"]):
        (name,) = re.findall(r"sublet_\w+", target["expr"])
        assert name in there, target
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= there[name], target
        assert set(re.findall(r"(\w+)!?=", target["expr"])) <= there[name], target
