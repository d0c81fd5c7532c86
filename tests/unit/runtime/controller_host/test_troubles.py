"""What fails beside a controller on its anchor does not end it, and is told by it; what lacks is known before."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from sublet.errors import BadInput, MissingExtra
from sublet.machine import remote
from sublet.runtime.controller.watch.alarms import Alarms, Gauges
from sublet.runtime.controller_host import desk, idle, life, watchdog
from sublet.runtime.controller_host.idle import KEEPER
from sublet.runtime.controller_host.instance import launch_request
from sublet.runtime.controller_host.record import HostRecord
from sublet.runtime.controller_host.troubles import FILE, OFTEN, REMIND_S, UNKEPT, Troubles, TroubleWatch
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.settings import Settings
from sublet_lab.walls import WallOf

CONFIG = """
regions = ["us-east-1"]
instance_types = ["g5.xlarge"]
image = "ami-1"
endpoint_url = "http://127.0.0.1:9"
anchor_profile = "role"
anchor_backup = "s3://bucket/anchor"
"""
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
LIVES = f"""
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
for _ in range(600):
    if (folder / "{FILE}").exists():
        break
    time.sleep(0.1)
(folder / "lived").touch()
"""


@pytest.fixture
def without_obstore(monkeypatch):
    monkeypatch.setattr(remote, "find_spec", lambda name: None)


def test_a_keeper_that_cannot_copy_the_state_keeps_the_controller_and_says_so(tmp_path, monkeypatch, without_obstore):
    (tmp_path / "aws.toml").write_text(CONFIG)
    (tmp_path / "log.sqlite").touch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr(watchdog, "COMMAND", (sys.executable, "-c", LIVES))
    monkeypatch.setattr(watchdog, "_renew", lambda *_: None)
    monkeypatch.setattr(watchdog, "BACKUP_S", 0.01)
    monkeypatch.setattr(watchdog, "LOOK_S", 0.01)
    monkeypatch.setattr(idle, "main", lambda folder: None)
    watchdog.main([str(tmp_path), "i-1", "us-east-1"])
    assert (tmp_path / "lived").exists()
    assert "obstore" in (tmp_path / FILE).read_text()


def test_a_failure_is_told_the_third_time_in_a_row_and_no_longer_once_it_is_over(tmp_path):
    troubles = Troubles(tmp_path)
    for _ in range(OFTEN - 1):
        troubles.failed("the backup", "no network")
    troubles.done("the backup")
    troubles.failed("the backup", "no network")
    assert not (tmp_path / FILE).exists()
    for _ in range(OFTEN - 1):
        troubles.failed("the backup", "no network")
    assert json.loads((tmp_path / FILE).read_text()) == {"the backup": "the backup fails: no network"}
    troubles.done("the backup")
    assert json.loads((tmp_path / FILE).read_text()) == {}


def test_the_controller_sounds_an_alarm_once_and_again_after_an_hour(tmp_path):
    told, now_s = [], [0.0]
    wall = WallOf(lambda: now_s[0])
    watch = TroubleWatch(tmp_path, Alarms(Gauges(), lambda row: told.append(row.text), wall=wall), wall)
    (tmp_path / FILE).write_text(json.dumps({"the backup": "the backup fails: no network"}))
    argv = [sys.executable, "-c", HOLD, str(tmp_path / KEEPER)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        watch.look()
        now_s[0] += REMIND_S - 1
        watch.look()
        assert told == ["the backup fails: no network"]
        now_s[0] += 1
        watch.look()
        assert told == ["the backup fails: no network"] * 2
        process.kill()
    watch.look()
    assert told[2:] == [UNKEPT]


# ---------------------------------------------------------------------- known before


def test_what_a_backup_needs_is_installed_with_the_rest(tmp_path):
    facts = {"region": "us-east-1", "token": "t", "nonce": "n", "expires_unix": 0, "kind": "t", "user": "u"}
    record = HostRecord(**facts, python="p")

    def installed(**more):
        config = AwsConfig(regions=("us-east-1",), instance_types=("g5.xlarge",), image="ami-1", **more)
        text = launch_request(record, config, server="s", home="h", key="k")["UserData"]
        return [line for line in text.splitlines() if "pip install" in line]

    assert "obstore" in installed(anchor_install="boto3", anchor_backup="s3://b/a")[0]
    assert installed(anchor_install="obstore>=0.6", anchor_backup="s3://b/a")[0].count("obstore") == 1
    assert "obstore" not in installed(anchor_install="boto3")[0]


def test_what_is_lacking_there_for_a_backup_is_named(tmp_path, capsys, monkeypatch):
    known = desk.importlib.util.find_spec
    monkeypatch.setattr(desk.importlib.util, "find_spec", lambda name: None if name == "obstore" else known(name))
    desk.main(["look", str(tmp_path), "obstore"])
    assert json.loads(capsys.readouterr().out)["lacks"] == ["obstore"]


def test_an_anchor_that_cannot_copy_its_state_is_not_given_it(tmp_path, monkeypatch):
    (tmp_path / "aws.toml").write_text(CONFIG)
    said = []

    class Bare:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            pass

        async def module(self, name, *words):
            said.append(words)
            return json.dumps({"lacks": list(words[2:])})

    anchor = life.ControllerHost(state_dir=tmp_path, tell=lambda _: None)
    monkeypatch.setattr(anchor, "_remote", lambda record: Bare())
    facts = {"expires_unix": 0, "kind": "t3", "user": "u", "python": "p", "state_dir": "/s"}
    record = HostRecord(region="us-east-1", token="", nonce="", **facts)
    with pytest.raises(BadInput, match="has no obstore"):
        asyncio.run(anchor._given(record, Settings(state_dir=str(tmp_path))))
    assert said == [("look", "/s", "obstore")]


def test_a_laptop_that_could_not_read_the_backup_rents_nothing(tmp_path, without_obstore):
    (tmp_path / "aws.toml").write_text(CONFIG)  # whoever asks there gets no answer
    anchor = life.ControllerHost(state_dir=tmp_path, tell=lambda _: None)
    with pytest.raises(MissingExtra):
        asyncio.run(anchor.up(Settings(state_dir=str(tmp_path))))
