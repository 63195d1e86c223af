"""What keeps failing is left alone for a while, then tried with care.

Source of the states: Nygard, "Release It!", Circuit Breaker.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST_BREAKERS = 256
"""Beyond this, the breaker that was not asked for the longest is forgotten."""


@dataclass(frozen=True)
class BreakerConfig:
    """Opens after `failures` in a row, for `open_s` seconds; then one probe may try at a time."""

    failures: int = 5
    open_s: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1 or not 0 < self.open_s < float("inf"):
            raise ValueError(f"A circuit breaker needs a failure and a positive time at least, not {self}.")


class CircuitBreaker:
    """Guards one tool or one provider, for any number of threads.

    Whoever is admitted reports once how it ended: `succeeded`, `failed`, or `abandoned` where nobody knows. What
    comes while the circuit is open and no probe is out is the late word of an older call, and changes nothing. A probe
    that never reports loses its place after `open_s`, so that no lost call keeps the circuit shut for good.
    """

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        """`clock` gives seconds and never goes back."""
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._until: float | None = None  # when the rest, or the time of the probe, is over; None where it is closed
        self._probing = False

    def admit(self) -> float:
        """0.0 where a call may go on, which then has to report; otherwise the seconds until one may be tried."""
        with self._lock:
            if self._until is None:
                return 0.0
            now = self._clock()
            if now < self._until:
                return self._until - now
            self._until, self._probing = now + self._config.open_s, True
            return 0.0

    def succeeded(self) -> None:
        """The call worked."""
        with self._lock:
            if self._is_counted():
                self._failures, self._until, self._probing = 0, None, False

    def failed(self) -> None:
        """The call did not work."""
        with self._lock:
            if self._is_counted():
                self._failures += 1
                if self._probing or self._failures >= self._config.failures:
                    self._until, self._probing = self._clock() + self._config.open_s, False

    def abandoned(self) -> None:
        """The call ended without showing whether it works: it was cancelled, or never made."""
        with self._lock:
            if self._probing:  # another one may try at once
                self._until, self._probing = self._clock(), False

    def _is_counted(self) -> bool:
        return self._until is None or self._probing


class Breakers:
    """One circuit breaker for each name, for any number of threads."""

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        self._config, self._clock = config, clock
        self._breakers: OrderedDict[str, CircuitBreaker] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str) -> CircuitBreaker:
        """The breaker of this name, made where there is none."""
        with self._lock:
            found = self._breakers.setdefault(name, CircuitBreaker(self._config, self._clock))
            self._breakers.move_to_end(name)
            if len(self._breakers) > MOST_BREAKERS:
                self._breakers.popitem(last=False)
            return found
