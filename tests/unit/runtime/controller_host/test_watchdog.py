"""When a controller that has ended is started again, and when nobody keeps it any more."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from itertools import count

import pytest

from sublet.errors import SubletError
from sublet.runtime.controller_host import idle, watchdog
from sublet.runtime.controller_host.idle import CONTROLLER, DESK, KEEPER, is_held
from sublet.runtime.controller_host.troubles import FILE, Troubles
from sublet.runtime.controller_host.watchdog import MOST_SHORT, SHORT_S, STALE, after, is_over, is_spent
from sublet_lab.walls import WallOf
from tests.rigs.in_memory_api import served

CONFIG = 'regions=["us-east-1"]\ninstance_types=["g5.xlarge"]\nimage="ami-1"\nendpoint_url="http://127.0.0.1:9"\n'
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"


@pytest.mark.parametrize(
    ("code", "fenced", "again"),
    [(0, False, False), (STALE, False, False), (1, False, True), (-9, False, True), (-9, True, False)],
)
def test_one_that_was_killed_is_started_again_and_one_that_has_ended_or_was_handed_over_is_not(code, fenced, again):
    assert after(code, SHORT_S + 1, 0, fenced=fenced)[0] is again


def test_one_that_never_lives_long_is_given_up_and_a_long_life_is_a_new_beginning():
    tries, short, again = 0, 0, True
    while again:
        again, short = after(1, 1.0, short, fenced=False)
        tries += 1
    assert tries == MOST_SHORT
    assert after(1, SHORT_S, MOST_SHORT - 1, fenced=False) == (True, 0)


class ControllerHost:
    """A folder on a machine that is turned off where somebody looks; `program` stands for the controller."""

    def __init__(self, folder, monkeypatch, program):
        self.folder, self.offs = folder, []
        for name, value in (("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "us-east-1")):
            monkeypatch.setenv(name, value)
        (folder / "aws.toml").write_text(CONFIG)
        monkeypatch.setattr(watchdog, "COMMAND", (sys.executable, "-c", program))
        self.waits = []
        monkeypatch.setattr(watchdog, "_wait", self.waits.append)
        monkeypatch.setattr(watchdog, "LOOK_S", 0.05)
        self.watches = threading.Event()  # it watches a controller, and does its first chore
        monkeypatch.setattr(watchdog, "_renew", lambda *_: self.watches.set())
        monkeypatch.setattr(idle, "IDLE_S", 0.0)
        monkeypatch.setattr(idle, "turn_off", self.offs.append)

    def keep(self):
        watchdog.main([str(self.folder), "i-1", "us-east-1"])

    def read(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""


def test_one_that_cannot_live_leaves_its_words_and_the_machine_turns_itself_off(tmp_path, monkeypatch):
    program = "import sys; print('boom'); open(sys.argv[1] + '/lives', 'a').write('x'); sys.exit(3)"
    there = ControllerHost(tmp_path, monkeypatch, program)
    (tmp_path / "controller.json").write_text("{}")  # of one that was killed
    there.keep()
    assert there.read("lives") == "x" * MOST_SHORT
    assert "boom" in there.read("start-failure.txt")
    assert "no controller lives here" in there.offs[0]
    assert not is_held(tmp_path, KEEPER)
    assert not (tmp_path / "controller.json").exists()


def test_one_that_crashes_again_and_again_after_long_lives_is_started_later_each_time_and_that_is_told(
    tmp_path, monkeypatch
):
    """As an init system does. Five short lives in a row would end it for good; these are none."""
    program = """
import pathlib, sys
lives = pathlib.Path(sys.argv[1], "lives")
lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
print("first words", flush=True)
print("out of memory", flush=True)
sys.exit(0 if len(lives.read_text()) > 8 else 9)
"""
    there, told = ControllerHost(tmp_path, monkeypatch, program), []
    monkeypatch.setattr(watchdog, "SHORT_S", 0.0)
    monkeypatch.setattr(watchdog, "_wait", lambda s: (there.waits.append(s), told.append(there.read(FILE))))
    there.keep()
    assert there.waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert told[1] == ""
    assert json.loads(told[2]) == {
        "the controller": "the controller crashes again and again (3 times within an hour), and was started 20 s "
        "later; it ended with 9, its last words: out of memory"
    }
    assert "(8 times within an hour), and was started 300 s later" in told[-1]


def test_crashes_of_more_than_an_hour_ago_are_forgotten(tmp_path):
    now, troubles = [0.0], Troubles(tmp_path)
    crashes = watchdog._Crashes(troubles, WallOf(lambda: now[0]))
    for _ in range(3):
        crashes.note(9, "")
    assert "its last words: none" in (tmp_path / FILE).read_text()
    now[0] = 3599.0
    crashes.forgetting().do()
    assert "its last words" in (tmp_path / FILE).read_text()
    now[0] = 3600.0
    crashes.forgetting().do()
    assert json.loads((tmp_path / FILE).read_text()) == {}
    assert crashes.note(9, "") == 5.0


def test_its_own_words_count_more_than_those_of_who_keeps_it(tmp_path, monkeypatch):
    program = "import sys; open(sys.argv[1] + '/start-failure.txt', 'w').write('2\\nno such policy'); sys.exit(2)"
    there = ControllerHost(tmp_path, monkeypatch, program)
    there.keep()
    assert there.read("start-failure.txt") == "2\nno such policy"


def test_where_the_keeper_itself_fails_its_words_are_left_as_well(tmp_path, monkeypatch):
    there = ControllerHost(tmp_path, monkeypatch, "pass")
    (tmp_path / "aws.toml").unlink()
    with pytest.raises(SubletError):
        there.keep()
    assert "aws.toml" in there.read("start-failure.txt")


def test_a_controller_that_lives_on_after_its_keeper_was_killed_is_kept_by_the_next(tmp_path, monkeypatch):
    there = ControllerHost(tmp_path, monkeypatch, "import sys; open(sys.argv[1] + '/lives', 'a').write('x')")
    argv = [sys.executable, "-c", HOLD, str(tmp_path / CONTROLLER)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        keeping = threading.Thread(target=there.keep)
        keeping.start()
        assert there.watches.wait(120)
        assert is_held(tmp_path, KEEPER)
        assert not (tmp_path / "controller.log").exists()  # a second one would be refused by the lock, again and again
        process.kill()
    keeping.join()
    assert there.read("lives") == "x"


# ---------------------------------------------------------------------- a machine that nobody wants


def test_a_machine_without_a_controller_is_left_alone_after_ten_minutes_and_not_before(tmp_path):
    seconds = count()
    assert idle.is_left_alone(tmp_path, WallOf(lambda: float(next(seconds))), look_s=0.0)
    assert next(seconds) >= idle.IDLE_S


def test_whoever_asks_at_its_desk_begins_the_ten_minutes_anew(tmp_path):
    seconds, asked = count(), tmp_path / DESK

    def monotonic():
        second = next(seconds)
        if second == idle.IDLE_S / 2:
            asked.touch()
        return float(second)

    assert idle.is_left_alone(tmp_path, WallOf(monotonic), look_s=0.0)
    assert next(seconds) >= 1.5 * idle.IDLE_S


@pytest.mark.parametrize("name", [CONTROLLER, KEEPER])
def test_a_machine_on_which_somebody_keeps_a_controller_is_not_left_alone(tmp_path, name):
    argv = [sys.executable, "-c", HOLD, str(tmp_path / name)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert not idle.is_left_alone(tmp_path)
        process.kill()


def test_a_machine_that_was_not_rented_for_a_controller_is_never_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    said = []
    monkeypatch.setattr(idle.subprocess, "run", lambda command, **_: said.append(command))
    idle.turn_off("for no reason")
    assert said == []


@pytest.mark.parametrize(
    ("exhausted", "phases", "over"),
    [(True, [], True), (True, ["gone"], True), (True, ["ready", "gone"], False), (False, [], False)],
)
def test_it_is_over_once_the_purse_is_spent_and_the_last_node_is_gone(exhausted, phases, over):
    assert is_over({"exhausted": exhausted}, [{"phase": phase} for phase in phases]) is over


def test_the_controller_is_asked_with_the_token_that_only_reads(tmp_path):
    with served(tmp_path) as there:
        (there.state.path / "token.read").stat()
        facts = json.loads((there.state.path / "controller.json").read_text(encoding="utf-8"))
        assert facts["port"] == there.client.port
        assert is_spent(there.state.path) is False
    with pytest.raises(OSError, match=r"controller\.json"):
        is_spent(there.state.path)
