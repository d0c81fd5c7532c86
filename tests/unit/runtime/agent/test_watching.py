"""What an agent sees of a worker that tells it nothing: real processes, files and sockets, and time as a number."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from sublet.runtime.agent.processes import met_at, ticks_by_parent
from sublet.runtime.agent.worker import Looks, Watch, newest_below
from sublet.testing.rigs import LocalRig
from sublet.wire.messages import WorkerDown, WorkerSeen
from tests.rigs.one_agent import agent

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
BURN = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\nsys.stdin.read()\n"
PARENT = f"""
import subprocess, sys
print('up', flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, '-c', {BURN!r}])  # which stays, so that only a look at it tells of its time
"""


@pytest.fixture
def process():
    """One that says that it is up, and then does what a line on its input says, for as long as the test likes."""
    started = []

    def begin(code):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "up\n"
        return child

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def test_a_process_that_waits_is_quiet_from_its_last_sign_on(process, tmp_path):
    log = tmp_path / "log"
    log.write_text("begins\n")
    watch = Watch("w", process(WAIT).pid, str(log), {}, 0.0)
    watch.look(0.0, ticks_by_parent())  # the processor time of its start
    assert watch.look(1000.0, ticks_by_parent()).quiet_s == 1000.0
    log.write_text("begins\nand goes on\n")
    assert watch.look(2000.0, ticks_by_parent()).quiet_s == 0.0
    assert watch.look(2500.0, ticks_by_parent()).quiet_s == 500.0


def test_a_process_whose_child_computes_is_not_quiet(process):
    child = process(PARENT)
    watch = Watch("w", child.pid, "", {}, 0.0)
    watch.look(0.0, ticks_by_parent())
    assert watch.look(10.0, ticks_by_parent()).quiet_s == 10.0
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"
    assert watch.look(20.0, ticks_by_parent()).quiet_s == 0.0


def test_what_was_written_below_its_directory_during_its_life_is_saved(tmp_path):
    (tmp_path / "old.pt").write_text("of an earlier start")
    os.utime(tmp_path / "old.pt", (1.0, 1.0))
    before = newest_below(str(tmp_path))
    watch = Watch("w", os.getpid(), "", {"SUBLET_CHECKPOINT_DIR": str(tmp_path)}, 0.0, Looks(newest=before))
    assert watch.look(5.0, {}).saved_ago_s is None
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "new.pt").write_text("x")
    ago_s = watch.look(10.0, {}).saved_ago_s
    assert ago_s is not None
    assert 0.0 <= ago_s <= 5.0
    assert watch.look(15.0, {}).saved_ago_s == ago_s + 5.0
    assert newest_below(str(tmp_path / "nowhere")) is None


def test_a_port_that_somebody_listens_on_is_met(tmp_path):
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(20)]  # others here may have a number elsewhere
        for each in bound:
            each.bind(("127.0.0.1", 0))
        listener = next(each for each in bound if not met_at(each.getsockname()[1]))
        port = listener.getsockname()[1]
        listener.listen()
        assert met_at(port)
        watch = Watch("w", os.getpid(), "", {"MASTER_PORT": str(port)}, 0.0)
        assert watch.look(1.0, {}).met
    assert watch.look(2.0, {}).met  # they have met: it does not matter what became of the store
    assert not Watch("w", os.getpid(), "", {}, 0.0).look(1.0, {}).met


LOADED = """
import mmap, socket, sys
library = open({path!r}, 'rb')
held = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
print('up', flush=True)
sys.stdin.readline()
with socket.socket() as place:
    place.bind(('127.0.0.1', 0))
    place.listen()
    print('listens', flush=True)
    sys.stdin.read()
"""


def test_a_worker_with_torch_that_could_be_met_nowhere_is_alone(process, tmp_path):
    (tmp_path / "libtorch_cpu.so").write_bytes(b"x" * 4096)
    child = process(LOADED.format(path=str(tmp_path / "libtorch_cpu.so")))
    watches = {port: Watch("w", os.getpid(), "", {"MASTER_PORT": port} if port else {}, 0.0) for port in ("", "1")}

    def looks(port="1"):  # at a worker whose child trains
        return watches[port].look(1.0, {os.getpid(): [(child.pid, 0)]}).alone

    assert looks()
    assert not looks(""), "of a job for one worker"
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.stdout.readline() == "listens\n"
    assert not looks(), "others may meet it there"


def test_without_torch_and_in_a_group_that_has_met_nobody_is_alone(process, tmp_path):
    assert not Watch("w", process(WAIT).pid, "", {"MASTER_PORT": "1"}, 0.0).look(1.0, {}).alone
    (tmp_path / "libtorch_cpu.so").write_bytes(b"x" * 4096)
    child = process(LOADED.format(path=str(tmp_path / "libtorch_cpu.so")))
    met = Watch("w", child.pid, "", {"MASTER_PORT": "1"}, 0.0, Looks(met_at=lambda _: True)).look(1.0, {})
    assert (met.met, met.alone) == (True, False)


def test_an_agent_tells_what_a_watched_worker_saved_before_it_tells_of_its_end():
    rig = LocalRig()
    text = "import os\nopen(os.environ['SUBLET_CHECKPOINT_DIR'] + '/x.pt', 'w').write('x')\nprint('through')\n"

    async def scene():
        async with agent(rig) as (send, ears):
            place = rig.folder / "saved"
            place.mkdir()
            env = {"SUBLET_CHECKPOINT_DIR": str(place)}
            send(rig.start("w", rig.script("save.py", text), env=env, watch=True, note="sublet: a word before"))
            await ears.next(WorkerDown, code=0)
            told = [type(message) for _, message in ears.heard]
            assert told.index(WorkerSeen) < told.index(WorkerDown)
            assert ears.all(WorkerSeen)[0].saved_ago_s is not None
            assert rig.printed("w") == "sublet: a word before\nthrough\n"

    asyncio.run(scene())
    assert rig.clean_up() == []


# ---------------------------------------------------------------------- what it reads


LOADS = "import sys; open(sys.argv[1], 'rb').read()"
SAVES = "import os, sys; open(sys.argv[1] + '.tmp', 'wb').write(b'new'); os.replace(sys.argv[1] + '.tmp', sys.argv[1])"
OVERWRITES = "import sys; open(sys.argv[1], 'wb').write(b'new')"
DELETES = "import os, sys; os.remove(sys.argv[1]); open(sys.argv[1], 'wb').write(b'new')"


@pytest.mark.parametrize("save", [SAVES, OVERWRITES, DELETES])
def test_what_a_start_has_read_is_seen_even_if_it_writes_anew_at_once(tmp_path, save):
    from sublet.runtime.agent.reading import Reading

    (tmp_path / "ckpt").write_bytes(b"of the first start")
    for load, told in ((True, "yes"), (True, "yes"), (False, "no"), (True, "yes"), (False, "no")):  # start by start
        reading = Reading(str(tmp_path))
        assert reading.look(settled=False) == ("unknown" if reading.told == "unknown" else "no")
        if reading.told == "unknown":
            pytest.skip("this file system notes no reads")
        for code in [LOADS] * load + [save]:
            subprocess.run([sys.executable, "-c", code, str(tmp_path / "ckpt")], check=True)
        assert reading.look(settled=True) == told
        assert reading._held == {}
        if load:  # and once more, of a file that nobody has written since
            assert reading.look(settled=False) == "yes"


def test_a_file_that_was_read_by_the_start_before_is_seen_to_be_read_again_or_not(tmp_path):
    from sublet.runtime.agent.reading import Reading

    (tmp_path / "ckpt").write_bytes(b"of the first start")
    for load in (True, True, False, True):
        reading = Reading(str(tmp_path))
        if reading.told == "unknown":
            pytest.skip("this file system notes no reads")
        if load:
            (tmp_path / "ckpt").read_bytes()
        assert reading.look(settled=True) == ("yes" if load else "no")


def test_nothing_is_said_of_an_empty_directory_and_nothing_is_known_where_no_read_is_noted(tmp_path, monkeypatch):
    from sublet.runtime.agent import reading

    assert reading.Reading(str(tmp_path)).told == ""
    assert reading.Reading(str(tmp_path / "nowhere")).told == ""
    (tmp_path / "ckpt").write_bytes(b"x")
    written = (tmp_path / "ckpt").stat().st_mtime_ns
    monkeypatch.setattr(reading.Reading, "_notes_reads", lambda self: False)
    assert reading.Reading(str(tmp_path)).told == "unknown"
    assert (tmp_path / "ckpt").stat().st_mtime_ns == written


RESUMES = """
import os, sys
place = os.environ['SUBLET_CHECKPOINT_DIR'] + '/x.pt'
step = int(open(place).read()) if sys.argv[1:] == ['resume'] else 0
open(place + '.tmp', 'w').write(str(step + 1))
os.replace(place + '.tmp', place)
"""


def test_an_agent_tells_whether_a_start_has_read_what_the_one_before_had_saved():
    rig = LocalRig()

    async def scene():
        async with agent(rig) as (send, ears):
            place = rig.folder / "saved"
            place.mkdir()
            env, script = {"SUBLET_CHECKPOINT_DIR": str(place)}, rig.script("resumes.py", RESUMES)
            for name, how, loaded in (
                ("a", (), ""),
                ("b", ("resume",), "yes"),
                ("c", (), "no"),
                ("d", ("resume",), "yes"),
            ):
                order = rig.start(name, script, env=env, watch=True, reads=True)
                send(replace(order, argv=(*order.argv, *how)))
                await ears.next(WorkerDown, worker_id=name, code=0)
                seen = ears.all(WorkerSeen, worker_id=name)[-1]
                if seen.loaded == "unknown":
                    pytest.skip("this file system notes no reads")
                assert (name, seen.loaded, seen.saved_ago_s is not None) == (name, loaded, True)

    asyncio.run(scene())
    assert rig.clean_up() == []
