"""`sublet replay` compares orders within one version of the kernel, and says where it does not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from sublet.cli.main import run
from sublet.kernel.journal import replay
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.runtime.settings import Settings, settings_to_json
from sublet.runtime.store import MetaKey, Store
from tests.rigs.life import a_life

OLD = Path(__file__).parents[3] / "data" / "state-0.1-382fdf2"


def test_the_log_of_another_version_is_told_and_not_compared(tmp_path, capsys):
    (tmp_path / "log.sqlite").write_bytes(gzip.decompress((OLD / "log.sqlite.gz").read_bytes()))
    assert run(["replay", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "26 events over 1,199.3 s, written by another version of the kernel: told, and not compared"


def test_a_journal_of_another_version_is_told_and_not_compared(tmp_path, capsys):
    header, *lines = a_life()
    other = json.dumps({**json.loads(header), "kernel": KERNEL_VERSION + 1})
    (tmp_path / "journal").write_text("\n".join([other, *lines]))
    assert run(["replay", str(tmp_path / "journal"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verified"], found["compared"], found["events"]) == (False, 0, len(lines))


def test_survivors_who_trained_on_are_found_in_the_orders(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    market = "--market parcae-ladp --as-gpu T4 --notice-s 0"  # nodes go without a word, and others take long to boot
    simulated = f"simulate pollux-2 --jobs 8 --policy greedy-keep {market} --log {log} --json --quiet"
    assert run(simulated.split()) == 0
    lost = [json.loads(line) for line in log.read_text().splitlines() if '"type":"NodeLost"' in line]
    assert any(order["type"] == "ResizeJob" for line in lost for order in line["actions"])
    capsys.readouterr()
    assert run(["replay", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True


def test_orders_are_compared_from_where_this_version_began(tmp_path, capsys):
    header, *lines = a_life()
    store = Store(tmp_path / "log.sqlite")
    store.put("header", json.dumps({**json.loads(header), "kernel": 0}))
    cut = len(lines) // 2
    for number, line in enumerate(lines, start=1):
        store.append(json.loads(line)["event"]["at_s"], line)
        if number == cut:
            store.add_snapshot(KERNEL_VERSION, json.dumps({"kernel": replay([header, *lines[:cut]]).facts()}))
    store.close()
    assert run(["replay", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"orders of the last {len(lines) - cut} as recorded; the {cut} before were written by another" in last
    store = Store(tmp_path / "log.sqlite")  # an order that this version would not have given
    wrong = json.loads(lines[-1])
    wrong["actions"].append({"type": "ReleaseNode", "node_id": "n1"})
    store.append(40.0, json.dumps(wrong))
    store.close()
    assert run(["replay", str(tmp_path)]) != 0
    assert f"line {len(lines) + 2}: " in capsys.readouterr().err  # the header is the first


def test_the_log_of_a_controller_says_what_it_was_run_with(tmp_path, capsys):
    header, *lines = a_life()
    store = Store(tmp_path / "log.sqlite")
    store.put("header", header)
    for line in lines:
        store.append(json.loads(line)["event"]["at_s"], line)
    run_with = Settings(state_dir="/elsewhere", policy="srtf", hurry=True, speedup=60.0, market=("/a/b/trace.csv",))
    store.put(MetaKey.SETTINGS, settings_to_json(run_with))
    store.close()
    assert run(["replay", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-2] == "run last with provider local, policy srtf in a hurry, market trace.csv, speed-up 60"
    assert run(["replay", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["policy"] == "srtf"
