"""The event loop in which sync runs make their model calls.

There a call ends when its time is over, whatever its chat model does: its connection is closed, and nothing stays
behind. A thread that waits for an endpoint cannot be stopped. All sync calls of a process share one loop, as the
connections of LangChain's chat models belong to the loop that opened them. Its thread lives as long as a call does.
"""

import asyncio
import atexit
import os
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import copy_context
from threading import Event, Lock, Thread
from typing import Any, TypeVar

Done = TypeVar("Done")


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Done]) -> Done:
    """Run a coroutine in an event loop that runs in another thread.

    Returns what the coroutine returns, and raises what it raises. Where the wait is interrupted, as by Ctrl-C, the
    coroutine is cancelled.
    """
    ended, context = Event(), copy_context()
    tasks: list[asyncio.Task[Done]] = []

    def begin() -> None:
        task = loop.create_task(work, context=context)
        task.add_done_callback(lambda _: ended.set())
        tasks.append(task)

    def drop() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # the interrupt came before the loop heard of the work
            work.close()
            ended.set()

    try:
        loop.call_soon_threadsafe(begin)
        ended.wait()
    except BaseException:
        loop.call_soon_threadsafe(drop)
        ended.wait()
        _ = [each.cancelled() or each.exception() for each in tasks]  # or asyncio would report that nobody has looked
        raise
    return tasks[0].result()


class ModelLoop:
    """Runs coroutines of any thread side by side; no loop of the caller's may be waited in, as in a notebook."""

    def __init__(self) -> None:
        """There is neither a loop nor a thread before the first call."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._waiting, self._lock, self._process = 0, Lock(), os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop, None before the first call."""
        return self._loop

    def run(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Run the coroutine as `run_in` does."""
        loop = self._entered()
        try:
            return run_in(loop, work)
        finally:
            self._left()

    async def arun(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Run the coroutine in this loop, and wait for it in the caller's, whose cancellation it shares."""
        loop, here, ended, context = self._entered(), asyncio.get_running_loop(), asyncio.Event(), copy_context()
        tasks: list[asyncio.Task[Done]] = []

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # the caller's loop has ended, and with it whoever waited
                here.call_soon_threadsafe(ended.set)

        def begin() -> None:
            tasks.append(loop.create_task(work, context=context))
            tasks[0].add_done_callback(tell)

        def drop() -> None:
            tasks[0].cancel()

        try:
            loop.call_soon_threadsafe(begin)
            await ended.wait()
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(drop)
            await ended.wait()
            raise
        finally:
            self._left()
        return tasks[0].result()

    def _entered(self) -> asyncio.AbstractEventLoop:
        if self._process != os.getpid():  # a forked child has none of its parent's threads
            self._begin_anew()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                atexit.register(self._loop.close)
            if self._waiting == 0:
                self._thread = Thread(target=self._loop.run_forever, name="mendgraph-model-calls", daemon=True)
                self._thread.start()
            self._waiting += 1
            return self._loop

    def _left(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting == 0 and self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()


MODEL_LOOP = ModelLoop()
"""The one of this process."""
