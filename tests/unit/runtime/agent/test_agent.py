"""The agent of a node: how workers begin, what they find, how they end, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import socket
from pathlib import Path

import pytest

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.agent import processes
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.agent.link import MOST_UNSENT, Link
from sublet.runtime.engines.local import LocalEngine
from sublet.testing.rigs import Ears, LocalRig, until
from sublet.wire.messages import Dismiss, EndWorker, Finished, Hello, Meet, Ready, Saved, Warn, WorkerDown, WorkerUp
from tests.rigs.one_agent import agent

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []


# ---------------------------------------------------------------------- how a worker begins


@pytest.mark.parametrize("cold", [False, True])
def test_a_worker_finds_its_arguments_its_place_its_variables_and_nothing_of_the_agents(rig, cold):
    text = """
import json, os, sys, signal
facts = dict(os.environ)
fds = [int(name) for name in os.listdir("/proc/self/fd")]
fds = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}")]
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": facts, "fds": fds, "stdin": sys.stdin.read(),
                  "path": sys.path[0], "pgid": os.getpgid(0) == os.getpid(), "sid": os.getsid(0),
                  "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "warm": "sublet" in sys.modules}))
"""

    async def scene():
        async with agent(rig) as (send, ears):
            place = rig.folder / "place"
            place.mkdir()
            env = {"COLOUR": "red", "LD_DUMMY": "1"} if cold else {"COLOUR": "red"}
            send(rig.start("w", rig.script("show.py", text), "a", "b c", env=env, cwd=str(place)))
            await ears.next(WorkerDown, code=0)
            seen = json.loads(rig.printed("w"))
            assert seen["argv"] == ["a", "b c"]
            assert seen["cwd"] == str(place)
            assert seen["path"] == str(rig.folder)
            assert seen["stdin"] == ""
            assert seen["warm"] is not cold
            assert seen["pgid"]
            assert seen["term"]
            assert seen["sid"] == ears.all(Hello)[0].pid
            assert [fd for fd in seen["fds"] if fd > 2] == [int(seen["env"]["SUBLET_CONTROL_FD"])]
            expected = {"COLOUR": "red", "SUBLET_WORKER_ID": "w", "SUBLET_JOB_ID": "job", "SUBLET_NODE_ID": "n"}
            assert expected.items() <= seen["env"].items()

    asyncio.run(scene())


def test_other_commands_are_started_as_they_are(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("shell", "", argv=("sh", "-c", "echo $COLOUR; exit 7"), env={"COLOUR": "red"}))
            assert (await ears.next(WorkerDown)).code == 7
            assert rig.printed("shell") == "red\n"
            send(rig.start("none", "", argv=("no-such-command",)))
            down = await ears.next(WorkerDown, worker_id="none")
            assert down.code == 127
            assert "no-such-command" in down.error
            send(rig.start("lost", rig.script("x.py", ""), cwd="/no/such/place"))
            assert "/no/such/place" in (await ears.next(WorkerDown, worker_id="lost")).error
            send(rig.start("empty", "", argv=()))
            assert "argv" in (await ears.next(WorkerDown, worker_id="empty")).error

    asyncio.run(scene())


def test_a_log_that_cannot_be_written_is_said_and_nothing_runs(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            (rig.folder / "file").write_text("", encoding="utf-8")
            order = rig.start("w", rig.script("x.py", ""))
            send(type(order)(worker_id="w", job_id="j", argv=order.argv, log=str(rig.folder / "file" / "log")))
            down = await ears.next(WorkerDown, worker_id="w")
            assert down.code == 127
            assert "cannot start" in down.error
            assert ears.all(WorkerUp) == []

    asyncio.run(scene())


def test_the_same_order_twice_is_one_worker(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            order = rig.start("w", rig.script("sleep.py", SLEEP))
            send(order)
            send(order)
            send(EndWorker(worker_id="w"))
            await ears.next(WorkerDown)
            send(order)
            send(rig.start("last", rig.script("end.py", "")))
            await ears.next(WorkerDown, worker_id="last")
            assert len(ears.all(WorkerUp, worker_id="w")) == 1

    asyncio.run(scene())


# ---------------------------------------------------------------------- how it ends


def test_a_failure_is_told_with_its_last_lines_and_no_others(rig):
    text = "import sys\nfor n in range(100): print('line', n)\nprint('x' * 3_000_000)\nraise ValueError('no')\n"

    async def scene():
        async with agent(rig) as (send, ears):
            (rig.folder / "w.log").write_text("of an earlier worker\n" * 3, encoding="utf-8")
            send(rig.start("w", rig.script("fails.py", text)))
            down = await ears.next(WorkerDown)
            assert down.code == 1
            assert down.error.endswith("ValueError: no")
            assert 'fails.py", line 4' in down.error
            assert len(down.error) < 10_000
            send(rig.start("v", rig.script("short.py", "print('only')\nraise SystemExit(2)\n")))
            assert (await ears.next(WorkerDown, worker_id="v")).error == "only"
            send(rig.start("u", rig.script("dies.py", "import os\nos.kill(os.getpid(), 11)\n")))
            assert (await ears.next(WorkerDown, worker_id="u")).code == -signal.SIGSEGV
            assert "of an earlier worker" not in down.error

    asyncio.run(scene())


def test_who_is_told_to_end_may_tidy_up_within_its_grace(rig):
    tidy = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n" + SLEEP

    async def scene():
        async with agent(rig) as (send, ears):
            for name, text in (("tidy", tidy), ("stubborn", STUBBORN), ("plain", SLEEP)):
                send(rig.start(name, rig.script(f"{name}.py", text)))
                await until(lambda name=name: rig.printed(name))
            began_s = asyncio.get_running_loop().time()
            for name, grace_s in (("tidy", 120.0), ("stubborn", 0.3), ("plain", 120.0)):
                send(EndWorker(worker_id=name, grace_s=grace_s))
            assert (await ears.next(WorkerDown, worker_id="tidy")).code == 9
            assert (await ears.next(WorkerDown, worker_id="plain")).code == -signal.SIGTERM
            assert (await ears.next(WorkerDown, worker_id="stubborn")).code == -signal.SIGKILL
            assert asyncio.get_running_loop().time() - began_s >= 0.3

    asyncio.run(scene())


def test_the_children_of_a_worker_end_with_it(rig):
    parent = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}])
print(child.pid, flush=True)
time.sleep(600)
"""

    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("parent.py", parent)))
            await until(lambda: rig.printed("w").count("\n") == 2)  # the child is up
            child = int(next(line for line in rig.printed("w").split() if line.isdigit()))
            send(EndWorker(worker_id="w", grace_s=5.0))  # the parent dies of SIGTERM, the child would not
            assert (await ears.next(WorkerDown)).code == -signal.SIGTERM
            await until(lambda: processes.look(child) is None)

    asyncio.run(scene())


def test_an_agent_that_is_told_to_stop_takes_all_with_it(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("sleep.py", SLEEP)))
            await until(lambda: rig.printed("w"))
            os.kill(ears.all(Hello)[0].pid, signal.SIGTERM)
            await until(lambda: not rig.left())
            assert (await ears.next(WorkerDown)).code == -signal.SIGTERM

    asyncio.run(scene())


def test_workers_die_with_an_agent_that_is_killed(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("sleep.py", STUBBORN)))
            await until(lambda: rig.printed("w"))
            worker = (await ears.next(WorkerUp)).pid
            rig.kill("n")
            await until(lambda: processes.look(worker) is None)

    asyncio.run(scene())


# ---------------------------------------------------------------------- what passes through


def peak_kib(pid):
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_a_warning_is_written_where_workers_look(rig):
    text = "import json, os, time\npath = os.environ['SUBLET_NOTICE_FILE']\nprint('up', flush=True)\n"
    text += "while not os.path.exists(path): time.sleep(0.005)\nprint(json.load(open(path))['in_s'])\n"

    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("waits.py", text)))
            await until(lambda: rig.printed("w"))
            send(Warn(in_s=42.0))
            await ears.next(WorkerDown, code=0)
            assert rig.printed("w") == "up\n42.0\n"

    asyncio.run(scene())


def test_a_worker_that_floods_lies_or_never_ends_a_line_harms_nobody(rig):
    text = """
import json, os, socket
line = socket.socket(fileno=int(os.environ["SUBLET_CONTROL_FD"]))
def say(**facts): line.sendall(json.dumps(facts).encode() + b"\\n")
say(type="Ready", worker_id="somebody else")
say(type="Dismiss")
say(type="Hello", node_id="n", token="x", pid=1)
line.sendall(b"y" * 20_000_000 + b"\\n{}\\n\\xff\\n")
for step in range(3_000):
    say(type="Saved", worker_id="liar", step=step, done=0.0, seconds=0.0, blocked_s=0.0, size_bytes=0)
say(type="Ready", worker_id="liar")
"""

    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("good", rig.script("sleep.py", SLEEP)))
            send(rig.start("liar", rig.script("liar.py", text)))
            await ears.next(WorkerDown, worker_id="liar")
            assert {message.worker_id for message in ears.all(Ready)} == {"liar"}
            assert [message.step for message in ears.all(Saved)] == list(range(3_000))
            assert peak_kib(ears.all(Hello)[0].pid) < 100_000
            assert (rig.folder / "n.agent.log").stat().st_size < 100_000
            send(EndWorker(worker_id="good"))
            await ears.next(WorkerDown, worker_id="good")

    asyncio.run(scene())


def test_that_a_session_was_over_is_told_again_before_the_end_of_its_worker(rig):
    """What was under way to a controller that is killed is lost: how a script has ended is not to be known from 0."""
    text = """
import json, os, socket
line = socket.socket(fileno=int(os.environ["SUBLET_CONTROL_FD"]))
line.sendall(json.dumps(dict(type="Finished", worker_id="w", step=7, done=7.0)).encode() + b"\\n")
"""

    async def scene():
        engine, ears = rig.engine(), Ears()
        await engine.open(ears.hear)
        engine.expect("n", "token")
        rig.agent("n", "token")
        await ears.next(Hello)
        engine.send("n", rig.start("w", rig.script("finish.py", text)))
        await ears.next(WorkerDown, worker_id="w")
        await engine.close()
        engine, ears = rig.engine(), Ears()
        engine.expect("n", "token")
        await engine.open(ears.hear)
        await ears.next(WorkerDown, worker_id="w")
        assert [message.step for message in ears.all(Finished)] == [7]
        again = [type(getattr(message, "message", message)) for _, message in ears.heard]
        assert again.index(Finished) < again.index(WorkerDown)
        engine.send("n", Dismiss())
        await until(lambda: not rig.left())
        await engine.close()

    asyncio.run(scene())


def test_a_worker_that_does_not_read_holds_nobody_up(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("deaf", rig.script("sleep.py", SLEEP)))
            await until(lambda: rig.printed("deaf"))
            for number in range(2_000):
                assert send(Meet(worker_id="deaf", generation=number, host="h" * 1000, port=1))
            send(rig.start("w", rig.script("end.py", "")))
            await ears.next(WorkerDown, worker_id="w", code=0)

    asyncio.run(scene())


def test_the_agent_comes_over_tcp_too(rig):
    async def scene():
        port = 20_000 + os.getpid() % 20_000
        engine, ears = LocalEngine(f"tcp:127.0.0.1:{port}"), Ears()
        rig.agent("n", "token", address=engine.address)  # before anybody listens
        await asyncio.sleep(0.3)
        await engine.open(ears.hear)
        engine.expect("n", "token")
        await ears.next(Hello)
        engine.send("n", Dismiss())
        await until(lambda: not rig.left())
        await engine.close()
        with pytest.raises(InvalidValue, match="loopback"):
            LocalEngine("tcp:0.0.0.0:1")

    asyncio.run(scene())


@pytest.mark.parametrize("text", ["", "unix:", "tcp:host", "tcp:host:port", "/path"])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(InvalidValue, match="unix:/path or tcp:host:port"):
        address_from(text)


def test_what_waits_for_a_controller_is_bounded_and_progress_goes_first():
    with selectors.DefaultSelector() as selector:
        link = Link("unix:/no/such/socket", selector)
        link.connect()
        for number in range(3000):
            link.send(b"S" * 2000 + b"%d\n" % number, may_be_lost=True)
            if number % 100 == 0:
                link.send(b"W%d\n" % number)
        kept = link.waiting()
        assert sum(map(len, kept)) <= MOST_UNSENT
        assert {line for line in kept if line.startswith(b"W")} == {b"W%d\n" % n for n in range(0, 3000, 100)}
        assert any(line.endswith(b"S2999\n") for line in kept)


# ---------------------------------------------------------------------- what a worker may say

SAYS = """
import os, socket, time
line = socket.socket(fileno=int(os.environ["SUBLET_CONTROL_FD"]))
me = os.environ["SUBLET_WORKER_ID"].encode()
for bad in BAD:
    line.sendall(bad + b"\\n")
line.sendall(b'{"type":"Ready","worker_id":"' + me + b'"}\\n')
time.sleep(600)
"""
STEPPED = b'{"type":"Stepped","worker_id":"w","generation":1,"step":1,"epoch":0,"loss":0,"step_s":0,"done":%s}'


@pytest.mark.parametrize(
    "bad",
    [STEPPED % (b"1" + b"0" * 400), STEPPED % b"1e999", b"[" * 100_000, b'{"type":"Ready","worker_id":"\\ud800"}'],
    ids=["400-digits", "infinite", "deep", "half-a-character"],
)
def test_no_line_of_a_worker_costs_the_agent_its_life(rig, bad):
    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("other", rig.script("sleep.py", SLEEP)))
            await ears.next(WorkerUp, worker_id="other")
            send(rig.start("w", rig.script("says.py", SAYS.replace("BAD", repr([bad] * 3)))))
            await ears.next(Ready, worker_id="w")
            assert [down.worker_id for down in ears.all(WorkerDown)] == []
            assert len(ears.all(Hello)) == 1

    asyncio.run(scene())


def test_a_worker_that_says_nothing_readable_loses_its_line_and_no_other_does(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("says.py", SAYS.replace("BAD", "[b'x'] * 5000"))))
            send(rig.start("v", rig.script("sound.py", SAYS.replace("BAD", "[]"))))
            await ears.next(Ready, worker_id="v")
            send(EndWorker(worker_id="w"))
            await ears.next(WorkerDown, worker_id="w")
            assert ears.all(Ready, worker_id="w") == []
            assert len((rig.folder / "n.agent.log").read_bytes()) < 50_000

    asyncio.run(scene())


def test_a_port_that_is_taken_is_told_by_its_setting_with_the_next_step():
    async def live():
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            engine = LocalEngine(f"tcp:127.0.0.1:{port}", port_field="aws.toml: agents_port")
            with pytest.raises(
                BadInput, match=f"agents_port = {port}: .* another program listens there\n  next: "
            ) as told:
                await engine.open(lambda node_id, message: None)
        assert "set another port there" in str(told.value)

    asyncio.run(live())
