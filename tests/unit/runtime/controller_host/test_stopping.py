"""A controller on an anchor that is to stop: it is asked, and told by a signal where it does not hear."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from sublet.errors import NoController
from sublet.runtime.controller_host import desk, life
from sublet.runtime.controller_host.record import Home, HostRecord, keep, read_record
from sublet_lab.walls import WallOf


class There:
    """An anchor whose controller hears one request in a while, or none; its seconds pass when somebody waits."""

    def __init__(self, folder, monkeypatch, *, hears=(), obeys=True):
        self.running, self.fenced, self.now_s, self.said = True, False, 0.0, []
        self.hears, self.obeys = hears, obeys
        (folder / "aws.toml").write_text('regions=["us-east-1"]\ninstance_types=["g5.xlarge"]\nimage="ami-1"\n')
        facts = {"expires_unix": 0, "kind": "t3", "user": "u", "python": "p", "instance": "i-1", "state_dir": "/s"}
        keep(folder, HostRecord(region="us-east-1", token="", nonce="", home=Home.ANCHOR, **facts))
        self.folder = folder
        monkeypatch.setattr(life, "WALL", WallOf(lambda: self.now_s))
        monkeypatch.setattr(life.asyncio, "sleep", self._pass)
        for name, answer in (("has_ended", False), ("end", None)):
            monkeypatch.setattr(life.instance, name, self._answering(name, answer))
        monkeypatch.setattr(life.instance, "wait_until_on", self._on)
        self.anchor = life.ControllerHost(state_dir=folder, tell=lambda _: None)
        monkeypatch.setattr(self.anchor, "_remote", lambda *_, **__: self)
        monkeypatch.setattr(self.anchor, "_copy_here", self._answering("copy", None))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def module(self, name, verb, *words):
        if verb == "look":
            return json.dumps({"running": self.running, "fenced": self.fenced, "held": True})
        self.said.append(verb)
        self.fenced |= verb == "fence"
        self.running &= not (verb == "stop" and self.obeys)
        return b""

    def ask(self):
        self.said.append("asked")
        self.running &= self.said.count("asked") not in self.hears

    async def _pass(self, seconds):
        self.now_s += seconds

    async def _on(self, calls, record):
        return record

    def _answering(self, name, answer):
        async def answered(*_):
            self.said += [name] if answer is None else []
            return answer

        return answered

    def back(self):
        asyncio.run(self.anchor.back())


def test_one_that_hears_is_asked_and_gets_no_signal(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, hears=[1])
    there.anchor.stop_there = there.ask
    there.back()
    assert there.said == ["asked", "fence", "copy", "end"]


def test_one_that_did_not_hear_it_is_told_by_a_signal_and_all_goes_on(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch)
    there.anchor.stop_there = there.ask
    there.back()
    assert there.said == ["asked", "fence", "stop", "copy", "end"]
    assert there.now_s >= life.HEARD_S
    assert read_record(tmp_path) is None


def test_the_same_command_again_asks_again_also_where_it_is_fenced(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, hears=[2], obeys=False)
    there.anchor.stop_there = there.ask
    with pytest.raises(NoController):
        there.back()
    assert there.fenced
    assert there.running
    there.back()
    assert there.said[-3:] == ["asked", "copy", "end"]


def test_a_start_that_failed_and_has_nobody_to_ask_stops_it_at_once(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch)
    there.back()
    assert there.said == ["fence", "stop", "copy", "end"]
    assert there.now_s < life.HEARD_S


# ---------------------------------------------------------------------- over there


@pytest.mark.parametrize(("word", "ends"), [("sublet.api.main", True), ("another", False)])
def test_the_signal_goes_to_the_controller_and_to_nobody_who_has_its_number_by_now(tmp_path, word, ends):
    argv = [sys.executable, "-c", "print(flush=True); input()", word]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # before it runs, the system may not show its command line
        (tmp_path / "controller.json").write_text(json.dumps({"pid": process.pid}))
        desk.main(["stop", str(tmp_path)])
        process.stdin.close()
        assert (process.wait() == -15) is ends


@pytest.mark.parametrize("text", [None, "{", "{}", '{"pid": 99999999}'])
def test_where_no_controller_serves_nothing_is_done(tmp_path, text):
    if text is not None:
        (tmp_path / "controller.json").write_text(text)
    desk.main(["stop", str(tmp_path)])
