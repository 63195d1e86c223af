"""The limits of a task, which are the same for all harnesses, and the usage of one run.

Pure except for the clock, which is a parameter. `MeasuredEndpoint` holds a lock during each call.
"""

from collections import Counter
from collections.abc import Callable

from benchmarks.real_model.record import LIMIT_CALLS, LIMIT_TIME, CallRecord
from mendgraph.nodes.records import JsonMap, Record


class Limits(Record):
    """The limits of a task: model calls, seconds since the start of the run, and tokens of one reply."""

    calls: int = 12
    seconds: float = 150.0
    output_tokens: int = 800


class MeasuredRun:
    """The run of a task at the endpoint. `greedy` forces temperature 0."""

    def __init__(self, number: int, limits: Limits, greedy: bool, clock: Callable[[], float]) -> None:
        self.number = number
        self.calls: list[CallRecord] = []
        self.limit_reached = ""
        self.saved_s = 0.0
        self._limits = limits
        self._greedy = greedy
        self._clock = clock
        self._start = clock()
        self._call_count = 0
        self._requests: Counter[str] = Counter()

    def admit(self) -> str:
        """Count a call and return "", or return the limit that it would exceed.

        The original seconds of replayed replies count as elapsed time.
        """
        elapsed_s = self._clock() - self._start + self.saved_s
        if self._call_count >= self._limits.calls:
            self.limit_reached = self.limit_reached or LIMIT_CALLS
        elif elapsed_s >= self._limits.seconds:
            self.limit_reached = self.limit_reached or LIMIT_TIME
        else:
            self._call_count += 1
            return ""
        return self.limit_reached

    def apply_limits(self, request: JsonMap) -> JsonMap:
        """Return the request with limited output tokens, and with temperature 0 if the run is greedy."""
        result = dict(request)
        most_tokens = self._limits.output_tokens
        names = [name for name in ("max_tokens", "max_completion_tokens") if isinstance(result.get(name), int)]
        for name in names or ["max_tokens"]:
            result[name] = min(result.get(name) or most_tokens, most_tokens)

        if self._greedy:
            result["temperature"] = 0
        return result

    def occurrence(self, request: str) -> int:
        """Count a request, and return the number of its earlier occurrences in this run."""
        self._requests[request] += 1
        return self._requests[request] - 1

    def add(self, call: CallRecord) -> None:
        """Add a completed call."""
        self.calls.append(call)
        if call.replayed:
            self.saved_s += call.seconds
