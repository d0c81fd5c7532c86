"""An agent as a process of this machine: signals, a wait for the boot of a cloud's machine, and turn after turn."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from sublet.machine.files import FILES
from sublet.runtime.agent import processes
from sublet.runtime.agent.agent import Agent, AgentFacts, folder_of
from sublet.runtime.agent.devices import found_devices
from sublet.runtime.agent.dialing import Secure, in_the_clear
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.forking import Forked
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.nursery import Nursery
from sublet.runtime.agent.outside import sweep
from sublet.runtime.agent.users import ActingDisk, Homes, Users
from sublet.runtime.file_sync.records import records
from sublet.runtime.identity.enrolment import Passport

CHUNK = 1 << 16
SWEEP_S = 120.0  # for containers that are to be removed


def run(facts: AgentFacts, nursery: Nursery | None = None, *, own_users: bool = False) -> None:
    """Serve until dismissed, ended or no longer renewed; nothing that was started is left then.

    Workers come from the `nursery`, where there is one; then each job's may run as a user of their own, if we are root.
    """
    try:
        _sweep_containers()
        _serve(_as_found(facts), nursery, own_users=own_users)
    finally:
        _sweep_containers(os.getpid())
        if not own_users:  # whose machine ends with it
            sweep(folder_of(facts), FILES, DISK)
        me = processes.look(os.getpid())
        if me is not None and me.session == me.pid:
            processes.kill_instance(me.pid, me.start)


def _sweep_containers(leaving: int = 0) -> None:
    """Remove containers of earlier agents of this machine, and at its end those of this one."""
    if any(leaving in (0, each.agent) for each in records()):
        command = [
            sys.executable,
            "-P",
            "-m",
            "sublet.runtime.file_sync.contained",
            "sweep",
            *([str(leaving)] * bool(leaving)),
        ]
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run(command, check=False, timeout=SWEEP_S)  # noqa: S603 - ourselves


def _as_found(facts: AgentFacts) -> AgentFacts:
    """Facts with unstated values from the environment or the machine."""
    gpus = found_devices(os.environ) if facts.gpus is None else facts.gpus
    return replace(facts, gpus=gpus, host=facts.host or os.environ.get("SUBLET_HOST", ""))


def _serve(facts: AgentFacts, nursery: Nursery | None, *, own_users: bool) -> None:
    machine = _machine(facts, nursery, own_users=own_users)
    agent = Agent(facts, machine)
    if nursery is not None and not nursery.ready:
        machine.selector.register(nursery, selectors.EVENT_READ, _Warming(nursery, machine.selector))
    machine.selector.register(wake := _Wake(agent), selectors.EVENT_READ, wake)
    processes.adopt_orphans()
    boot_until_s = machine.wall.monotonic() + facts.boot_s
    while not agent.asked and (left_s := boot_until_s - machine.wall.monotonic()) > 0:
        machine.selector.select(left_s)
    patience_s: float | None = 0.0
    while patience_s is not None:
        patience_s = agent.turn(machine.selector.select(patience_s))


def _machine(facts: AgentFacts, nursery: Nursery | None, *, own_users: bool) -> Machine:
    selector, secure = selectors.DefaultSelector(), _secure(facts)
    homes = Homes(folder_of(facts) / "home", Path.home())
    if nursery is None:
        return Machine(selector=selector, secure=secure, home=homes.home)

    def warm() -> bool:
        return nursery.ready

    if not own_users:
        processes = Forked(nursery=nursery)
        return Machine(selector=selector, secure=secure, processes=processes, warm=warm, home=homes.home)
    users = Users(folder_of(facts))
    return Machine(
        selector=selector,
        secure=secure,
        warm=warm,
        processes=Forked(users, nursery),
        home=users.home,
        give=users.give,
        acting=users.acting,
        disk=ActingDisk(DISK, users.acting),
    )


def _secure(facts: AgentFacts) -> Secure:
    if not facts.authority:
        return in_the_clear
    folder = Path(facts.notice_file).parent
    return Passport(facts.node_id, facts.token, facts.authority, folder).secure


class _Warming:
    """The loop hears once from where workers come."""

    def __init__(self, nursery: Nursery, selector: selectors.BaseSelector) -> None:
        self._nursery, self._selector = nursery, selector

    def attend(self, events: int) -> None:
        """They may begin."""
        self._selector.unregister(self._nursery)
        self._nursery.attend(events)


class _Wake:
    """Signals wake the loop through a socket: the end of a child, and the request to go."""

    def __init__(self, agent: Agent) -> None:
        self._heard, self._writer = socket.socketpair()
        for end in (self._heard, self._writer):
            end.settimeout(0.0)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes the loop, which looks which one it was
        signal.signal(signal.SIGTERM, lambda *_: agent.ask_to_go())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def fileno(self) -> int:
        """The descriptor that the loop waits for."""
        return self._heard.fileno()

    def attend(self, _: int) -> None:
        """Awake."""
        with contextlib.suppress(BlockingIOError):
            self._heard.recv(CHUNK)
