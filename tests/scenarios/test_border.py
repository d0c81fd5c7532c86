"""Scenarios 34 to 37: upgrades, jobs that mean harm, the border that people ask at, and a short soak."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import os
import shutil
import sys
import time
from asyncio.subprocess import PIPE
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.errors import SubletError
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import spec_to_json
from sublet.runtime.store import Store
from sublet.testing.rigs import LocalRig
from sublet.wire.lines import to_line
from sublet.wire.messages import Hello
from tests.chaos.rig import rig
from tests.rigs.in_memory_api import served
from tests.rigs.story import Story, a_spec, trained, until
from tests.scenarios.stage import Stage
from tests.soak.findings import table
from tests.soak.run import soak

OLD = Path(__file__).parents[1] / "data"
pytestmark = pytest.mark.timeout(300)
SECRET = "swordfish-5f1c"  # noqa: S105 - what must not be found anywhere


# ---------------------------------------------------------------------- 34: upgrade


@pytest.mark.scenario(
    34,
    "an upgrade with live jobs; stores and agents of before",
    "L",
    heavy=True,
    lacks="older releases: this is the first; another program than the one that was killed, a way back, an older SDK",
)
def test_34_a_store_of_before_is_read_and_live_jobs_train_on_over_a_restart(tmp_path, measured):
    """Every state directory that is kept in the tests; then a controller is replaced under a job that trains on."""
    read = 0
    for folder in sorted(path for path in OLD.iterdir() if path.is_dir()):
        place = tmp_path / folder.name
        shutil.copytree(folder, place)
        for packed in place.glob("*.gz"):
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        store = Store(place / "log.sqlite")
        assert store.last_seq() > 0
        assert store.jobs()
        store.close()
        read += 1
    assert read
    with rig(Stage, speedup=10.0, most_nodes=2) as stage:
        stage.start()
        job_id = stage.talk(steps=2000, step_ms=10.0, max_workers=2, market="spot")
        stage.until_width(job_id, 2)
        before, workers = stage.job(job_id), set(stage.workers())
        stage.kill()
        stage.start()
        stage.until(lambda: stage.job(job_id).get("step", 0) > before["step"] + 50, "it trains on")
        after = stage.job(job_id)
        assert set(stage.workers()) == workers, "a worker was started again"
        assert after["steps_lost"] == before["steps_lost"]
    measured(f"{read} stores of before read; a controller replaced: {len(workers)} workers untouched, 0 steps lost")


# ---------------------------------------------------------------------- 35: harm


@pytest.mark.scenario(
    35,
    "a malicious job: secrets of others, a false node, paths, an endless line, labels, a fork bomb",
    "L",
    lacks="one user per node: jobs of one controller are not kept apart from each other's files; no limit of "
    "processes; a secret that a job prints stands in its own log, a file of its owner alone; 10 GB (5 MB here); labels "
    "(no test floods them). A user for each job completes the first two, which needs root on the node",
)
def test_35_a_false_node_and_a_wild_job_are_refused_and_no_secret_is_written_down(measured):
    rig_, refused = LocalRig(), 0
    try:

        async def live():
            nonlocal refused
            engine, heard = rig_.engine(), []
            await engine.open(lambda node_id, message: heard.append((node_id, message)))
            engine.expect("n", "the-right-one")
            for token in ("", "wrong", "the-right-on", "the-right-onee"):
                hello = to_line(Hello(node_id="n", token=token, pid=1))
                await asyncio.to_thread(rig_.stranger, hello)
                refused += not heard
            await asyncio.to_thread(rig_.stranger, b"x" * 3_000_000)  # a line without an end
            refused += not heard
            await engine.close()

        asyncio.run(live())
    finally:
        rig_.clean_up()
    assert refused == 5, "somebody without the token was believed"
    for name in ("../../etc/passwd", "a/b", "A B", "x" * 300, "a;b", "-rf"):
        with pytest.raises(SubletError):
            job_from_command(["true"], name=name)
    wild = "import os, sys\nsys.stdout.write('y' * 5_000_000)\nprint(os.environ['TOKEN'])\nraise SystemExit(3)\n"
    with rig(Stage, speedup=10.0, most_nodes=1) as stage:
        stage.start()
        script = stage.state.path / "wild.py"
        script.write_text(wild, encoding="utf-8")
        facts = {"sdk": False, "max_workers": 1, "secrets": {"TOKEN": SECRET}, "name": "wild"}
        job_id = stage.submit(argv=(sys.executable, str(script)), **facts)
        (view,) = stage.until_ended(job_id)
        answers = [stage.ask(what) for what in ("jobs", "events", "cost", "nodes", "budget")]
        stage.down()
        assert view["phase"] == "failed"
        told = json.dumps([view, *answers])
        assert SECRET not in told, "a secret is told"
        assert len(told) < 1_000_000, "what it printed is told without bounds"
        for path in stage.state.path.glob("log.sqlite*"):
            assert SECRET.encode() not in path.read_bytes(), f"a secret is in {path.name}"
        assert SECRET not in (stage.state.path / "controller.log").read_text(errors="replace")
        found = [
            path for path in stage.state.path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
        ]
        places = (stage.state.path / "jobs" / job_id / "logs", stage.state.path / "secrets")
        assert all(path.parent in places for path in found), found
        assert all(path.stat().st_mode & 0o077 == 0 for path in found), "others of the machine can read it"
    measured(
        f"{refused} false nodes and lines, 6 names refused; 5 MB in one line and a printed secret: in no answer, store "
        f"or log of the controller; it stands in the job's own log, where the job wrote it"
    )


# ---------------------------------------------------------------------- 36: the border


@pytest.mark.scenario(36, "no token, one that may only read, wrong host, a foreign page", "L")
def test_36_strangers_change_nothing(tmp_path, measured):
    with served(tmp_path) as there:
        host, port, token = there.client.host, there.client.port, there.client.token
        body = json.dumps({"job": spec_to_json(job_from_command(["true"], name="echo"), secrets=True)})

        def ask(method, path, **headers):
            connection = http.client.HTTPConnection(host, port, timeout=120)
            connection.request(method, path, body if method == "POST" else None, headers)
            status = connection.getresponse().status
            connection.close()
            return status

        good = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        wrong = [
            ask("POST", "/v1/jobs", **{"Content-Type": "application/json"}),
            ask("POST", "/v1/jobs", **{**good, "Authorization": f"Bearer {'0' * len(token)}"}),
            ask("POST", "/v1/jobs", **{**good, "Host": "evil.example"}),
            ask("POST", "/v1/jobs", **{**good, "Origin": "https://evil.example"}),
            ask("POST", "/v1/jobs", **{**good, "Content-Type": "text/plain"}),
            ask("GET", "/v1/jobs", Authorization=f"Bearer {token}", Host="rebound.example:80"),
        ]
        reader = f"Bearer {there.state.reader_file.read_text()}"
        wrong.append(ask("POST", "/v1/jobs", **{**good, "Authorization": reader}))
        assert all(400 <= status < 500 for status in wrong), wrong
        assert ask("GET", "/v1/jobs", Authorization=reader) == 200
        assert not there.api.rows, "a stranger has submitted something"
        assert ask("GET", "/v1/jobs", Authorization=f"Bearer {token}") == 200
    measured(f"{len(wrong)} strangers refused with {sorted(set(wrong))}")


FLOOD = """
import socket, sys, threading, time
host, port, path, rate = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
DOORS = 4
line = f"GET {path} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode()
began, answers, over, on = time.monotonic(), [], threading.Event(), threading.Barrier(DOORS)

def ask():
    asked = 0
    with socket.create_connection((host, port)) as door:
        while not over.is_set():
            if asked > rate / DOORS * (time.monotonic() - began):
                time.sleep(0.005)
                continue
            door.sendall(line * 10)
            seen = b""
            while seen.count(b"HTTP/1.1 ") < 10:
                seen += door.recv(65536) or sys.exit("hung up on")
            asked += 10
            if asked == 10 and on.wait(120) == 0:
                print("on", flush=True)
    answers.append(asked)

doors = [threading.Thread(target=ask) for _ in range(DOORS)]
for each in doors:
    each.start()
sys.stdin.read()
over.set()
for each in doors:
    each.join()
print(sum(answers) / (time.monotonic() - began))
"""


@pytest.mark.scenario(
    36, "1,000 requests a second", "L", lacks="less than 10 % at 1,000 a second: printed, not asserted"
)
def test_36_a_flood_does_not_stop_the_loop_of_a_controller(tmp_path, full, measured):
    """The shipped server and controller in one loop, as in a process of `sublet up`; the flood comes from another."""
    story, looks, ticks = Story(tmp_path), 24 if full else 6, []

    async def periods():
        """Between so many ticks of the controller from here on, however long they take."""
        began = len(ticks)
        await until(lambda: asyncio.sleep(0, len(ticks) - began > looks), "the loop stands still")
        return [two - one for one, two in pairwise(ticks[began:])]

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 3)
            tick = api._controller._tick
            api._controller._tick = lambda wall_s: (ticks.append(time.monotonic()), tick(wall_s))
            listening = bind("127.0.0.1", 0)
            state = StateDir(tmp_path / "door")
            state.prepare()
            over = asyncio.Event()
            serving = asyncio.create_task(
                serve(api, over.wait, state=state, sock=listening, pid=os.getpid(), signals=False)
            )
            host, port = listening.getsockname()[:2]
            quiet = await periods()
            flood = [sys.executable, "-c", FLOOD, host, str(port), "/healthz", "1000"]
            process = await asyncio.create_subprocess_exec(*flood, stdin=PIPE, stdout=PIPE)
            assert await process.stdout.readline() == b"on\n", "no flood"
            loud, view = await periods(), await api.job("j-1")
            rate = float((await process.communicate(b""))[0])
            over.set()
            await serving
            return quiet, loud, rate, view

    quiet, loud, rate, view = asyncio.run(live())
    assert view["phase"] == "running"
    apart = median(loud) / median(quiet) - 1.0
    measured(
        f"{rate:.0f} requests a second over {sum(loud):.1f} s: a period of {median(quiet) * 1e3:.0f} ms became "
        f"{median(loud) * 1e3:.0f} ms ({apart:+.1%}), {max(loud) * 1e3:.0f} ms at most"
    )


# ---------------------------------------------------------------------- 37: soak


@pytest.mark.scenario(
    37, "soak: hours, jobs, random faults", "L", heavy=True, lacks="72 h: `make soak HOURS=72` is that run"
)
@pytest.mark.timeout(900)  # whoever is slow is waited for
def test_37_a_short_soak_leaves_nothing_behind(full, measured):
    hours = 0.5 if full else 0.05
    found = soak(cloud_s=hours * 3600.0, jobs=16 if full else 4, seed=37, say=lambda text: None)
    assert not found.broken, table(found)
    facts, measured_laws = found.facts, sum(law.holds is not None for law in found.laws)
    measured(
        f"{hours:g} h of the cloud, {facts['jobs']} jobs, {sum(facts['faults'].values())} faults, "
        f"{facts['nodes']} nodes, {facts['controllers']} controllers: "
        f"{measured_laws} of {len(found.laws)} laws measured, all hold"
    )
