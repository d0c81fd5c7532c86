"""A process that is an asyncio loop, in virtual time: the shipped controller runs on it as on any other."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from sublet_lab.world.heap import Crash, Process, World

MOST_JITTER_S = 1e-3  # timers that are due together fire in any order
THREAD_S = 0.002  # mean, until a thread has begun
MOST_TURNS = 20_000  # at one instant: a loop that never comes to rest would stop the world

Listen = Callable[[tuple[str, int], "WorldLoop", Callable[[], asyncio.Protocol]], Any]  # a server of the network


class WorldLoop(asyncio.BaseEventLoop):
    """Never waits: `step` runs what is due, and says when to come again."""

    # what asyncio keeps of its handles
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, process: Process, listen: Listen) -> None:
        super().__init__()
        self.process, self._listen = process, listen
        self._rng = process.world.stream("timers")
        self._stepping = False
        self._answer_after_s = 0.0
        self.failures: list[str] = []  # uncaught errors
        self.set_exception_handler(self._note_failure)

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Crash):
            self.failures.append(f"{context.get('message')}: {error!r}")

    def __del__(self) -> None:
        """A dead process's loop is not closed: its coroutines would be run once more."""

    def time(self) -> float:
        return self.process.monotonic()

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        pass

    def call_soon(  # type: ignore[override]  # asyncio types arguments one by one
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)  # as asyncio does; a loop of the world is never closed
        self._ready.append(handle)
        if not self._stepping:
            self.process.wake(self.process.world.now_s)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # as above

    def call_at(  # type: ignore[override]  # asyncio types arguments one by one
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when += self._rng.random() * MOST_JITTER_S
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, handle)
        handle._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio does
        if not self._stepping:
            self.process.wake(when - self.process.zero_s)
        return handle

    # ------------------------------------------------------------------ threads

    def take(self, seconds: float) -> None:
        """For a function that runs in a thread: its answer comes so much later, its effect is there at once."""
        self._answer_after_s += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # asyncio types arguments one by one
        """In a moment and at one go; what the thread waits for, it has said with `take`."""
        del executor
        future = self.create_future()
        self.begin_thread(lambda: self._answer(future, func, args))
        return future

    def begin_thread(self, run: Callable[[], None], mean_s: float = THREAD_S) -> None:
        """Run it beside everything else, as long as the process lives."""
        self.process.world.after(self._rng.expovariate(1 / mean_s), self._run_thread, run)

    def _run_thread(self, run: Callable[[], None]) -> None:
        process = self.process
        if process.dead:
            return
        if process.world.now_s < process.stopped_until_s:
            process.world.at(process.stopped_until_s, self._run_thread, run)
            return
        try:
            run()
        except Crash:
            return

    def _answer(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._answer_after_s = 0.0
        try:
            result, error = func(*args), None
        except Exception as caught:  # noqa: BLE001 - its awaiter is to have it
            result, error = None, caught
        if self._answer_after_s:
            self.process.world.after(self._answer_after_s, self._tell, future, result, error)
        else:
            self._tell(future, result, error)

    def _tell(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if self.process.dead or future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    # ------------------------------------------------------------------ servers

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """At an address of the world."""
        return self._listen((host, port), self, protocol_factory)

    # ------------------------------------------------------------------ time

    def step(self) -> float | None:
        """Everything that is due; the world's time of the next timer."""
        events._set_running_loop(self)  # noqa: SLF001 - as asyncio does in run_forever
        self._stepping = True
        ready, scheduled, pop = self._ready, self._scheduled, heapq.heappop
        due_s = self.time() + 1e-9  # times are sums of others: what is due now may be a breath later
        try:
            for _ in range(MOST_TURNS):
                while scheduled and scheduled[0]._when <= due_s:  # type: ignore[attr-defined]  # noqa: SLF001 - as above
                    handle = pop(scheduled)
                    handle._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as above
                    ready.append(handle)
                if not ready:
                    break
                if not self._turn():
                    return None
            else:
                self.failures.append("the loop never comes to rest")
        finally:
            self._stepping = False
            events._set_running_loop(None)  # noqa: SLF001 - as above
        while scheduled and scheduled[0]._cancelled:  # noqa: SLF001 - as above
            pop(scheduled)._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as above
        return scheduled[0].when() - self.process.zero_s if scheduled else None

    def _turn(self) -> bool:
        """Run all that is ready, not what becomes so; whether the process still lives."""
        ready, process = self._ready, self.process
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001 - as asyncio does
                handle._run()  # noqa: SLF001 - as above
            if process.dead:
                return False
        return True


class LoopProcess(Process):
    """A process that is such a loop."""

    def __init__(self, world: World, name: str, host: str, listen: Listen) -> None:
        super().__init__(world, name, host)
        self.loop = WorldLoop(self, listen)

    def step(self) -> float | None:
        return self.loop.step()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let it run there."""
        return self.loop.create_task(work)

    def kill(self) -> None:
        super().kill()
        self.bury()

    def bury(self) -> None:
        """Its unfinished work raises no complaint; work that it had not begun is not begun when it is collected."""
        for task in asyncio.all_tasks(self.loop):
            if inspect.iscoroutine(work := task.get_coro()) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - a dead process complains no more
