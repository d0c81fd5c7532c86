"""A program in the place of docker: it really runs commands in mount and pid namespaces, on a root tree of their own.

Images and containers are folders. A container goes on when its client is killed, as docker's does. What it is told is
kept, line by line, and an option that it does not know is an error. Run as a script, it is the client.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

FLAGS = {"--rm", "--quiet", "--force"}
VALUES = {"--name", "--network", "--ipc", "--user", "--volume", "--workdir", "--entrypoint", "--gpus", "--format"}
SHOWN = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "etc", "dev")
HERE = Path(os.environ.get("LITTLE_DOCKER", "/"))
TREE = """
set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
for name in SHOWN; do
  [ -e /$name ] || continue
  mkdir -p "$root/$name"; mount --rbind /$name "$root/$name"
done
mkdir -p "$root/proc" "$root/tmp"; mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; touch "$root$2"; fi
  mount --bind "$1" "$root$2"; shift 2
done
shift; where=$1; shift
exec chroot "$root" /bin/sh -c 'cd "$0"; exec "$@"' "$where" "$@"
""".replace("SHOWN", " ".join(SHOWN))


def folder(kind, name):
    return HERE / kind / name.replace("/", "_").replace(":", "_")


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def read(words):
    found, rest = {"--volume": []}, list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in FLAGS:
            found[word] = True
        elif word in VALUES:
            value = rest.pop(0)
            found[word] = [*found["--volume"], value] if word == "--volume" else value
        else:
            fail(f"unknown flag: {word}", 125)
    return found, rest


def run(words):
    options, (image, *argv) = read(words)
    if not folder("images", image).is_dir():
        fail(f"Unable to find image '{image}'", 125)
    home = folder("containers", options["--name"])
    if home.exists():
        fail("the container name is already in use", 125)
    shutil.copytree(folder("images", image), home / "root", symlinks=True)
    pairs = [part for volume in options["--volume"] for part in volume.split(":")[:2]]
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", TREE, "sh", f"{home}/root", *pairs, "--"]
    command += [options.get("--workdir", "/"), options["--entrypoint"], *argv]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)
    (home / "pid").write_text(str(process.pid))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(first(home), number))
    code = process.wait()
    if options.get("--rm"):
        shutil.rmtree(home, ignore_errors=True)
    sys.exit(code if code >= 0 else 128 - code)


def first(home):
    """The pid of its first process, outside."""
    pid = (home / "pid").read_text()
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def remove(words):
    _, (name,) = read(words)
    home = folder("containers", name)
    if not home.is_dir():
        fail(f"Error response from daemon: No such container: {name}")
    with contextlib.suppress(OSError, IndexError):
        os.kill(first(home), signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)


def main(words):
    with (HERE / "told").open("a") as file:
        file.write(json.dumps(words) + "\n")
    verb, rest = words[0], words[1:]
    if verb == "run":
        run(rest)
    elif verb == "rm":
        remove(rest)
    elif verb == "rmi":
        shutil.rmtree(folder("images", read(rest)[1][0]))
    elif verb in ("pull", "image"):
        name = rest[-1]
        if not folder("images", name).is_dir():
            fail(f"No such image: {name}")
    elif verb == "commit":
        shutil.copytree(folder("containers", rest[0]) / "root", folder("images", rest[1]), symlinks=True)
    elif verb == "inspect":
        print(first(folder("containers", read(rest)[1][0])))
    elif verb != "ps":
        fail(f"unknown command: {verb}", 125)


def install(place, bin_folder, *images):
    """The client on a path of its own, with these images."""
    for name in ("images", "containers"):
        (place / name).mkdir(parents=True, exist_ok=True)
    for image in images:
        (place / "images" / image.replace("/", "_").replace(":", "_")).mkdir(exist_ok=True)
    bin_folder.mkdir(parents=True, exist_ok=True)
    client = bin_folder / "docker"
    client.write_text(f'#!/bin/sh\nLITTLE_DOCKER={place} exec {sys.executable} -IS {__file__} "$@"\n')
    client.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1:])
