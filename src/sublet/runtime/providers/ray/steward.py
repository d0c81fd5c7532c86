"""Our man on a Ray node: an actor that reserves the node's resources at Ray, and starts, watches and ends agents there.

    controller -- Ray --> steward -- fork --> template -- fork --> agent -- fork --> workers

It is detached, so that agents outlive a controller that crashes. Each process above dies with the one before it, so
that nothing of ours outlives Ray on a machine; and a steward that holds nothing and hears nothing for a while ends
itself. The reservation is a placement group that the steward makes, so Ray gives it back whenever the steward is gone.

The warm process of a Ray node: as on one machine, but it and all agents end at once when the steward ends. When Ray's
own processes on a machine die, Ray counts the machine as lost and may give it to others. Nothing of ours may train on
there, so every process of ours is tied to the one that started it, up to the steward, which is Ray's.

Every call to Ray is made within `calling_ray`:

    it is dead, says Ray           StewardGone    an actor died, or can never be placed
    one of ours, from an actor     itself         what a steward raised on purpose
    not allowed                    NoAccess       a token of Ray's that is missing or wrong
    everything else                NoAnswer       out of memory, a time-out, a lost object, a head that is away: it may
                                                  have been done, or not, and asking again does no harm
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sublet.errors import MissingExtra, NoAccess, NoAnswer, RentFailed, StewardGone, SubletError
from sublet.machine.wall import WALL
from sublet.runtime.agent import processes
from sublet.runtime.agent.host import network_env
from sublet.runtime.agent.template import serve
from sublet.runtime.providers.local.nodes import Nodes, Template, TemplateForker
from sublet.runtime.providers.local.records import NodeRecord, Records
from sublet.wire.lines import plain_text


def free_resources(ray: Any) -> Mapping[str, Mapping[str, float]]:
    """Free resources of each node, by its id: the public call adds all nodes up."""
    found: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()  # noqa: SLF001 - above
    return found


def gcs_client(ray: Any) -> Any:
    """A client of Ray's head, as Ray Serve has one: nothing public tells which nodes are drained."""
    return ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)  # noqa: SLF001 - above


def import_ray() -> Any:
    """The library, which is an extra."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


@contextmanager
def calling_ray(what: str) -> Iterator[None]:
    """Errors of Ray within come out as errors of our own; `what` was asked of it."""
    try:
        yield
    except Exception as error:
        ours = _ours(what, error)
        if ours is error:
            raise
        raise ours from error


def _ours(what: str, error: Exception) -> SubletError:
    kinds = import_ray().exceptions
    why = plain_text(f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}")
    if isinstance(error, kinds.RayTaskError) and isinstance(error.cause, SubletError):
        return error.cause  # Ray's own looks like one of ours, but is a page long
    if isinstance(error, SubletError):
        return error
    if isinstance(error, (kinds.ActorDiedError, kinds.ActorUnschedulableError)):
        return StewardGone(what, why)
    if (denied := getattr(kinds, "AuthenticationError", None)) is not None and isinstance(error, denied):
        return NoAccess(what, why, hint="give this process the token of the Ray cluster (RAY_AUTH_TOKEN)")
    if isinstance(error, kinds.OutOfMemoryError):
        why = f"Ray's memory monitor ended it, the machine is short of memory: {why}"
    return NoAnswer(what, why)


STEWARD = "SUBLET_STEWARD_PID"
GONE = b"gone\n"  # the last word on a life line: the agent has ended
RESERVE_S = 3.0  # for Ray to grant what we ask; it takes milliseconds unless others have it
RETURN_S = 1.0  # for Ray to take back what we return
RETURN_LOOK_S = 0.02
LOOK_S = 1.0  # between looks at whether anybody still wants us
# Ray hides devices from an actor that has reserved none for itself; jobs need them.
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class _TiedTemplate(Template):
    """A template that dies with this process, together with its agents."""

    module = "sublet.runtime.providers.ray.steward"

    def __init__(self, preload: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        super().__init__(preload, log)
        self.env = {**env, STEWARD: str(os.getpid())}


def main() -> None:
    """`python -m sublet.runtime.providers.ray.steward DESCRIPTOR MODULE...`, started by the steward."""
    processes.rename("sublet-template")
    processes.die_with_parent()
    if os.getppid() != int(os.environ.pop(STEWARD)):
        return  # it died before we could ask for that
    me = os.getpid()

    def tie() -> None:
        if os.getppid() == me:  # an agent; what agents start sees to it by itself
            processes.die_with_parent()

    os.register_at_fork(after_in_child=tie)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests, sys.argv[2:])


if __name__ == "__main__":
    main()


class Steward:
    """See the module. Every call may be repeated; all are made by the one controller of our namespace."""

    def __init__(self, *, namespace: str, preload: Sequence[str], idle_s: float) -> None:
        self._ray = import_ray()
        here = self._ray.get_runtime_context().get_node_id()
        self._ray_node, self._host, self._idle_s = here, self._ray.util.get_node_ip_address(), idle_s
        self._folder = _own_folder(namespace, here)
        env = _environment(self._host)
        self._template = _TiedTemplate(preload, self._folder / "template.log", env)
        self._nodes = Nodes(Records(self._folder / "nodes"), TemplateForker(self._template), self._on_death)
        self._groups: dict[str, Any] = {}  # node -> its placement group
        self._listeners: dict[str, set[asyncio.StreamWriter]] = defaultdict(set)
        self._one_by_one = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard_s, self._calls = WALL.monotonic(), 0  # the last word of a controller; calls under way
        threading.Thread(target=self._leave_when_idle, name="sublet-idle", daemon=True).start()

    # ------------------------------------------------------------------ what the controller asks

    async def ready(self) -> dict[str, Any]:
        """Begin, the first time; where our life lines are."""
        async with self._call():
            if self._server is None:
                raylet = os.pidfd_open(os.getppid())
                asyncio.get_running_loop().add_reader(raylet, os._exit, 1)
                async for left in self._nodes.find_again():
                    self._nodes.end(left)
                self._template.start()
                self._server = await asyncio.start_server(self._life_line, self._host, 0)
        return {"host": self._host, "port": self._server.sockets[0].getsockname()[1], "pid": os.getpid()}

    async def warm(self) -> None:
        """Returns when the template has imported what workers need."""
        async with self._call():
            await self._template.warm()

    async def begin(
        self, record: Mapping[str, Any], request: Mapping[str, Any], reserves: Mapping[str, float]
    ) -> dict[str, Any]:
        """Reserve, and fork an agent; one that has this token is found again. {"refused": why} if it cannot be."""
        new = NodeRecord(**record)
        async with self._call():
            known = self._nodes.held.get(new.node_id)
            if known is not None:
                return asdict(known) if known.token == new.token else {"refused": "the name is in use"}
            group = None
            if reserves:
                group = await asyncio.to_thread(self._reserve, dict(reserves))
                if group is None:
                    return {"refused": "others of the cluster use it"}
            try:
                born = await self._nodes.fork(new, self._facts(new, request))
            except RentFailed as error:
                await self._free(group)
                return {"refused": error.why}
            except BaseException:
                await self._free(group)
                raise
            if group is not None:
                self._groups[new.node_id] = group
            self._nodes.keep(born)
            return asdict(born)

    async def end(self, node_id: str) -> None:
        """Returns when no process of it is left, and its resources are Ray's again."""
        async with self._call():
            if (record := self._nodes.held.get(node_id)) is not None:
                self._nodes.end(record)
            await self._see_off(node_id)

    async def held(self) -> list[dict[str, Any]]:
        """The records of all that exists here."""
        self._heard_s = WALL.monotonic()
        held = self._nodes.held.values()
        return [asdict(record) for record in held if self._nodes.records.is_alive(record)]

    # ------------------------------------------------------------------ Ray's resources

    @calling_ray("a reservation at Ray")
    def _reserve(self, reserves: dict[str, float]) -> Any:
        """In a thread. Here and nowhere else, where this Ray can be told so; an older one takes it for a wish."""
        groups, here = self._ray.util.placement_group, self._ray_node
        if "bundle_label_selector" in inspect.signature(groups).parameters:
            group = groups([reserves], bundle_label_selector=[{"ray.io/node-id": here}])
        else:
            group = groups([reserves], strategy="STRICT_PACK", _soft_target_node_id=here)
        granted = False
        try:
            if group.wait(RESERVE_S):
                table = self._ray.util.placement_group_table(group)
                granted = set(table["bundles_to_node_id"].values()) == {here}
        finally:
            if not granted:
                self._ray.util.remove_placement_group(group)
        return group if granted else None

    async def _free(self, group: Any) -> None:
        """Give it back, and wait until Ray knows: it grants what it believes to be taken only seconds later."""
        if group is None:
            return
        with calling_ray("the end of a reservation at Ray"):
            await asyncio.to_thread(self._ray.util.remove_placement_group, group)
            ends_s = WALL.monotonic() + RETURN_S
            while WALL.monotonic() < ends_s:
                free = await asyncio.to_thread(free_resources, self._ray)
                if not any(name.endswith(group.id.hex()) for name in free.get(self._ray_node, {})):
                    return
                await asyncio.sleep(RETURN_LOOK_S)

    # ------------------------------------------------------------------ agents

    def _facts(self, record: NodeRecord, request: Mapping[str, Any]) -> dict[str, Any]:
        """The facts for the agent."""
        return {
            **request,
            "node_id": record.node_id,
            "token": record.token,
            "host": self._host,
            "notice_file": str(self._nodes.records.path(record.node_id, "notice")),
            "log": str(self._nodes.records.path(record.node_id, "log")),
        }

    def _on_death(self, node_id: str) -> None:
        """An agent has ended by itself."""
        if (record := self._nodes.held.get(node_id)) is not None:
            self._nodes.end(record)
            self._hang_up(node_id)
            self._spawn(self._see_off(node_id))

    async def _see_off(self, node_id: str) -> None:
        await self._nodes.wait_for_end(node_id)
        self._hang_up(node_id)
        await self._free(self._groups.get(node_id))
        self._groups.pop(node_id, None)  # only now: where Ray could not be asked, the next call asks again

    # ------------------------------------------------------------------ life lines

    async def _life_line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open for as long as the node that it names lives; one word at its end."""
        node_id = ""
        try:
            node_id = (await asyncio.wait_for(reader.readline(), RESERVE_S)).decode(errors="replace").strip()
            if node_id in self._nodes.held:
                self._listeners[node_id].add(writer)
                await reader.read()  # until the controller hangs up, or we do
            else:
                writer.write(GONE)
        except (TimeoutError, OSError, ValueError):
            pass
        finally:
            self._listeners.get(node_id, set()).discard(writer)
            writer.close()

    def _hang_up(self, node_id: str) -> None:
        for writer in self._listeners.pop(node_id, set()):
            writer.write(GONE)
            writer.close()

    # ------------------------------------------------------------------ our own end

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """One at a time; we do not leave during it."""
        self._calls += 1
        try:
            async with self._one_by_one:
                yield
        finally:
            self._calls -= 1
            self._heard_s = WALL.monotonic()

    def _leave_when_idle(self) -> None:
        """A thread from the beginning: a controller may be gone before it has said its first word."""
        waiting = threading.Event()  # that is never set: to sleep
        while self._nodes.held or self._groups or self._calls or WALL.monotonic() - self._heard_s < self._idle_s:
            waiting.wait(LOOK_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # there are stewards of other Ray nodes on this machine
            self._folder.parent.rmdir()
        os._exit(0)  # the template goes with us

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _own_folder(namespace: str, ray_node: str) -> Path:
    """On the node's own disk; no other user may have made it."""
    folder = Path(tempfile.gettempdir()) / f"sublet-{os.getuid()}" / namespace / ray_node[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for made in (folder.parent.parent, folder.parent, folder):
        if made.lstat().st_uid != os.getuid() or made.is_symlink():
            raise RentFailed("ray", f"{made} belongs to another user")
        made.chmod(0o700)
    return folder


def _environment(host: str) -> dict[str, str]:
    """The variables of Ray's worker at its start, as far as devices go, and the address for workers of other nodes."""
    env = {name: value for name, value in os.environ.items() if name not in (*DEVICES, "OMP_NUM_THREADS")}
    began = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (line.decode(errors="surrogateescape").partition("=") for line in began)
    env |= {name: value for name, _, value in pairs if name in DEVICES}
    return network_env(host) | env
