"""One warm process per machine, with the libraries of training imported and nothing else done; agents are its forks.

It speaks over a socket pair with its parent: a request is one JSON object, with the node's life file beside it as an
open descriptor; the answer is the pid. It ends when its requester is gone; the agents stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from sublet.runtime.agent import processes
from sublet.runtime.agent.agent import AgentFacts
from sublet.runtime.agent.nursery import import_all
from sublet.runtime.agent.serving import run

MOST_REQUEST = 1 << 16


def serve(requests: socket.socket, preload: Sequence[str]) -> None:
    """Import, say so, fork on request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all(preload)
    processes.adopt_orphans()
    agents: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda *_: _reap(agents))  # not before: an import may start helpers of its own
    requests.send(json.dumps({"ready": os.getpid()}).encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, MOST_REQUEST, 1)
        if not data:
            return
        request = json.loads(data)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # the newborn must not be taken for an orphan
        pid = os.fork()
        if pid == 0:
            requests.close()
            _agent(request, descriptors[0])  # does not return
        agents.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(json.dumps({"node_id": request["node_id"], "pid": pid}).encode())


def life_of(descriptor: int) -> tuple[int, int] | None:
    """(pid, start) that the agent of a node has written into its life file."""
    words = os.pread(descriptor, 100, 0).split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None  # noqa: PLR2004 - a process and its birth


def _agent(request: dict[str, Any], life: int) -> None:
    """The child: a session of its own, and the lock on its life file until it ends."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os.setsid()
        me = processes.look(os.getpid())
        if me is None:
            return
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ours already: the description came locked
        os.pwrite(life, f"{me.pid} {me.start}\n".encode(), 0)
        processes.rename("sublet-agent")
        log = os.open(request.pop("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        run(AgentFacts(**request))
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may return into the template's own loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _reap(agents: set[int]) -> None:
    """See off agents that have ended, and end what they leave: orphans come here only when their agent is gone."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            agents.discard(pid)
    for pid in processes.children():
        if pid not in agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def main() -> None:
    """`python -m sublet.runtime.agent.template DESCRIPTOR MODULE...`, started by the provider."""
    processes.rename("sublet-template")
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests, sys.argv[2:])


if __name__ == "__main__":
    main()
