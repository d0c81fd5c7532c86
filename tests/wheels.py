"""Wheels of both distributions in clean environments: `make wheels`, or `python -m tests.wheels NAME ...` for some.

Each extra is installed alone in an environment of its own below out/wheels, and what it enables is tried once. A
command for which an extra is missing names it. What is wrong is told in full; the exit code is 1 then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "out" / "wheels"
SCRIPTS = ROOT / "tests/adoption/scripts"
MOST_S = 900.0
JOB = str(ROOT / "examples" / "mlp.yaml")
HOSTS = '[[hosts]]\nname = "desk1"\nhost = "127.0.0.1"\nport = 1\n'
SUITE = """from sublet.testing.conformance.policies import PolicySuite
class TestFifo(PolicySuite):
    registered_as = "fifo"
    examples = 2
"""
AWS = """from sublet.runtime.providers.aws.calls import client_maker
print(client_maker()("ec2", "us-east-1").meta.region_name)"""
STORE = "from sublet.machine.remote import open_uri; print(type(open_uri('s3://bucket/prefix')).__name__)"
TLS = """from pathlib import Path; from sublet.runtime.identity import authority, enrolment
print(authority.Authority(Path("ca")).enrol("node", "secret", enrolment.new_request()[1]))"""
TRAVEL = """from pathlib import Path; from sublet.runtime.file_sync.packing import travelling_files
print(sorted(name for name, _ in travelling_files(Path("work"))))"""
RAY = "import ray; ray.init(num_cpus=1, include_dashboard=False); print(ray.get(ray.remote(abs).remote(-7)))"
TRACK = """from sublet.integrations.{} import {} as Tracker; tracker = Tracker({})
tracker.begin("one"); tracker.write(1, {{"loss": 2.5}}); tracker.end(finished=True); print("logged")"""


class Try(NamedTuple):
    """A command of an environment, what it must print, and what it exits with."""

    words: Sequence[str]
    says: str
    code: int = 0


def python(text: str, says: str = "", code: int = 0) -> Try:
    return Try(("python", *([text] if text.endswith(".py") else ["-c", text])), says, code)


def sublet(words: str, says: str = "", code: int = 0) -> Try:
    return Try(("sublet", *words.split()), says, code)


def lacks(words: str, extra: str) -> Try:
    return sublet(words, f"is not installed\n  next: pip install '.[{extra}]'", 1)


LAB = sublet("demo --hosts", "comes, is not installed\n  next: pip install ./lab", 1)
CERTIFIES, TRAVELS = python(TLS, "BEGIN CERTIFICATE"), python(TRAVEL, "['.gitignore', 'kept']")
TRIED: dict[str, tuple[Try, ...]] = {
    "product": (
        *(sublet("simulate pollux-1 --budget 63", "GPU-hours"), sublet("--help", "demo"), lacks("demo", "train")),
        *(lacks("demo --grid", "train"), lacks("up", "server"), lacks(f"submit {JOB} --dry-run", "server")),
        *(lacks("simulate pollux-1 --budget 63 --serve", "server"), LAB),
        *(sublet("check --provider aws", "'.[aws]'", 1), sublet("check --hosts hosts.toml", "'.[ssh]'", 1)),
        sublet("spot bamboo-p3", "comes, is not installed\n  next: pip install ./lab", 1),
        *(python(STORE, "'.[store]'", 1), python(TLS, "'.[tls]'", 1), python(TRAVEL, "'.[travel]'", 1)),
        *(python("import sublet.testing.conformance", "'.[testing]'", 1), lacks("up --provider ray", "server")),
    ),
    "train": (sublet("demo", "with notice and"), sublet("demo --grid", "samples lost")),
    "server": (
        *(sublet("up --budget 2/h", "controller"), sublet(f"submit {JOB} --dry-run", "mlp"), sublet("ps")),
        *(sublet("down", "stopped"), lacks("demo", "train")),
    ),
    "torch": (python(f"{ROOT}/examples/train_mlp.py"),),
    "ray": (python(RAY, "7"), lacks("up --provider ray", "server")),
    "aws": (python(AWS, "us-east-1"), sublet("check --provider aws", "aws.toml", 1), TRAVELS),
    "store": (python(STORE, "Objects"),),
    "ssh": (sublet("check --hosts hosts.toml", "desk1", 1), CERTIFIES, TRAVELS),
    "tls": (CERTIFIES,),
    "travel": (TRAVELS,),
    "testing": (Try(("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_suite.py"), " passed"),),
    "tensorboard": (python(TRACK.format("tensorboard", "TensorBoard", "'runs'"), "logged"),),
    "wandb": (python(TRACK.format("wandb", "Wandb", "mode='offline'"), "logged"),),
    "mlflow": (python(TRACK.format("mlflow", "Mlflow", "tracking_uri='sqlite:///m.db'"), "logged"),),
    "accelerate": (python(f"{SCRIPTS}/accelerate/after.py"),),
    "transformers": (python(f"{SCRIPTS}/hf_trainer/after.py"),),
    "lightning": (python(f"{SCRIPTS}/lightning/after.py"),),
    "lab": (
        *(sublet("study --list", "pollux-oracle"), sublet("data"), sublet("policies", "tiresias")),
        *(sublet("forecast bamboo-p3 --moments 5", "'./lab[forecast]'"), sublet("spot bamboo-p3 --hours 1", "liveput")),
        *(sublet("study regions --quick"), sublet("demo --hosts", "'./lab[box]'", 2)),
    ),
    "lab[forecast]": (sublet("forecast bamboo-p3 --moments 5", "\narima "),),
    "lab[box]": (sublet("demo --hosts", "samples"),),
}


def built() -> dict[str, Path]:
    """The wheel of each distribution."""
    shutil.rmtree(PLACE / "dist", ignore_errors=True)
    for project in (ROOT, ROOT / "lab"):
        words = ["-m", "pip", "wheel", "-q", "--no-deps", "-w", str(PLACE / "dist"), str(project)]
        subprocess.run([sys.executable, *words], check=True)
    return {wheel.name.partition("-")[0]: wheel for wheel in (PLACE / "dist").glob("*.whl")}


def environment(name: str, wheels: dict[str, Path]) -> Path:
    """Its folder of commands; what is there already gets the new wheels."""
    folder = PLACE / "envs" / name.replace("[", "-").rstrip("]")
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-compile"]
    wanted = [str(wheels["sublet"]) + ("" if name == "product" or name.startswith("lab") else f"[{name}]")]
    wanted += [str(wheels["sublet_lab"]) + name.removeprefix("lab")] if name.startswith("lab") else []
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *wanted], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", *(each.partition("[")[0] for each in wanted)], check=True)
    return folder / "bin"


def faults(name: str, commands: Path) -> int:
    """A line for each command, and all that it printed if it did not as it must; how many those are."""
    bad, work = 0, PLACE / "work"
    shutil.rmtree(work, ignore_errors=True)
    (work / "work").mkdir(parents=True)
    files = {"hosts.toml": HOSTS, "test_suite.py": SUITE, "work/.gitignore": "left", "work/left": "", "work/kept": ""}
    for path, text in files.items():
        (work / path).write_text(text, encoding="utf-8")
    own = {"PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(work), "XDG_STATE_HOME": str(work)}
    for words, says, code in TRIED[name]:
        began_s = time.perf_counter()
        run = [str(commands / words[0]), *words[1:]]
        done = subprocess.run(
            run, cwd=work, env={**os.environ, **own}, capture_output=True, timeout=MOST_S, check=False
        )
        said, took = (done.stdout + done.stderr).decode(), f"{time.perf_counter() - began_s:.1f} s"
        wrong = done.returncode != code or says not in said
        bad += wrong
        told = f"WRONG {took}; it exits with {done.returncode}\n{said}" if wrong else f"ok    {took}"
        print(f"{name:<13} {' '.join(' '.join(words).split())[:80]:<80} {told}", flush=True)
    return bad


if __name__ == "__main__":
    wheels = built()
    sys.exit(1 if sum([faults(name, environment(name, wheels)) for name in sys.argv[1:] or TRIED]) else 0)
