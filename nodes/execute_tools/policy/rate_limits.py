"""How often a tool may be called: at a rate, and at most so many times."""

import threading
from collections import deque
from dataclasses import dataclass

MOST_KEYS = 10_000
"""Keys that are counted at a time; the calls kept for each are bounded by its limit."""


@dataclass(frozen=True)
class RateLimit:
    """At most `calls` calls in any `seconds` seconds."""

    calls: int
    seconds: float

    def __post_init__(self) -> None:
        if self.calls < 1 or not 0 < self.seconds < float("inf"):
            raise ValueError(f"A rate limit needs at least one call and a positive time, not {self}.")


@dataclass
class _Window:
    """When the last admitted calls began, oldest first, and how long such a call counts, in seconds."""

    starts: deque[float]
    seconds: float

    def over_at(self) -> float:
        return self.starts[-1] + self.seconds


class RateWindow:
    """The calls that count at this moment, by key: a sliding window, so that no two windows meet in a burst.

    Serves any number of threads. The memory is bounded: where too many keys are live, new ones have to wait, since
    forgetting one would lift its limit.
    """

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._windows: dict[str, _Window] = {}
        self._lock = threading.Lock()

    def take(self, key: str, limit: RateLimit, now: float) -> float:
        """0.0 where a call may run at `now` (seconds of a clock that never goes back), which then counts.

        Otherwise the seconds until one may, and nothing is counted.
        """
        with self._lock:
            window = self._windows.get(key)
            if window is None:
                if wait := self._wait_for_room(now):
                    return wait
                window = self._windows[key] = _Window(deque(), limit.seconds)
            window.seconds = limit.seconds
            return _take_from(window, limit, now)

    def _wait_for_room(self, now: float) -> float:
        if len(self._windows) < self._most_keys:
            return 0.0
        for key in [key for key, window in self._windows.items() if window.over_at() <= now]:
            del self._windows[key]
        if len(self._windows) < self._most_keys:
            return 0.0
        return min(window.over_at() for window in self._windows.values()) - now


def _take_from(window: _Window, limit: RateLimit, now: float) -> float:
    starts = window.starts
    while starts and starts[0] + limit.seconds <= now:
        starts.popleft()
    if len(starts) >= limit.calls:
        return starts[-limit.calls] + limit.seconds - now
    # Threads read the clock before they wait for the lock, so a later one may come first.
    starts.append(max(now, starts[-1]) if starts else now)
    return 0.0


def quota_problem(tool: str, used: int, quota: int | None) -> str:
    """Why a tool that was called `used` times may not be called again, "" where it may. No quota is no limit."""
    if quota is None or used < quota:
        return ""
    if quota <= 0:
        return f"The quota of {tool} is 0 calls: go on without it."
    times = "once" if quota == 1 else f"{quota} times"
    return f"The quota of {tool} is used up: it may be called {times}. Go on with what you have."
