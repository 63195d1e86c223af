"""The right of one call to change the world. It ends with the call's time, so that nothing happens after a timeout."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue


class LeaseOverError(TimeoutError):
    """Raised in a call that was given up when it wants to change something nevertheless."""


class Lease:
    """Held by one call. An effect that has begun is finished; one that begins after `revoke` is refused.

    The lease of a call ends with its `parent`, that of the step. A lease that is closed still holds for what runs, but
    no further call begins.
    """

    def __init__(self, parent: "Lease | None" = None) -> None:
        self._parent = parent
        self._lock = threading.RLock()
        self._over = False
        self._closed = False
        self._busy = 0
        self._bell: SimpleQueue[None] = SimpleQueue()

    @contextmanager
    def effect(self) -> Iterator[None]:
        """Guard one effect, which has to be short.

        Raises:
            LeaseOverError: the call's time is over, and nothing may change any more.
        """
        with nullcontext() if self._parent is None else self._parent.effect(), self._lock:
            if self._over:
                raise LeaseOverError("the time of this call is over")
            self._busy += 1
            try:
                yield
            finally:
                self._busy -= 1

    def revoke(self) -> None:
        """End the right; returns when an effect that is being done by another thread is done."""
        self.close()
        with self._lock:
            self._over = True

    def close(self) -> None:
        """Let what runs be finished, and nothing else begin. It takes no lock, so that a signal handler may call it."""
        self._closed = True
        self._bell.put(None)

    def pause(self, seconds: float) -> bool:
        """Do nothing for this long, or until this lease is closed; says whether something may begin after that."""
        if not self.closed:
            with suppress(Empty):
                self._bell.get(timeout=seconds)
        return not self.closed

    @property
    def over(self) -> bool:
        """Whether nothing may change any more."""
        return self._over or (self._parent is not None and self._parent.over)

    @property
    def closed(self) -> bool:
        """Whether no further call may begin."""
        return self._closed or (self._parent is not None and self._parent.closed)

    @property
    def busy(self) -> bool:
        """Whether an effect is being done right now."""
        return self._busy > 0
