"""The same call has its effect once, however often it is made.

Source of the rule: Stripe's API reference, "Idempotent requests": the first result is given again, and a key that
comes back with other parameters is an error.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Value = TypeVar("Value")

MOST_RESULTS = 1_000
"""Finished results that are remembered; the one that was not asked for the longest is forgotten first."""


class ConflictKind(StrEnum):
    """Why a key can be used by nobody right now, or not by this call."""

    OTHER_CALL, IN_PROGRESS = "other_call", "in_progress"


@dataclass(frozen=True)
class Conflict:
    """The call must not be made."""

    kind: ConflictKind

    @property
    def message(self) -> str:
        """What is wrong, and what to do."""
        if self.kind is ConflictKind.IN_PROGRESS:
            return "The same call is being made at this moment: wait for its result."
        return "This idempotency key belongs to another call: use a new key for other arguments."


@dataclass(frozen=True)
class Stored(Generic[Value]):
    """The call was made before, and this is what came of it."""

    value: Value


@dataclass(frozen=True)
class _Entry(Generic[Value]):
    """What is known of a key; nothing is stored while its call runs."""

    fingerprint: str
    stored: Stored[Value] | None = None


class IdempotentResults(Generic[Value]):
    """What became of calls, by key, for any number of threads. A call that runs is never forgotten by itself."""

    def __init__(self, most: int = MOST_RESULTS) -> None:
        self._most = most
        self._running: dict[str, _Entry[Value]] = {}
        self._finished: OrderedDict[str, _Entry[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, key: str, fingerprint: str) -> Stored[Value] | Conflict | None:
        """What to do instead of the call; None says: make it now, then call `finish` or `forget`, whatever happens."""
        with self._lock:
            entry = self._running.get(key) or self._finished.get(key)
            if entry is None:
                self._running[key] = _Entry(fingerprint)
                return None
            if entry.fingerprint != fingerprint:
                return Conflict(ConflictKind.OTHER_CALL)
            if entry.stored is None:
                return Conflict(ConflictKind.IN_PROGRESS)
            self._finished.move_to_end(key)
            return entry.stored

    def finish(self, key: str, fingerprint: str, value: Value) -> None:
        """Keep what the call came to, for whoever makes it again. The first result of a key stays."""
        with self._lock:
            entry = self._running.get(key) or self._finished.get(key)
            if entry is not None and (entry.stored is not None or entry.fingerprint != fingerprint):
                return
            self._running.pop(key, None)
            self._finished[key] = _Entry(fingerprint, Stored(value))
            while len(self._finished) > self._most:
                self._finished.popitem(last=False)

    def forget(self, key: str) -> None:
        """The call had no effect, so it may be made as if for the first time."""
        with self._lock:
            self._running.pop(key, None)
            self._finished.pop(key, None)
