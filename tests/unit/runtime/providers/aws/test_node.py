"""What runs on a rented machine: the notice it reads about itself, and the switch that ends it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sublet.errors import InvalidValue
from sublet.runtime.agent import __main__ as agent_main
from sublet.runtime.agent import processes
from sublet.runtime.agent.metadata import Metadata
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.file_sync.own_code import Parcel, own_code
from sublet.runtime.identity import certificates
from sublet.runtime.providers.aws import instances
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.instances import user_data
from sublet.testing.rigs import Ears, LocalRig, until
from sublet.wire.messages import Dismiss, Hello, Noticed
from tests.rigs.secure_lines import TlsRig

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Service(ThreadingHTTPServer):
    """The metadata service of an instance: sessions first, as IMDSv2 wants it."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.announced, self.tokens, self.asked, self.silent = {}, set(), [], threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def interrupt(self, in_s):
        at = datetime.now(UTC) + timedelta(seconds=in_s)
        self.announced[ACTION] = json.dumps({"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})


class _Answer(BaseHTTPRequestHandler):
    def do_PUT(self):
        assert self.path == "/latest/api/token"
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
        token = f"session-{len(self.server.tokens)}"
        self.server.tokens.add(token)
        self._say(200, token)

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.server.silent.is_set():
            time.sleep(3.0)
        if self.headers["X-aws-ec2-metadata-token"] not in self.server.tokens:
            self._say(401, "")
        else:
            text = self.server.announced.get(self.path)
            self._say(200 if text else 404, text or "")

    def _say(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@contextmanager
def service():
    here = Service()
    thread = threading.Thread(target=here.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield here
    finally:
        here.shutdown()
        thread.join()
        here.server_close()


def turn(metadata, selector, condition, limit_s=120.0):
    """What the agent's loop does with it."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it never came true"
        wait_s = max(0.0, min(metadata.due_s() - time.monotonic(), 0.05))
        for key, events in selector.select(wait_s):
            key.data.attend(events)
        metadata.keep_time(time.monotonic())


@pytest.fixture
def selector():
    with selectors.DefaultSelector() as here:
        yield here
        for key in list(here.get_map().values()):
            key.data.close()


def test_a_notice_and_a_recommendation_are_told_once_each(selector):
    with service() as cloud:
        told = []
        metadata = Metadata(cloud.url, selector, lambda kind, in_s: told.append((kind, in_s)), every_s=0.05)
        turn(metadata, selector, lambda: len(cloud.asked) >= 4)
        assert told == []
        cloud.announced[REBALANCE] = '{"noticeTime": "2026-01-01T00:00:00Z"}'
        turn(metadata, selector, lambda: told)
        assert told == [("rebalance", 0.0)]
        announced_s = time.monotonic()
        cloud.interrupt(90.0)
        turn(metadata, selector, lambda: len(told) == 2)
        assert told[1][0] == "interruption"
        least_s = 89.0 - (time.monotonic() - announced_s)  # the announcement is cut to the second
        assert least_s <= told[1][1] <= 90.0
        asked = len(cloud.asked)
        turn(metadata, selector, lambda: len(cloud.asked) > asked + 6)
        assert len(told) == 2
        assert len(cloud.tokens) == 1


def test_a_session_that_ran_out_is_begun_anew_and_a_bad_notice_counts_as_two_minutes(selector):
    with service() as cloud:
        told = []
        metadata = Metadata(cloud.url, selector, lambda kind, in_s: told.append((kind, in_s)), every_s=0.05)
        turn(metadata, selector, lambda: len(cloud.asked) >= 2)
        cloud.tokens.clear()
        cloud.tokens.add("somebody else's")
        cloud.announced[ACTION] = "{no json"
        turn(metadata, selector, lambda: told)
        assert told == [("interruption", 120.0)]


def test_a_service_that_is_silent_or_absent_holds_nobody_up(selector):
    with service() as cloud:
        metadata = Metadata(cloud.url, selector, lambda *_: None, every_s=0.05)
        turn(metadata, selector, lambda: len(cloud.asked) >= 2)
        cloud.silent.set()
        asked, began_s = len(cloud.asked), time.monotonic()
        turn(metadata, selector, lambda: len(cloud.asked) > asked)
        rounds = 0
        while time.monotonic() - began_s < 2.5:  # past its limit for an answer
            rounds += 1
            for key, events in selector.select(0.01):
                key.data.attend(events)
            metadata.keep_time(time.monotonic())
        assert rounds > 5  # whoever waits for an answer is not back before its limit
        cloud.silent.clear()
    turn(metadata, selector, lambda: time.monotonic() - began_s > 3.0)  # nobody is there: no harm


def test_an_address_that_is_none_is_refused(selector):
    with pytest.raises(InvalidValue, match="metadata"):
        Metadata("169.254.169.254", selector, lambda *_: None)


# ---------------------------------------------------------------------- the agent


def begun(command):
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def test_an_agent_tells_its_workers_and_its_controller_at_once():
    async def scene():
        rig, ears = LocalRig(), Ears()
        engine = rig.engine()
        await engine.open(ears.hear)
        engine.expect("n1", "token")
        with service() as cloud:
            token_file = rig.folder / "n1.token"
            token_file.write_text("token", encoding="utf-8")
            command = [sys.executable, "-m", "sublet.runtime.agent", "--node", "n1", "--address", rig.address]
            command += ["--token-file", str(token_file), "--metadata", cloud.url]
            agent = await asyncio.to_thread(begun, command)
            try:
                await ears.next(Hello)
                cloud.interrupt(100.0)
                notice = await ears.next(Noticed)
                assert (notice.node_id, notice.kind) == ("n1", "interruption")
                assert notice.in_s == pytest.approx(100.0, abs=8.0)
                written = json.loads((rig.folder / "n1.notice").read_text(encoding="utf-8"))
                assert written["node"] == "n1"
                await engine.close()
                again = rig.engine()
                ears.heard.clear()
                await again.open(ears.hear)
                again.expect("n1", "token")
                await ears.next(Noticed)  # a controller that comes later hears of it, too
                again.send("n1", Dismiss())
                await until(lambda: agent.poll() is not None)
                await again.close()
            finally:
                agent.kill()
                agent.wait()
        assert rig.clean_up() == []

    asyncio.run(scene())


# ---------------------------------------------------------------------- the script of the first boot


@pytest.fixture
def booted(tmp_path):
    """Run a first boot on this machine, with a `shutdown` that only writes down that it was called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("shutdown", "poweroff"):
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/ended\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    run_dir = tmp_path / "run"

    def boot(config, authority="", **blanks):
        script = user_data("n1", "to'ken", config, authority=authority, poll_s=0.1)
        for name, value in blanks.items():
            script = re.sub(rf"(?<=[ =+]){name}(?=[ )])", value, script)
        path = tmp_path / "user-data.sh"
        path.write_text(script, encoding="utf-8")
        env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SUBLET_RUN_DIR": str(run_dir)}
        env["SUBLET_CODE_DIR"] = str(tmp_path / "code")
        shell = subprocess.Popen(["bash", str(path)], env=env, start_new_session=True)
        assert shell.wait(timeout=120) == 0
        return run_dir

    yield boot, tmp_path / "ended", run_dir
    for name in ("watch.sh", "sublet.runtime.agent"):
        for pid in _ours(run_dir, name):
            if (found := processes.look(pid)) is not None:
                processes.kill_instance(found.pid, found.start)


def _ours(run_dir, name):
    """Processes that this boot has left, by their folder."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if (proc / "cwd").readlink() == run_dir and name in (proc / "cmdline").read_text():
                found.append(int(proc.name))
        except OSError:
            continue
    return found


def _shown(run_dir):
    """What `ps` and /proc show of its agent."""
    pids = _ours(run_dir, "sublet.runtime.agent")
    return "".join(Path(f"/proc/{pid}/{what}").read_text() for pid in pids for what in ("cmdline", "environ"))


def a_node(address, **facts):
    given = {"regions": ("us-east-1",), "instance_types": ("g4dn.xlarge",), "image": "ami-1", "controller": address}
    return AwsConfig(**{**given, "install": "", "python": sys.executable, "preload": (), "metadata_url": "", **facts})


async def ended(path):
    return await until(lambda: path.exists() and path.read_text(encoding="utf-8"), 20.0)


def test_the_script_is_sound_shell_and_keeps_the_token_out_of_every_command_line():
    config = a_node("tcp:10.0.0.1:7000", install="sublet[torch]==1.0; rm -rf /", preload=("torch",))
    script = user_data("n1", "to'ken $(id)", config)
    checked = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "'sublet[torch]==1.0; rm -rf /'" in script  # one word, whatever is in it
    assert script.count("to'\"'\"'ken $(id)") == 1
    (line,) = [line for line in script.splitlines() if "ken $(id)" in line]
    assert line.startswith("printf '%s' ")  # a builtin: no process has it among its arguments
    assert "@" not in re.sub(r"sublet\[torch\]==1.0", "", script).replace("user@", "")


def test_a_node_boots_speaks_to_its_controller_and_ends_when_its_agent_does(booted):
    boot, shut_down, run_dir = booted

    async def scene():
        rig, ears = LocalRig(), Ears()
        engine = LocalEngine("tcp:127.0.0.1:17071", lease_s=30.0)
        await engine.open(ears.hear)
        engine.expect("n1", "to'ken")
        await asyncio.to_thread(boot, a_node("tcp:127.0.0.1:17071"))
        await ears.next(Hello)
        assert (run_dir / "token").stat().st_mode & 0o777 == 0o600
        shown = await asyncio.to_thread(_shown, run_dir)
        assert "--token-file" in shown
        assert "to'ken" not in shown
        assert not shut_down.exists()
        engine.send("n1", Dismiss())
        assert (await ended(shut_down)).startswith("shutdown -h now")
        await engine.close()
        rig.clean_up()

    asyncio.run(scene())


def test_a_node_enrols_at_its_boot_and_what_its_user_data_told_opens_nothing_any_more(booted):
    boot, shut_down, run_dir = booted

    async def scene():
        rig, ears = TlsRig(), Ears()
        engine = rig.engine(lease_s=30.0)
        await engine.open(ears.hear)
        engine.expect("n1", "to'ken")
        await asyncio.to_thread(boot, a_node(rig.address), rig.authority.certificate)
        assert (await ears.next(Hello)).token == ""
        code = run_dir.parent / "code" / own_code().digest
        assert (code / "sublet/runtime/agent/__main__.py").read_bytes() == inspect.getsource(agent_main).encode()
        assert code.stat().st_mode & 0o777 == 0o755  # workers may be another user's
        assert f"PYTHONPATH={code}\0" in await asyncio.to_thread(_shown, run_dir)
        assert (run_dir / "n1.pem").stat().st_mode & 0o777 == 0o600
        asked = {"node": "n1", "secret": "to'ken", "request": certificates.new_request()[1]}
        told = json.dumps(asked).encode() + b"\n"
        assert await asyncio.to_thread(rig.stranger, told, context=rig.passport("")) == b""
        engine.send("n1", Dismiss())
        assert (await ended(shut_down)).startswith("shutdown -h now")
        await engine.close()
        rig.clean_up()

    asyncio.run(scene())


def test_a_node_whose_controller_has_other_code_ends_at_once(booted, monkeypatch):
    boot, shut_down, _ = booted

    async def scene():
        rig, ears = TlsRig(), Ears()
        engine = rig.engine(lease_s=30.0)
        await engine.open(ears.hear)
        engine.expect("n1", "to'ken")
        monkeypatch.setattr(instances, "own_code", lambda: Parcel(b"", "0" * 64))
        with pytest.raises(AssertionError):  # the script says so by its exit code
            await asyncio.to_thread(boot, a_node(rig.address), rig.authority.certificate)
        assert (await ended(shut_down)).startswith("shutdown -h now")
        await engine.close()
        rig.clean_up()

    asyncio.run(scene())


def test_a_node_whose_lease_nobody_renews_ends_although_its_agent_hangs(booted):
    boot, shut_down, run_dir = booted
    hanging = run_dir.parent / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="utf-8")
    hanging.chmod(0o755)
    config = a_node("tcp:127.0.0.1:17072", python=str(hanging))

    async def scene():
        await asyncio.to_thread(boot, config, **{"1080": "3", "960": "3"})  # seconds to boot, and of a lease
        for _ in range(16):  # 4 s: longer than either
            os.utime(run_dir / "lease")  # as an agent does that hears its controller
            await asyncio.sleep(0.25)
        assert not shut_down.exists()
        assert (await ended(shut_down)).startswith("shutdown -h now")
        for pid in _ours(run_dir, "sleep"):
            os.kill(pid, 9)

    asyncio.run(scene())


def test_a_node_that_cannot_install_ends(booted):
    boot, shut_down, _ = booted

    async def scene():
        failing = shut_down.parent / "python"
        failing.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
        failing.chmod(0o755)
        with pytest.raises(AssertionError):
            await asyncio.to_thread(boot, a_node("tcp:127.0.0.1:17073", python=str(failing), install="sublet"))
        assert (await ended(shut_down)).startswith("shutdown -h now")

    asyncio.run(scene())


@pytest.mark.parametrize(("answer", "ends"), [("exit 0", False), ("exit 1", True)])
def test_a_node_joins_a_ray_cluster_first_and_ends_if_it_cannot(booted, tmp_path, answer, ends):
    boot, shut_down, _ = booted
    tool = tmp_path / "bin" / "ray"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{answer}\n', encoding="utf-8")
    tool.chmod(0o755)

    async def scene():
        rig, ears = LocalRig(), Ears()
        engine = LocalEngine("tcp:127.0.0.1:17073", lease_s=30.0)
        await engine.open(ears.hear)
        engine.expect("n1", "to'ken")
        if ends:
            with pytest.raises(AssertionError):  # the script says so by its exit code
                await asyncio.to_thread(boot, a_node("tcp:127.0.0.1:17073", ray="head.example:6379"))
            assert (await ended(shut_down)).startswith("shutdown -h now")
        else:
            await asyncio.to_thread(boot, a_node("tcp:127.0.0.1:17073", ray="head.example:6379"))
            await ears.next(Hello)
            engine.send("n1", Dismiss())
            await ended(shut_down)
        assert (tmp_path / "asked").read_text().split() == ["start", "--address", "head.example:6379"]
        await engine.close()
        rig.clean_up()

    asyncio.run(scene())
