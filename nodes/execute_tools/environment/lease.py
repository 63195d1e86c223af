"""The right of one call to change the world. It ends with the call's time, so that nothing happens after a timeout."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext


class LeaseOverError(TimeoutError):
    """Raised in a call that was given up when it wants to change something nevertheless."""


class Lease:
    """Held by one call. An effect that has begun is finished; one that begins after `revoke` is refused.

    The lease of a call ends with its `parent`, that of the step.
    """

    def __init__(self, parent: "Lease | None" = None) -> None:
        self._parent = parent
        self._lock = threading.RLock()
        self._over = False
        self._busy = 0

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
        with self._lock:
            self._over = True

    @property
    def over(self) -> bool:
        """Whether nothing may begin any more."""
        return self._over or (self._parent is not None and self._parent.over)

    @property
    def busy(self) -> bool:
        """Whether an effect is being done right now."""
        return self._busy > 0
