"""Record what this program leaves to later ones: a state directory, and a line of each message that it says.

    python -m tests.rigs.kept_state tests/data/state-VERSION-COMMIT tests/data/wire-1-COMMIT.jsonl

Once for each version of the kernel; what was recorded of a version that was released is never written again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import sys
import tempfile
import typing
from collections.abc import Mapping
from pathlib import Path

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.runtime.archive import WholeLog
from sublet.runtime.controller.host import Paces
from sublet.runtime.store import MetaKey, Store
from sublet.wire import messages as wire
from sublet.wire.files import Travel
from sublet.wire.lines import to_line
from sublet.wire.messages import Profile
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.story import Story, a_spec, phase, trained, until

PACES = Paces(events_a_snapshot=10, events_a_file=10, history_kept=10)
SAID = {
    str: "x",
    int: 3,
    float: 2.5,
    bool: True,
    float | None: 2.5,
    tuple[str, ...]: ("a", "b"),
    tuple[int, ...]: (1, 2),
    tuple[float, ...]: (1.5, 2.5),
}
SAID[Mapping[str, str]] = {"a": "b"}
SAID[bytes] = b"x"
KINDS = {kind for union in (wire.ToAgent, wire.ToController, wire.FromWorkerMessage) for kind in typing.get_args(union)}
LIMITS = {"spot": Limit(max_nodes=3), "on-demand": Limit(max_nodes=1)}


async def live(story: Story) -> dict[str, object]:
    """What can be told to a kernel, most of it; a job trains when its controller is killed. What that one knew."""
    cloud = story.cloud
    async with story.controller(crash=True) as api:
        cloud.jobs["short-1"] = Training(steps=60)
        await api.submit(a_spec(name="short"))
        await phase(api, "short-1", "finished")
        cloud.jobs["wide-1"] = Training(steps=200_000, batches=(32, 32, 256))  # it measures itself as it trains
        await api.submit(a_spec(name="wide", max_workers=3))
        await trained(api, "wide-1", 3000)
        await api.set_budget(purse_usd=6.5)
        cloud.warn(min(cloud.nodes), 120.0)  # whereupon it is given back in time
        await asyncio.sleep(1.5)
        cloud.reprice("spot", 0.9)
        await asyncio.sleep(2.0)
        cloud.take(min(cloud.nodes))
        await api.pause("wide-1")
        await phase(api, "wide-1", "paused")
        cloud.jobs["long-1"] = Training(steps=1_000_000)
        await api.submit(a_spec(name="long", max_workers=1))
        await trained(api, "long-1", 20)
        await api.resume("wide-1")
        await api.cancel("wide-1")
        await phase(api, "wide-1", "cancelled")
        await until(lambda: _one_is_left(cloud), "its node was not given back")
        controller = api._controller
        now_s = controller.now_s()
        controller.bill.settle(now_s)
        kernel = controller.kernel
        facts = {
            "kernel": KERNEL_VERSION,
            "now_s": now_s,
            "purse_grains": kernel.supply.budget.purse.grains,
            "spent_grains": kernel.ledger.spent(now_s).grains,
            "held": sorted(kernel.cluster.nodes),
            "phases": {job_id: (await api.job(job_id))["phase"] for job_id in ("short-1", "wide-1")},
            "accounts": {job_id: controller.bill.jobs[job_id].total.grains for job_id in ("short-1", "wide-1")},
        }
    return facts


async def _one_is_left(cloud: MemoryCloud) -> bool:
    return len(cloud.nodes) == 1


def record(folder: Path) -> None:
    """All of it, the database packed."""
    with tempfile.TemporaryDirectory() as place:
        story = Story(Path(place), budget=Budget(purse=Money.from_usd(5)), limits=LIMITS, paces=PACES)
        facts = asyncio.run(live(story))
        store = Store(story.folder / "log.sqlite")
        log = WholeLog(store)
        facts |= {"seen": sum(1 for _ in log.lines()), "cut": log.cut, "schema": store.get(MetaKey.SCHEMA)}
        store.close()
        folder.mkdir(parents=True)
        for path in sorted(story.folder.rglob("*.jsonl.gz")):
            target = folder / path.relative_to(story.folder)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
        packed = gzip.compress((story.folder / "log.sqlite").read_bytes(), mtime=0)
        (folder / "log.sqlite.gz").write_bytes(packed)
        (folder / "expected.json").write_text(json.dumps(facts, indent=1) + "\n")


def example(kind: type) -> typing.Any:
    """One with every field said, none of them as it is by default."""
    hints = typing.get_type_hints(kind)
    inner = {wire.FromWorkerMessage: wire.Stepped, Profile | None: Profile, Travel | None: Travel}
    said = {}
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        said[each.name] = example(inner[hint]) if hint in inner else SAID[hint]
    return kind(**said)


def record_lines(path: Path) -> None:
    """Of every kind, by name."""
    path.write_bytes(b"".join(to_line(example(kind)) for kind in sorted(KINDS, key=lambda kind: kind.__name__)))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    record_lines(Path(sys.argv[2]))
