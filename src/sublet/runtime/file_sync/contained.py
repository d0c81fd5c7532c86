"""`python -m sublet.runtime.file_sync.contained FACTS prepare|run [COMMAND]`: a job's processes in containers.

`prepare` gets the image, and runs the job's setup in a container that becomes the image of its workers; `run` is one
worker: it ends as its container does, and SIGTERM goes there. Of each container and image there is a record before it
is there. A watcher outside the worker's group removes the container when the worker is gone, however it went; `sweep`
removes what the records say of agents that are no more. Variables go by a file, never by a command line.

Made for docker and podman by their documents. No daemon of either has run it yet: the tests have a program in their
place that runs commands in namespaces, and the option parser of docker's own client.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Final

from sublet.runtime.agent.devices import VISIBLE
from sublet.runtime.agent.processes import alive, die_with_parent
from sublet.runtime.agent.users import SKY_WORKDIR
from sublet.runtime.file_sync.records import FOLDER, Record, folder, records

ENGINES: Final = ("docker", "podman")
ANSWER_S: Final = 30.0
REMOVE_S: Final = 120.0
NONE_HERE: Final = 127  # no engine: as a shell says of a command that is not there
IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OURS: Final = re.compile(r"SUBLET_|MASTER_|NCCL_|GLOO_|SKYPILOT_|RANK$|WORLD_SIZE$|LOCAL_|NODE_RANK$")
NOT_INSIDE: Final = ("SUBLET_CONTROL_FD", "SUBLET_NOTICE_FILE", "SUBLET_PYTHON", "SUBLET_CONTAINER", FOLDER)
GPUS: Final = Path("/dev/nvidiactl")
ENV: Final = "/sublet-env"
# The first process of a container has no default for SIGTERM, so a shell is it, and hands it on.
INSIDE: Final = f"""\
. {ENV}; "$@" & child=$!
trap 'kill -TERM $child' TERM; trap 'kill -INT $child' INT
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
exit $code"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """Facts that do not change between the setup and the workers of a job on a node; no secrets."""

    image: str
    agent: int = 0  # its pid and its birth
    born: int = 0
    name: str = ""  # of what is to run
    cwd: str = "/"
    seen: tuple[str, ...] = ()  # paths of the node that are there, too
    names: tuple[str, ...] = ()  # variables of the job
    inside: str = ""  # its setup
    records: str = ""  # where the agent keeps them

    @property
    def prepared(self) -> str:
        """The image of its workers."""
        if not self.inside:
            return self.image
        key = hashlib.sha256(f"{self.image}\0{self.inside}\0{self.cwd}".encode()).hexdigest()[:16]
        return f"sublet-setup:{self.agent}-{self.born}-{key}"

    @property
    def container(self) -> str:
        """Its name; of one worker, or of the setup."""
        return f"sublet-{self.agent}-{self.born}-{re.sub(r'[^A-Za-z0-9_.-]', '-', self.name)}"

    def to_word(self) -> str:
        """For a command line."""
        return json.dumps({key: getattr(self, key) for key in self.__dataclass_fields__})

    @classmethod
    def from_word(cls, word: str) -> ContainerFacts:
        """As it was said."""
        found: dict[str, Any] = json.loads(word)
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()}
        return cls(**values)


def run_words(
    facts: ContainerFacts, image: str, argv: Sequence[str], *, env_file: Path, visible: str | None
) -> list[str]:
    """The words after `docker` or `podman`; `visible` are the GPUs of the worker, None without any."""
    words = ["run", "--rm", "--name", facts.container, "--network", "host", "--ipc", "host", "--user", "0:0"]
    for path in (facts.cwd, *facts.seen):
        whole = str(Path(path).expanduser())
        words += ["--volume", f"{whole}:{whole}"]
        if path.startswith("~/") and whole != (inside := f"/root/{path[2:]}"):
            words += ["--volume", f"{whole}:{inside}"]
    if facts.cwd != "/":
        words += ["--volume", f"{facts.cwd}:/root/{SKY_WORKDIR}"]
    words += ["--volume", f"{env_file}:{ENV}:ro", "--workdir", facts.cwd]
    if visible is not None:
        words += ["--gpus", f'"device={visible}"' if visible else "all"]
    return [*words, "--entrypoint", "sh", image, "-c", INSIDE, "sh", *argv]


@dataclass(slots=True)
class ContainerEngine:
    """One that answers: docker, or podman, which takes the same words but for GPUs."""

    name: str
    process: subprocess.Popen[bytes] | None = field(default=None)

    @classmethod
    def found(cls) -> tuple[ContainerEngine | None, str]:
        """The first that answers; or why there is none."""
        why = "it has neither docker nor podman"
        for name in ENGINES:
            if shutil.which(name) is None:
                continue
            done = _call(name, ["ps", "--quiet"])
            if done.returncode == 0:
                return cls(name), ""
            why = f"{name} does not answer: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}"
        return None, why

    def do(self, *words: str) -> bool:
        """Something short; whether it succeeded."""
        return _call(self.name, words).returncode == 0

    def words(self, facts: ContainerFacts, image: str, argv: Sequence[str], env_file: Path) -> list[str]:
        """The whole command, with the GPUs that this process was given."""
        visible = os.environ.get(VISIBLE, "") if GPUS.exists() else None
        if self.name == "docker" or visible is None:
            return [self.name, *run_words(facts, image, argv, env_file=env_file, visible=visible)]
        devices = [word for each in (visible or "all").split(",") for word in ("--device", f"nvidia.com/gpu={each}")]
        words = run_words(facts, image, argv, env_file=env_file, visible=None)
        return [self.name, *words[:1], *devices, *words[1:]]


def prepare(engine: ContainerEngine, facts: ContainerFacts) -> int:
    """The image of the workers is there."""
    if not engine.do("image", "inspect", facts.image):
        done = subprocess.run([engine.name, "pull", "--quiet", facts.image], check=False)  # noqa: S603 - its output is the log's
        if done.returncode:
            _say(f"{facts.image} cannot be had")
            return done.returncode
    if not facts.inside:
        return 0
    image = Record.of_image(engine.name, facts.prepared, facts.agent, facts.born)
    image.write()
    return _run(engine, facts, facts.image, ("bash", "-euo", "pipefail", "-c", facts.inside), becomes=facts.prepared)


def run(engine: ContainerEngine, facts: ContainerFacts, argv: Sequence[str]) -> int:
    """One worker."""
    return _run(engine, facts, facts.prepared, argv)


def _run(engine: ContainerEngine, facts: ContainerFacts, image: str, argv: Sequence[str], becomes: str = "") -> int:
    record = Record.of_container(engine.name, facts.container, facts.agent, facts.born)
    _remove(record)  # one of this name that was left behind
    record.write()
    env_file = record.beside(".env")
    _write_env(env_file, facts.names)
    for path in facts.seen:
        with contextlib.suppress(OSError):  # it is a file
            Path(path).expanduser().mkdir(parents=True, exist_ok=True)
    words = engine.words(facts, image, argv, env_file)
    if becomes:
        words.remove("--rm")
    watcher = _watch(record)
    try:
        process = subprocess.Popen(words, preexec_fn=die_with_parent)  # noqa: PLW1509, S603 - one thread; the user's command
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: process.send_signal(number))
        _note_pid(engine, facts.container, record, process)
        code = process.wait()
        if becomes and code == 0:
            code = _call(engine.name, ["commit", facts.container, becomes], patience_s=REMOVE_S * 10).returncode
    finally:
        _remove(record)
        os.close(watcher)
    return code


def _note_pid(engine: ContainerEngine, container: str, record: Record, process: subprocess.Popen[bytes]) -> None:
    """A record by which the processes inside are found from outside: their time on processors is a sign of life."""
    for _ in range(50):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            return
        done = _call(engine.name, ["inspect", "--format", "{{.State.Pid}}", container])
        if done.returncode == 0 and done.stdout.strip().isdigit() and int(done.stdout):
            record.beside(".pid").write_text(done.stdout.strip(), encoding="ascii")
            return


def _write_env(path: Path, names: Sequence[str]) -> None:
    """For `sh`, whatever is in the values."""
    path.unlink(missing_ok=True)
    wanted = [name for name in os.environ if (name in names or OURS.match(name)) and name not in NOT_INSIDE]
    lines = [f"export {name}={shlex.quote(os.environ[name])}\n" for name in wanted if IDENTIFIER.fullmatch(name)]
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(lines)


def _watch(record: Record) -> int:
    """A process outside our group that removes the container when our end of a pipe is closed; that end."""
    ear, ours = os.pipe()
    os.set_inheritable(ours, False)  # noqa: FBT003 - the call has no name for it
    if os.fork():
        os.close(ear)
        return ours
    try:
        os.setsid()
        os.close(ours)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.dup2(ear, 3)
        os.closerange(4, 1 << 16)  # the worker's line among them, which is to end with the worker
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.read(3, 1)
        _remove(record)
    finally:
        os._exit(0)


def _remove(record: Record) -> bool:
    """Remove the container, and then the record; whether that is so. One that was removed before is nothing to tell."""
    if not record.is_there():
        return True
    words = ["rmi", "--force", record.name] if record.is_image else ["rm", "--force", record.name]
    done = _call(record.engine, words, patience_s=REMOVE_S)
    if done.returncode and "no such" not in done.stderr.lower() and "no container" not in done.stderr.lower():
        return False
    record.forget()
    return True


def sweep(leaving: int = 0) -> int:
    """Remove the containers of dead agents, or of the one that leaves: containers first, which use their images."""
    dead = [each for each in records() if each.agent == leaving or not alive(each.agent, each.born)]
    return sum(_remove(record) for record in sorted(dead, key=lambda record: record.is_image))


def _call(engine: str, words: Sequence[str], patience_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - an engine of containers
            [engine, *words], capture_output=True, text=True, check=False, timeout=patience_s, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess([engine, *words], 125, "", str(error))


def _say(text: str) -> None:
    print(f"resources.image_id: {text}", flush=True)  # noqa: T201 - goes to the log


def main(words: Sequence[str]) -> int:
    """`FACTS prepare`, `FACTS run COMMAND`, `sweep`, or `sweep PID` of an agent that leaves."""
    if words[0] == "sweep":
        sweep(*map(int, words[1:]))
        return 0
    facts = ContainerFacts.from_word(words[0])
    if facts.records:
        os.environ[FOLDER] = facts.records
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    engine, why = ContainerEngine.found()
    if engine is None:
        _say(f"this node runs no containers: {why}")
        return NONE_HERE
    return prepare(engine, facts) if words[1] == "prepare" else run(engine, facts, words[2:])


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    if ended < 0:
        signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
        Event().wait(1.0)
    sys.exit(ended)
