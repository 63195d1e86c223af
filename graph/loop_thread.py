"""An event loop in a thread of its own, for a sync program that wants what only an event loop can do.

There a model call ends at once when nobody wants it any more; a thread that waits for an endpoint cannot be stopped.
And it works where an event loop is running already, as in a notebook.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self, TypeVar

Done = TypeVar("Done")


class LoopThread:
    """Runs coroutines, one after the other; what they leave behind goes on in between."""

    def __enter__(self) -> Self:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="mendgraph-loop", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread, after its generators and its worker threads."""
        try:
            self.run(self._loop.shutdown_asyncgens())
            self.run(self._loop.shutdown_default_executor())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, Done]) -> Done:
        """What the coroutine gives, or raises. Where the wait is interrupted, as by Ctrl-C, its work is cancelled."""
        ended, context = Event(), copy_context()
        tasks: list[asyncio.Task[Done]] = []

        def begin() -> None:
            task = self._loop.create_task(work, context=context)
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        self._loop.call_soon_threadsafe(begin)
        try:
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108 - begun by then, not yet now
            ended.wait()
            _ = tasks[0].cancelled() or tasks[0].exception()  # or asyncio would report that nobody has looked
            raise
        return tasks[0].result()
