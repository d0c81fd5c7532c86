"""A folder in which the commands of one page are typed, one after the other, with a controller of its own.

What a page names and does not show (`train.py`, `jobs.csv`, ...) lies there as small as can be.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from sublet.api.state import StateDir
from tests.rigs.guide_commands import ROOT, Command
from tests.rigs.guide_typist import PATIENCE_S, typist

INTERRUPTED = (130, -signal.SIGINT)  # of which a shell sees the first
WATCHES = re.compile(r" ps -w| logs \S+ -f| events .*-f| --serve")  # until Ctrl-C
SMALLER = {  # what is added, so that a command takes a second
    "simulate": ("--jobs", "4"),
    "compare": ("--jobs", "4"),
    "spot": ("--hours", "0.5"),
    "forecast": ("--moments", "10"),
    "profile": ("--seconds", "2"),
}

SESSION = """
import argparse, time, torch
from torch.utils.data import TensorDataset
from sublet import train

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
with train.session(model, optimizer, data, global_batch=16, batch_range=(8, 256), epochs=options.epochs) as s:
    for _ in s.epochs():
        for x, y in s:
            time.sleep(PAUSE_S)
            s.step(((model(x) - y) ** 2).mean())
"""
PLAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
"""
JOBS = "job_id,submit_s,duration_s,gpus,max_gpus,user,team\na,0,1800,1,4,ann,vision\nb,60,600,2,8,bob,speech\n"
MINE = "gpu,gpus,samples_per_s\nH100,1,310\nH100,3,840\n"
JOB = "name: mine\nrun: python train.py\n"


class Stage:
    """`changed` are names of a page that stand for something that is had otherwise here, such as an address."""

    def __init__(self, folder: Path, commands: Iterable[Command], changed: Mapping[str, str], **env: str) -> None:
        self.folder, self._said, self._count = folder / "work", folder, 0
        on_cpus = {"--profile train --samples": "--profile train --as-gpu T4 --samples"}  # it was measured here
        self.changed = {"/backup/": f"{folder}/backup/", "bert-3": "mlp-1", **on_cpus, **changed}
        self.state, self._before = folder / "state", ""
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("SUBLET_", "COV_"))}
        self.env |= {"SUBLET_STATE": str(self.state), "HOME": str(folder / "home"), **env}
        self.env["PATH"] = f"{Path(sys.executable).parent}:{self.env['PATH']}"
        for name in ("home", "backup", "work"):
            (folder / name).mkdir()
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        (self.folder / "examples" / "train_mlp.py").write_text(
            SESSION.replace("PAUSE_S", "5e-2").replace("options.epochs)", "10**6)")
        )
        converts = any(command.plain.startswith("sublet convert") for command in commands)
        texts = {"train.py": PLAIN if converts else SESSION.replace("PAUSE_S", "0"), "jobs.csv": JOBS}
        for name, text in {**texts, "mine.csv": MINE, "job.yaml": JOB}.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def type(self, command: Command) -> tuple[int, str]:
        """The exit code, and all that was said."""
        here = {"127.0.0.1:PORT": self._place()} if "PORT" in command.text else {}
        for name, value in {**self.changed, **here}.items():
            command = Command(command.line, command.text.replace(name, value), command.fails)
        if command.program == "sublet":
            words = command.words[1:]
            if words[0] == "up" and self.state.exists():
                self.sublet("down")  # it is another scene
            at = words.index("--") if "--" in words else len(words)
            words[at:at] = () if "--deadline" in words else SMALLER.get(words[0], ())
            return self.sublet(*words, watched=bool(WATCHES.search(command.plain)))
        if command.plain.startswith("export "):
            name, _, value = command.words[1].partition("=")
            self.env[name] = value
            return 0, ""
        if re.match(r"\w+=\S*$|cd ", command.plain):  # for the lines of the shell behind it
            self._before += f"{command.text}\n"
            return 0, ""
        return self.shell(f"{self._before}{command.text}")

    def shell(self, text: str) -> tuple[int, str]:
        """What is none of ours."""
        text = text.replace(".venv/bin/python", sys.executable)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def sublet(self, *words: str, watched: bool = False) -> tuple[int, str]:
        """One command line of ours, until it ends, or has said something where it is watched: Ctrl-C is its end."""
        self._count += 1
        out = self._said / f"said-{self._count}"
        out.touch()
        code = typist().type(words, self.folder, self.env, out, watched=watched)
        over = 0 if watched and code in INTERRUPTED else code
        return over, out.read_text(encoding="utf-8", errors="replace")

    def _place(self) -> str:
        """Where the controller listens."""
        return str(StateDir(self.state).address()).removeprefix("http://")

    def end(self) -> None:
        """No controller is left."""
        if self.state.exists():
            self.sublet("down", "--end-jobs")
