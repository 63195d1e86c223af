"""What keeps failing is left alone for a while, then tried with care.

Source of the states: Nygard, "Release It!", Circuit Breaker.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

MOST_BREAKERS = 256
"""Beyond this, a breaker that is at rest is forgotten; a new one would be the same."""


class BreakerState(StrEnum):
    """Closed lets everything pass, open nothing, half-open a few probes."""

    CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


@dataclass(frozen=True)
class BreakerConfig:
    """Opens after `failures` in a row, for `open_s` seconds; then `half_open_calls` probes may try at a time."""

    failures: int = 5
    open_s: float = 30.0
    half_open_calls: int = 1

    def __post_init__(self) -> None:
        if self.failures < 1 or self.half_open_calls < 1 or not 0 < self.open_s < float("inf"):
            raise ValueError(f"A circuit breaker needs a failure, a probe and a positive time at least, not {self}.")


class CircuitBreaker:
    """Guards one tool or one provider, for any number of threads.

    Whoever is admitted reports once how it ended: `succeeded`, `failed`, or `abandoned` where nobody knows. What
    comes while no probe is out, once the circuit has opened, is the late word of an older call and changes nothing.
    A probe that never reports loses its place after `open_s`, so that no lost call keeps the circuit shut for good.
    """

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        """`clock` gives seconds and never goes back."""
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures = 0  # in a row
        self._probes = 0  # that are out
        self._until = 0.0  # when the open state, or the time of the last probe, is over

    @property
    def state(self) -> BreakerState:
        """The state at this moment."""
        with self._lock:
            self._look_at_clock()
            return self._state

    @property
    def at_rest(self) -> bool:
        """Whether a new breaker would behave in the same way."""
        with self._lock:
            return self._state is BreakerState.CLOSED and not self._failures

    def admit(self) -> float:
        """0.0 where a call may go on, which then has to report; otherwise the seconds until one may be tried."""
        with self._lock:
            now = self._look_at_clock()
            if self._state is BreakerState.CLOSED:
                return 0.0
            if self._state is BreakerState.OPEN or self._probes >= self._config.half_open_calls:
                return self._until - now
            self._probes += 1
            self._until = now + self._config.open_s
            return 0.0

    def succeeded(self) -> None:
        """The call worked."""
        with self._lock:
            self._look_at_clock()
            if self._is_counted():
                self._state, self._failures, self._probes = BreakerState.CLOSED, 0, 0

    def failed(self) -> None:
        """The call did not work."""
        with self._lock:
            now = self._look_at_clock()
            if not self._is_counted():
                return
            self._failures += 1
            if self._state is BreakerState.HALF_OPEN or self._failures >= self._config.failures:
                self._state, self._failures, self._probes = BreakerState.OPEN, 0, 0
                self._until = now + self._config.open_s

    def abandoned(self) -> None:
        """The call ended without showing whether it works: it was cancelled, or never made."""
        with self._lock:
            self._look_at_clock()
            if self._state is BreakerState.HALF_OPEN and self._probes:
                self._probes -= 1

    def _look_at_clock(self) -> float:
        now = self._clock()
        if self._state is not BreakerState.CLOSED and now >= self._until:
            self._state, self._probes = BreakerState.HALF_OPEN, 0
        return now

    def _is_counted(self) -> bool:
        return self._state is BreakerState.CLOSED or self._probes > 0


class Breakers:
    """One circuit breaker for each name, for any number of threads."""

    def __init__(self, config: BreakerConfig, clock: Callable[[], float], most: int = MOST_BREAKERS) -> None:
        self._config, self._clock, self._most = config, clock, most
        self._breakers: OrderedDict[str, CircuitBreaker] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str) -> CircuitBreaker:
        """The breaker of this name, made where there is none.

        Beyond the bound the one that was not asked for the longest is forgotten: one at rest, if there is one.
        """
        with self._lock:
            found = self._breakers.get(name)
            if found is None:
                if len(self._breakers) >= self._most:
                    del self._breakers[self._least_needed()]
                found = self._breakers[name] = CircuitBreaker(self._config, self._clock)
            self._breakers.move_to_end(name)
            return found

    def _least_needed(self) -> str:
        resting = (name for name, breaker in self._breakers.items() if breaker.at_rest)
        return next(resting, next(iter(self._breakers)))
