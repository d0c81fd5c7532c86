"""A worker that says what a session of `sublet.train` says, and trains nothing: `python talker.py STEPS STEP_MS`.

Members meet over sockets of loopback. Rank 0 counts the steps and the others follow it; all leave a group after the
same step, as the members of a real one do, and whoever loses another says that it broke. A step is a number, and a
checkpoint a file with that number in it. It costs next to nothing, so that hundreds of jobs fit on a small machine with
all that the controller does about elastic ones.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from pathlib import Path

from sublet.wire import messages as wire
from sublet.wire.lines import LineBuffer, Message, to_line
from sublet.wire.messages import EXIT_LEFT, EXIT_LOST

REPORT_S = 0.5
FORM_S = 20.0  # for all members to come
OVER, STOP = -1, -2  # instead of a step: all is done; somebody has an order, so all leave after this step
LATE_ORDER_S = 2.0  # a peer that has left may have heard of the next group a little sooner


class Given(Exception):
    """A newer order is there, or the group broke."""


class Talker:
    """One member."""

    def __init__(self, steps: int, step_s: float) -> None:
        self.steps, self.step_s = steps, step_s
        self.worker_id = os.environ["SUBLET_WORKER_ID"]
        self.file = Path(os.environ["SUBLET_CHECKPOINT_DIR"]) / "step"
        self.every_s = float(os.environ.get("SUBLET_CHECKPOINT_EVERY_S", "5"))
        self.step = -1  # no state
        self.order: wire.Regroup | wire.Leave | None = None
        self.meet: wire.Meet | None = None
        self.wants_save = False
        self._followed = -1
        self._line = socket.socket(fileno=os.dup(int(os.environ["SUBLET_CONTROL_FD"])))
        self._lines = LineBuffer()
        self._peers: list[socket.socket] = []
        self._reported_s = 0.0

    # ------------------------------------------------------------------ the line to the agent

    def say(self, message: Message) -> None:
        """To the controller."""
        try:
            self._line.sendall(to_line(message))
        except OSError:
            os._exit(EXIT_LOST)

    def hear(self, wait_s: float, *others: socket.socket) -> list[socket.socket]:
        """Take in what has come; those of `others` that have something to read."""
        ready, _, _ = select.select([self._line, *others], [], [], max(0.0, wait_s))
        if self._line in ready:
            ready.remove(self._line)
            data = self._line.recv(65536)
            if not data:
                os._exit(EXIT_LOST)  # no agent, no node
            for message in self._lines.feed(data):
                self._take(message)
        return ready

    def _take(self, message: Message) -> None:
        match message:
            case wire.Regroup() | wire.Leave():
                newest = self._followed if self.order is None else self.order.generation
                if message.generation > newest or (isinstance(message, wire.Leave) and message.generation == newest):
                    self.order = message
            case wire.Meet():
                self.meet = message
            case wire.SaveNow():
                self.wants_save = True
            case _:
                pass

    # ------------------------------------------------------------------ life

    def run(self) -> None:
        """Until it has finished, or is told to leave."""
        self.say(wire.Ready(worker_id=self.worker_id))
        while True:
            while self.order is None:
                self.hear(60.0)
            order, self.order = self.order, None
            self._followed = order.generation
            if isinstance(order, wire.Leave):
                self._leave(order)
            try:
                self._train(order)  # type: ignore[arg-type]  # _leave does not come back
            except Given as why:
                self._broke(order.generation, str(why))
            finally:
                for peer in self._peers:
                    peer.close()
                self._peers.clear()

    def _leave(self, order: wire.Leave) -> None:
        step = max(self.step, 0)
        if order.save and self.step >= 0:
            self._save()
        self.say(wire.Left(worker_id=self.worker_id, generation=order.generation, step=step, done=float(step)))
        os._exit(EXIT_LEFT)

    def _broke(self, generation: int, why: str) -> None:
        if not why:
            return
        ends_s = time.monotonic() + LATE_ORDER_S
        while self.order is None and time.monotonic() < ends_s:
            self.hear(ends_s - time.monotonic())
        if self.order is None:
            self.say(wire.Broke(worker_id=self.worker_id, generation=generation, step=max(self.step, 0), why=why))

    def _save(self) -> None:
        draft = self.file.with_name(f"draft.{os.getpid()}")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(str(self.step), encoding="ascii")
        draft.replace(self.file)
        facts = {"step": self.step, "done": float(self.step), "seconds": 0.0, "blocked_s": 0.0, "size_bytes": 1}
        self.say(wire.Saved(worker_id=self.worker_id, **facts))  # type: ignore[arg-type]

    # ------------------------------------------------------------------ a group

    def _train(self, order: wire.Regroup) -> None:
        (self._lead if order.rank == 0 else self._follow)(order)

    def _joined(self, order: wire.Regroup, step: int, source: str) -> None:
        self.step = step
        facts = {"step": step, "done": float(step), "work": float(self.steps), "global_batch": 1, "source": source}
        self.say(wire.Joined(worker_id=self.worker_id, generation=order.generation, **facts))  # type: ignore[arg-type]

    def _lead(self, order: wire.Regroup) -> None:
        self._peers.extend(self._gather(order))
        tops = [int(self._read(peer)) for peer in self._peers]
        if self.order is not None:
            raise Given
        top, source = max([self.step, *tops]), "peer"
        if top < 0:
            source = "checkpoint" if self.file.exists() else "fresh"
            top = int(self.file.read_text(encoding="ascii")) if self.file.exists() else 0
        self._tell_peers(top)
        self._joined(order, top, source)
        saved_s = began_s = time.monotonic()
        while self.step < self.steps:
            self._tell_peers(self.step + 1)
            own_s = self._work()
            answers = [int(self._read(peer)) for peer in self._peers]
            self.step += 1
            if self.order is not None or STOP in answers:
                self._tell_peers(STOP)
                raise Given
            now_s = time.monotonic()
            if self.wants_save or now_s - saved_s > self.every_s:
                self.wants_save, saved_s = False, now_s
                self._save()
            self._report(order, now_s - began_s, own_s)
            began_s = now_s
        self._save()
        self._tell_peers(OVER)
        self.say(wire.Finished(worker_id=self.worker_id, step=self.step, done=float(self.step)))
        os._exit(0)

    def _report(self, order: wire.Regroup, step_s: float, own_s: float) -> None:
        """Now and then: how long the last step took, and how much of that was waiting for the others."""
        if time.monotonic() - self._reported_s < REPORT_S:
            return
        self._reported_s = time.monotonic()
        times = {"step_s": max(step_s, own_s), "comm_s": max(step_s - own_s, 0.0)}
        facts = {"step": self.step, "done": float(self.step), "epoch": 0, "loss": 1.0, "global_batch": 1, **times}
        self.say(wire.Stepped(worker_id=self.worker_id, generation=order.generation, **facts))  # type: ignore[arg-type]

    def _work(self) -> float:
        """Its own part of a step, in seconds; three times that if a file `slow` by the checkpoint names its node."""
        slow = self.file.with_name("slow")
        limps = slow.exists() and slow.read_text(encoding="ascii").strip() == os.environ.get("SUBLET_NODE_ID")
        began_s = time.monotonic()
        self._rest(began_s + self.step_s * (3.0 if limps else 1.0))
        return time.monotonic() - began_s

    def _follow(self, order: wire.Regroup) -> None:
        ends_s = time.monotonic() + FORM_S
        while self.meet is None or self.meet.generation != order.generation:
            self._wait(ends_s)
        leader = socket.create_connection((self.meet.host, self.meet.port), timeout=FORM_S)
        self._peers.append(leader)
        self._write(leader, self.step)
        self._joined(order, int(self._read(leader)), "peer")
        began_s = time.monotonic()
        while (step := int(self._read(leader))) >= 0:
            own_s = self._work()
            self._write(leader, step if self.order is None else STOP)
            self.step = step
            now_s = time.monotonic()
            self._report(order, now_s - began_s, own_s)
            began_s = now_s
        if step == STOP:
            raise Given
        os._exit(0)

    def _gather(self, order: wire.Regroup) -> list[socket.socket]:
        found: list[socket.socket] = []
        with socket.create_server(("127.0.0.1", 0)) as door:
            host, port = door.getsockname()
            self.say(wire.Leading(worker_id=self.worker_id, generation=order.generation, host=host, port=port))
            ends_s = time.monotonic() + FORM_S
            while len(found) < order.world - 1:
                if self._wait(ends_s, door):
                    found.append(door.accept()[0])
        return found

    def _wait(self, ends_s: float, *others: socket.socket) -> list[socket.socket]:
        ready = self.hear(min(1.0, ends_s - time.monotonic()), *others)
        if self.order is not None:
            raise Given
        if time.monotonic() > ends_s:
            raise Given("nobody came")
        return ready

    def _rest(self, until_s: float) -> None:
        """A step's time."""
        while (left_s := until_s - time.monotonic()) > 0:
            self.hear(left_s)
            if self._is_broken():
                raise Given

    def _is_broken(self) -> bool:
        """The group has lost a member: what is under way is dropped. Any other order is followed after the step."""
        return self.order is not None and self.order.broken

    # ------------------------------------------------------------------ peers

    def _tell_peers(self, number: int) -> None:
        for peer in self._peers:
            self._write(peer, number)

    def _write(self, peer: socket.socket, number: int) -> None:
        try:
            peer.sendall(f"{number}\n".encode())
        except OSError as error:
            raise Given("a peer is gone") from error

    def _read(self, peer: socket.socket) -> bytes:
        """One line of it; a newer order or its end breaks the wait."""
        text = b""
        while not text.endswith(b"\n"):
            if peer in self.hear(1.0, peer):
                try:
                    data = peer.recv(1)
                except OSError:
                    data = b""
                if not data:
                    raise Given("a peer is gone")
                text += data
            elif self._is_broken():
                raise Given
        return text


if __name__ == "__main__":
    Talker(int(sys.argv[1]), float(sys.argv[2]) / 1e3).run()
