"""Attacks on the line between machines, from a host of the attacker's own: refused, and in nobody's way."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from sublet.runtime.identity.authority import Authority
from sublet.testing.conformance.engines import opened
from sublet.testing.rigs import until
from sublet.wire.lines import to_line
from sublet.wire.messages import Dismiss, FromWorker, Hello, Ready, WorkerDown
from sublet_lab.box.image import Image
from sublet_lab.box.machine import Machine
from tests.rigs.boxed_lines import BoxedRig, why_no_hosts

FOLDER = "/opt/attack"
HALF_OPEN = 3_000
COMES = """
import json, os, socket, ssl, sys
place, folder = (sys.argv[1], int(sys.argv[2])), sys.argv[3]
hello = open(folder + "/hello", "rb").read()

def said_back(wrap, *lines):
    answer = b""
    try:
        with wrap(socket.create_connection(place, 20)) as line:
            for data in lines:
                line.sendall(data)
            while data := line.recv(65536):
                answer += data
    except TimeoutError:
        return "kept waiting"
    except OSError:
        pass
    return answer.decode("latin-1")

def shows(pem, **facts):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder + "/authority")
    if pem:
        context.load_cert_chain(folder + "/" + pem)
    for name, value in facts.items():
        setattr(context, name, value)
    return lambda plain: context.wrap_socket(plain, server_hostname="controller.sublet")

plain = lambda socket: socket
record = bytes([22, 3, 1, 64, 0])  # a handshake of 16,384 bytes is announced
print(json.dumps({
    **{name: said_back(shows(name), hello) for name in sorted(os.listdir(folder)) if name.endswith(".pem")},
    "no certificate": said_back(shows(""), hello),
    "an older TLS": said_back(shows("of another node.pem", maximum_version=ssl.TLSVersion.TLSv1_2), hello),
    "in the clear": said_back(plain, hello),
    "noise": said_back(plain, os.urandom(100_000)),
    "noise in a record": said_back(plain, record + os.urandom(16_384)),
    "HTTP": said_back(plain, b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"),
    "asks without a secret": said_back(shows(""), b'{"node":"n","secret":"","request":"x"}\\n'),
    "asks without an end": said_back(shows(""), b"x" * 1_000_000),
}))
"""
OPENS = """
import resource, select, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
lines = []
for _ in range(int(sys.argv[3])):
    line = socket.socket()
    line.setblocking(False)
    line.connect_ex((sys.argv[1], int(sys.argv[2])))
    lines.append(line)
ready = 0
poll = select.poll()
for line in lines:
    poll.register(line, select.POLLOUT)
waiting = {line.fileno() for line in lines}
while waiting:  # until each has been connected, or refused
    for fd, _ in poll.poll(10_000) or sys.exit("stuck"):
        poll.unregister(fd)
        waiting.discard(fd)
print(len(lines), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rig():
    if why := why_no_hosts():
        pytest.skip(why)
    here = BoxedRig()
    yield here
    assert here.clean_up() == []


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def waiting_at(port):
    """Connections there that nobody has closed: established, or left by the other end."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] in ("01", "08")]


def attacker(rig, **files):
    """A host with these files, and nobody on it."""
    folder = rig.claim.folder / "attacker"
    folder.mkdir()
    given = {f"{FOLDER}/{name}": text for name, text in files.items()}
    return Machine(rig.network.cable(), Image(files=given), folder, b"true\n")


def passport(rig, node_id, authority=None, unix_s=None):
    rig.passport(node_id, authority, **({} if unix_s is None else {"unix_s": unix_s}))
    return (rig.folder / f"{node_id}.passport").read_text()


def test_whoever_is_not_the_node_is_refused_whatever_it_shows_or_sends(rig, caplog):
    rig.authority.door()  # the controller has its certificate from now on
    files = {
        "authority": rig.authority.certificate,
        "hello": to_line(Hello(node_id="n", token="", pid=1)).decode(),
        "of another node.pem": passport(rig, "m"),
        "that is over.pem": passport(rig, "n", unix_s=0.0),
        "of another authority.pem": passport(rig, "n", Authority(rig.folder / "other")),
        "of the controller.pem": (rig.folder / "identity" / "controller.pem").read_text(),
        "own.pem": passport(rig, "n"),
    }
    evil = attacker(rig, **files)

    async def scene():
        async with opened(rig) as (engine, ears):
            engine.expect("n", "secret")
            come = [sys.executable, "-c", COMES, rig.place[0], str(rig.place[1]), FOLDER]
            talk = asyncio.create_task(asyncio.to_thread(evil.run, *come))
            await ears.next(Hello, node_id="n")  # the one with the right certificate
            await asyncio.sleep(0)
            engine._lines["n"].hang_up()
            done = await talk
            assert done.returncode == 0, done.stderr
            answers = json.loads(done.stdout)
            assert "Welcome" in answers.pop("own.pem")
            assert {name: said for name, said in answers.items() if "Welcome" in said or "CERTIFICATE" in said} == {}
            assert "kept waiting" not in answers.values()
            assert len(answers) == 12
            assert [node_id for node_id, _ in ears.heard] == ["n"]

    try:
        asyncio.run(scene())
    finally:
        evil.cut_off()
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum(map(len, texts)) < 10_000


def test_thousands_who_shake_no_hands_take_no_room_from_an_agent(rig):
    evil = attacker(rig)

    async def scene():
        async with opened(rig) as (engine, ears):
            engine.expect("n", "secret of n")
            before = open_files()
            opens = evil.popen(sys.executable, "-c", OPENS, rig.place[0], str(rig.place[1]), str(HALF_OPEN))
            try:
                line = await asyncio.to_thread(opens.stdout.readline)
                assert int(line) == HALF_OPEN
                await until(lambda: len(engine._strangers) <= 64)
                await until(lambda: open_files() - before < 200)  # asyncio takes in a hundred at a time
                rig.agent("n", "secret of n")
                await ears.next(Hello, node_id="n")
                engine.send("n", Dismiss())
            finally:
                await asyncio.to_thread(opens.communicate)
            await asyncio.to_thread(
                evil.cut_off
            )  # nobody more comes, and asyncio forgets who comes in as its loop ends
            await until(lambda: not waiting_at(rig.place[1]))

    try:
        asyncio.run(scene())
    finally:
        evil.cut_off()


def test_what_a_node_says_is_the_nodes_whatever_name_it_gives_later(rig):
    lines = [
        to_line(Hello(node_id="n", token="", pid=1)),
        to_line(Hello(node_id="m", token="", pid=1, workers={"job-1.1.0": "job-1"})),
        to_line(WorkerDown(worker_id="job-1.1.0", code=1)),
        to_line(FromWorker(message=Ready(worker_id="job-1.1.0"))),
    ]

    async def scene():
        async with opened(rig) as (engine, ears):
            for node_id in ("n", "m"):
                engine.expect(node_id, f"secret of {node_id}")
            talk = asyncio.create_task(asyncio.to_thread(rig.stranger, *lines, context=rig.passport("n")))
            await ears.next(Ready)
            engine._lines["n"].hang_up()
            await talk
            assert {node_id for node_id, _ in ears.heard} == {"n"}  # and a controller believes n of n's workers alone
            assert [hello.node_id for hello in ears.all(Hello)] == ["n"]
            assert "m" not in engine._lines

    asyncio.run(scene())


def test_a_secret_that_was_read_from_user_data_lets_no_second_machine_in(rig):
    async def scene():
        async with opened(rig) as (engine, ears):
            engine.expect("n", "secret of n")
            rig.agent("n", "secret of n")
            await ears.next(Hello, node_id="n")
            first = rig.hosts.pop("n")
            rig.agent("n", "secret of n", lease_s=1.0)  # on another host, with a key of its own
            await until(lambda: not rig.hosts["n"].is_on())  # nobody vouched for it: it ended by itself
            rig.hosts["n"].cut_off()
            rig.hosts["n"] = first
            assert len(ears.all(Hello)) == 1
            assert first.is_on()

    asyncio.run(scene())
