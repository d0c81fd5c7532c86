"""A controller is started on an anchor that is there: what an earlier one left does not count, its words are told."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from sublet.errors import Refused
from sublet.runtime.controller_host import desk, life
from sublet.runtime.controller_host.record import Home, HostRecord, keep
from sublet.runtime.settings import Settings
from sublet_lab.walls import WallOf

WELL = {"lacks": [], "held": True, "fenced": False, "failure": "", "last": ""}
OFF = {"kept": False, "running": False, "serves": False}
SHORT_OF_SERVING = {"kept": True, "running": True, "serves": False}
SERVES = {"kept": True, "running": True, "serves": True}
UNKEPT = {"kept": False, "running": True, "serves": True}


class There:
    """An anchor that says what it is told to say, look by look; its seconds pass when somebody waits."""

    def __init__(self, folder, monkeypatch, *looks):
        self.now_s, self.verbs, self.told = 0.0, [], []
        self.looks = [{**WELL, **each} for each in looks]
        (folder / "aws.toml").write_text('regions=["us-east-1"]\ninstance_types=["g5.xlarge"]\nimage="ami-1"\n')
        facts = {"expires_unix": 0, "kind": "t3", "user": "u", "python": "p", "instance": "i-1", "state_dir": "/s"}
        record = keep(folder, HostRecord(region="us-east-1", token="", nonce="", home=Home.ANCHOR, **facts))
        monkeypatch.setattr(life, "WALL", WallOf(lambda: self.now_s))
        monkeypatch.setattr(life.asyncio, "sleep", self._pass)
        monkeypatch.setattr(life.instance, "has_ended", self._answering(answer=False))
        monkeypatch.setattr(life.instance, "find", self._answering(answer=[]))
        monkeypatch.setattr(life.instance, "wait_until_on", self._answering(answer=record))
        monkeypatch.setattr(life.instance, "stay_when_off", self._answering("stay", None))
        self.anchor = life.ControllerHost(state_dir=folder, tell=self.told.append)
        monkeypatch.setattr(self.anchor, "_met", self._answering(answer=record))
        monkeypatch.setattr(self.anchor, "_remote", lambda *_, **__: self)
        self.settings = Settings(state_dir=str(folder))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def module(self, name, verb, *words):
        if verb == "look":
            return json.dumps(self.looks.pop(0) if len(self.looks) > 1 else self.looks[0])
        self.verbs.append(verb)
        return b""

    async def _pass(self, seconds):
        self.now_s += seconds

    def _answering(self, name="", answer=None):
        async def answered(*_):
            self.verbs += [name] if name else []
            return answer

        return answered

    def up(self):
        asyncio.run(self.anchor.up(self.settings))


def test_an_anchor_that_was_off_is_up_when_its_new_controller_serves_and_not_before(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, OFF, SHORT_OF_SERVING, SHORT_OF_SERVING, SERVES)
    there.up()
    assert there.verbs == ["mind", "stay", "start"]
    assert there.now_s == 2.0  # a look each second, and two of them found nobody


def test_a_controller_whose_keeper_was_killed_gets_another(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, UNKEPT, SERVES)
    there.up()
    assert there.verbs == ["mind", "stay", "start"]


def test_one_that_runs_is_left_as_it_is(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, SERVES)
    there.up()
    assert there.verbs == ["mind"]


def test_one_that_does_not_live_is_told_by_its_own_words_and_so_is_what_the_anchor_costs(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, OFF, SHORT_OF_SERVING, {**OFF, "failure": "2\nthe disk is full"})
    with pytest.raises(Refused, match="the disk is full"):
        there.up()
    assert "i-1 stays" in there.told[-1]
    assert "turns itself off 10 minutes after" in there.told[-1]


def test_where_nothing_lives_and_nothing_is_said_nobody_waits_for_it(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, {**OFF, "last": "ImportError: no boto3"})
    with pytest.raises(Refused, match="no boto3"):
        there.up()
    assert there.now_s < life.UP_S / 2


def test_why_it_had_turned_itself_off_is_told_when_it_is_started_again(tmp_path, monkeypatch):
    there = There(tmp_path, monkeypatch, {**OFF, "failure": "2\nthe disk was full"}, SERVES)
    there.up()
    assert "the disk was full" in there.told[0]


# ---------------------------------------------------------------------- over there


def test_what_a_machine_that_went_off_left_is_no_controller_and_goes_with_the_next_start(tmp_path, monkeypatch, capsys):
    spawned = []
    monkeypatch.setattr(desk, "_spawn", lambda folder, *words: spawned.append(words))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "controller.json").write_text(json.dumps({"host": "127.0.0.1", "port": 1, "pid": 1}))
    (tmp_path / "start-failure.txt").write_text("2\nof another day")
    desk.main(["look", str(tmp_path)])
    facts = json.loads(capsys.readouterr().out)
    assert (facts["serves"], facts["running"], facts["kept"]) == (False, False, False)
    desk.main(["start", str(tmp_path), "i-1", "us-east-1"])
    assert not (tmp_path / "controller.json").exists()
    assert not (tmp_path / "start-failure.txt").exists()
    assert spawned == [("sublet.runtime.controller_host.watchdog", "i-1", "us-east-1")]


def test_a_state_that_is_handed_over_does_not_leave_its_machine_on_for_ever(tmp_path, monkeypatch):
    spawned = []
    monkeypatch.setattr(desk, "_spawn", lambda folder, *words: spawned.append(words))
    desk.main(["fence", str(tmp_path)])
    assert spawned == [("sublet.runtime.controller_host.idle",)]


def test_words_that_a_controller_removes_as_somebody_looks_are_none(tmp_path):
    words, over = tmp_path / "start-failure.txt", threading.Event()

    def start_again():
        while not over.is_set():
            words.write_text("2\nno such policy")
            words.unlink()

    starting = threading.Thread(target=start_again)
    starting.start()
    try:
        assert {desk._text(words) for _ in range(20_000)} <= {"", "2\nno such policy"}
    finally:
        over.set()
        starting.join()
