"""Services of a model call that record effects and return scripted results. Each request runs sync and async."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, Used
from mendgraph.nodes.call_model.model import Call, CompletedCall, StoppedCall, UnsettledUsage
from mendgraph.nodes.call_model.node import acall_model, call_model
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderFailure, StopCause


@dataclass(frozen=True)
class Reserve:
    """A reservation was entered into the spending book."""

    entry: Entry
    after: int = 0


@dataclass(frozen=True)
class Settle:
    """The reservation was settled."""

    number: int
    usage: Used


@dataclass(frozen=True)
class Wait:
    """A wait before the next attempt."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Emit:
    """An event was emitted."""

    name: str
    payload: JsonMap


Effect = ModelChoice | Reserve | Settle | Call | Wait | Emit
SECONDS = 2.0
MODEL: Any = object()


class RecordedServices(CallServices):
    """Answers calls with `results`, each after two seconds, and keeps the book.

    `unreachable` are the models that cannot be connected; `refusals` are what the book says to entries, by number;
    `lost` is what it says to counters that do not hold it; at the effect of the number `stop_at`, from 0, somebody
    stops the run for the reason `stop`. Entries are numbered from `first`.
    """

    def __init__(
        self,
        results: Sequence[ModelReply | ProviderFailure | StoppedCall] = (),
        *,
        unreachable: Mapping[str | None, ProviderFailure] | None = None,
        refusals: Mapping[int, StopCause] | None = None,
        lost: UnsettledUsage | None = None,
        stop_at: int = -1,
        stop: str = "",
        first: int = 11,
    ) -> None:
        super().__init__(self._connect, on_event=self._tell, stop=StopRequest())
        facts: JsonMap = {
            "effects": [],
            "unreachable": unreachable or {},
            "refusals": refusals or {},
            "results": iter(results),
        }
        facts |= {"lost": lost, "stop_at": stop_at, "stop_reason": stop, "entries": first - 1}
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    effects: list[Effect]
    entries: int

    def _add(self, effect: Effect) -> None:
        self.effects.append(effect)
        if len(self.effects) == self.__dict__["stop_at"] + 1:
            self.stop.ask(self.__dict__["stop_reason"])

    def _tell(self, name: str, payload: JsonMap) -> None:
        self.effects.append(Emit(name, payload))

    def _connect(self, choice: ModelChoice) -> Any:
        self._add(choice)
        return self.__dict__["unreachable"].get(choice.model, MODEL)

    async def aconnect(self, choice: ModelChoice) -> Any:
        return self._connect(choice)

    def reserve(self, entry: Entry, after: int) -> int | UnsettledUsage | StopCause:
        self._add(Reserve(entry, after))
        lost: UnsettledUsage | None = self.__dict__["lost"]
        if lost is not None and after < lost.number:
            return lost
        number = self.entries + 1
        object.__setattr__(self, "entries", number)
        answer: int | StopCause = self.__dict__["refusals"].get(number, number)
        return answer

    async def areserve(self, entry: Entry, after: int) -> int | UnsettledUsage | StopCause:
        return self.reserve(entry, after)

    def settle(self, number: int, used: Used) -> None:
        self.effects.append(Settle(number, used))

    def send(self, model: Any, call: Call) -> CompletedCall | StoppedCall:
        assert model is MODEL
        if self.stop.reason:
            return StoppedCall(reason=self.stop.reason)
        self._add(call)
        result = next(self.__dict__["results"])
        return result if isinstance(result, StoppedCall) else CompletedCall(result=result, seconds=SECONDS)

    async def asend(self, model: Any, call: Call) -> CompletedCall | StoppedCall:
        return self.send(model, call)

    def wait(self, seconds: float, reason: str) -> None:
        if reason:
            self._add(Wait(seconds, reason))

    async def wait_async(self, seconds: float, reason: str) -> None:
        self.wait(seconds, reason)

    @property
    def course(self) -> str:
        """The kinds of the effects, one letter each: C(onnect to a model), Reserve, Send, E(nter), Emit, Wait."""
        letters = {ModelChoice: "c", Reserve: "r", Call: "s", Settle: "e", Emit: "t", Wait: "w"}
        return "".join(letters[type(effect)] for effect in self.effects)

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]


def run_visits(
    services: Callable[[], RecordedServices], initial: CallModelState, settings: CallSettings
) -> tuple[RecordedServices, list[JsonMap]]:
    """Visit the node until no call is pending; returns the services of the sync node and the updates.

    Each visit sends at most one request. The sync and the async node must have the same effects and updates.
    """
    one, other = services(), services()
    state, updates = initial, list[JsonMap]()
    while not updates or updates[-1].get("pending_call"):
        sent = len(one.of(Call))
        updates.append(call_model(state, settings, [], one))
        assert asyncio.run(acall_model(state, settings, [], other)) == updates[-1]
        assert other.effects == one.effects
        assert len(one.of(Call)) - sent <= 1
        state = cast("CallModelState", {**state, **updates[-1]})
    return one, updates


def merged(updates: Sequence[JsonMap]) -> JsonMap:
    """The updates of all visits in one map, without the state that only the next visit reads."""
    state = {name: value for update in updates for name, value in update.items()}
    state.pop("pending_call", None)
    return state
