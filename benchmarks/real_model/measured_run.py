"""What one harness may use for one task, and what it has used: the limits that are the same for all of them.

Pure but for the clock that is handed in. `MeasuredEndpoint` sees to it that one thread at a time is here.
"""

from collections import Counter
from collections.abc import Callable

from benchmarks.real_model.record import LIMIT_CALLS, LIMIT_TIME, CallRecord
from mendgraph.nodes.records import JsonMap, Record


class Limits(Record):
    """What a task may take: model calls, seconds since its run began, tokens of one reply."""

    calls: int = 12
    seconds: float = 150.0
    output_tokens: int = 800


class MeasuredRun:
    """One task's run at the endpoint. `greedy` forces temperature 0, as on every harness that cannot choose it well."""

    def __init__(self, number: int, limits: Limits, greedy: bool, clock: Callable[[], float]) -> None:
        self.number = number
        self.calls: list[CallRecord] = []
        self.refused = ""
        self.saved_s = 0.0
        self._limits, self._greedy, self._clock = limits, greedy, clock
        self._began = clock()
        self._admitted = 0
        self._seen: Counter[str] = Counter()

    def admit(self) -> str:
        """Count one more call, or say which limit it would pass; "" is leave to make it.

        The time that replayed replies did not take counts as if it had been waited for.
        """
        if self._admitted >= self._limits.calls:
            self.refused = self.refused or LIMIT_CALLS
        elif self._clock() - self._began + self.saved_s >= self._limits.seconds:
            self.refused = self.refused or LIMIT_TIME
        else:
            self._admitted += 1
            return ""
        return self.refused

    def limited(self, request: JsonMap) -> JsonMap:
        """The request as it is sent on: no longer replies than allowed, and greedy where that is asked for."""
        sent = dict(request)
        names = [name for name in ("max_tokens", "max_completion_tokens") if isinstance(sent.get(name), int)]
        for name in names or ["max_tokens"]:
            sent[name] = min(sent.get(name) or self._limits.output_tokens, self._limits.output_tokens)
        if self._greedy:
            sent["temperature"] = 0
        return sent

    def occurrence(self, request: str) -> int:
        """How often this run has asked for the same before."""
        self._seen[request] += 1
        return self._seen[request] - 1

    def settle(self, call: CallRecord) -> None:
        """Write a call down that is over."""
        self.calls.append(call)
        if call.replayed:
            self.saved_s += call.seconds
