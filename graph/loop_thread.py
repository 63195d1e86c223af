"""An event loop in a thread of its own, for a sync program that wants what only an event loop can do.

There a model call ends at once when nobody wants it any more; a thread that waits for an endpoint cannot be stopped.
And it works where an event loop is running already, as in a notebook.
"""

import asyncio
from collections.abc import Coroutine
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from nodes.call_model.model_loop import run_in

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
        """Run the coroutine as `run_in` does."""
        return run_in(self._loop, work)
