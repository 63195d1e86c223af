from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.exchange import CallModelState, CallSettings, build_prompt
from mendgraph.nodes.call_model.ledger import FREE, Entry, Price, RunLimits, Spending, Used
from mendgraph.nodes.call_model.model import Call, Lost
from mendgraph.nodes.call_model.paid_call import CallBudget, stopped
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.prompts.estimates import Gauge, estimate_tokens
from mendgraph.nodes.records import (
    ModelReply,
    Profile,
    ProviderErrorKind as Kind,
    ProviderFailure,
    StopCause,
    StopReason,
)
from tests.nodes.call_model.recorded_services import (
    SECONDS,
    Effect,
    Emit,
    RecordedServices,
    Reserve,
    Settle,
    Wait,
    merged,
    visit_to_the_end,
)
from tests.nodes.call_model.spendings import spent

TASK = HumanMessage("Mend calc.py, please.")
PROMPT = build_prompt(Profile(), [], [TASK], (), None)
ESTIMATE = estimate_tokens(PROMPT.size, len(PROMPT.messages))
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3)
GAUGE = Gauge(size=PROMPT.size, messages=len(PROMPT.messages), tokens=70)
OURS, OTHER, THIRD = (ModelChoice(model=name) for name in ("ours", "other", "third"))
DEAR, CHEAP = Price(input=10.0, output=30.0, cached_input=5.0), Price(input=1.0, output=2.0)

Result = ModelReply | ProviderFailure


def failed(kind: Kind, retry_after_s: float | None = None, received: int = 0) -> ProviderFailure:
    return ProviderFailure(
        kind=kind, message=f"{kind.value}!", retry_after_s=retry_after_s, received_characters=received
    )


BUSY, DOWN, NO_KEY = failed(Kind.RATE_LIMITED), failed(Kind.SERVER_ERROR), failed(Kind.AUTHENTICATION)
OPEN = failed(Kind.CONNECTION, retry_after_s=20.0).model_copy(update={"sent": False})


@dataclass(frozen=True)
class Paid:
    """What came of a call: the counters after all visits, and the reply or why there is none."""

    spending: Spending
    reply: ModelReply | None = None
    stop: StopCause | None = None


class Endpoint:
    """What `RecordedServices` keep of one call, which is made sync and async."""

    def __init__(self, results: Sequence[Result] = (), **more: Any) -> None:
        self._new = partial(RecordedServices, results, **more)

    def play(self, spending: Spending, budget: CallBudget) -> Paid:
        state = CallModelState(messages=[TASK], profile=Profile(), spending=spending)
        self.services, self.updates = visit_to_the_end(self._new, state, CallSettings(budget))
        update = merged(self.updates)
        return Paid(update["spending"], update["reply"], update.get("stop"))

    @property
    def edges(self) -> list[str]:
        """By which edges the node was visited again."""
        return [update["pending_call"].edge for update in self.updates[:-1]]

    @property
    def effects(self) -> list[Effect]:
        return self.services.effects

    @property
    def course(self) -> str:
        return self.services.course

    def of(self, kind: type[Any]) -> list[Any]:
        return self.services.of(kind)


def budget(*models: ModelChoice, **more: Any) -> CallBudget:
    return CallBudget(models=models or (OURS,), thread="t", **more)


def paid(endpoint: Endpoint, budget: CallBudget, spending: Spending | None = None) -> Paid:
    return endpoint.play(spending or Spending(), budget)


def entry(model: str = "ours", tokens: int = ESTIMATE, most: int = 2_048, cost: float | None = None) -> Entry:
    return Entry(thread="t", model=model, purpose="reply", input_tokens=tokens, output_tokens=most, cost_usd=cost)


def used(tokens_in: int, tokens_out: int, cost: float | None = None, cached: int = 0, seconds: float = SECONDS) -> Used:
    return Used(
        calls=1, input_tokens=tokens_in, output_tokens=tokens_out, cached_tokens=cached, cost_usd=cost, seconds=seconds
    )


def told(what: Used, model: str = "ours", purpose: str = "reply") -> Emit:
    return Emit(name="model.usage", payload={"purpose": purpose, "model": model, **what.model_dump(exclude={"calls"})})


def fallen_back(failure: ProviderFailure, model: str, following: str) -> Emit:
    payload = {"model": model, "following": following, "reason": failure.message}
    return Emit(name="model.fallback", payload=payload)


def sending(most: int = 2_048, timeout_s: float = 300.0, *, quiet: bool = False) -> Call:
    return Call(prompt=PROMPT, max_output_tokens=most, timeout_s=timeout_s, quiet=quiet)


def gave_up(failure: ProviderFailure, diagnostics: str) -> StopCause:
    return StopCause(reason=StopReason.PROVIDER_FAILED, message=failure.message, diagnostics=(diagnostics,))


FREE_TRY = used(0, 0, 0.0)
"""What a try comes to that an endpoint refuses at once."""


# --- What is done, and in which order


def test_reply_is_reserved_sent_and_settled() -> None:
    endpoint = Endpoint([REPLY])
    what = used(70, 3)
    assert paid(endpoint, budget()) == Paid(
        spent(1, 70, 3, seconds=2.0, unpriced_calls=1, gauge=GAUGE, booked=11), reply=REPLY
    )
    assert endpoint.effects == [
        ModelChoice(model="ours", base_url=None),
        Reserve(entry=entry()),
        sending(),
        Settle(number=11, used=what),
        told(what),
    ]


def test_retry_is_reserved_and_settled_for_itself() -> None:
    endpoint = Endpoint([BUSY, REPLY])
    what = used(70, 3)
    assert paid(endpoint, budget()).spending == spent(2, 70, 3, seconds=4.375, unpriced_calls=1, gauge=GAUGE, booked=12)
    assert endpoint.effects == [
        ModelChoice(model="ours", base_url=None),
        Reserve(entry=entry()),
        sending(),
        Settle(number=11, used=FREE_TRY),
        told(FREE_TRY),
        Wait(seconds=0.375, reason="rate_limited!"),
        ModelChoice(model="ours", base_url=None),
        Reserve(entry=entry(), after=11),
        sending(),
        Settle(number=12, used=what),
        told(what),
    ]


def test_call_is_sent_three_times_by_default() -> None:
    endpoint = Endpoint([DOWN, DOWN, DOWN, REPLY])
    assert paid(endpoint, budget()).stop == gave_up(DOWN, "provider error: server_error (3 tries)")
    assert len(endpoint.of(Call)) == 3


# --- From one visit to the next


def test_each_try_is_a_visit_and_its_wait_begins_the_next() -> None:
    endpoint = Endpoint([DOWN, BUSY, REPLY])
    paid(endpoint, budget())
    assert endpoint.edges == ["retry", "retry"]
    first, second, last = endpoint.updates
    assert first["pending_call"] == PendingCall(attempt=1, wait_s=0.375, reason="server_error!", waited_s=0.375)
    assert second["pending_call"] == PendingCall(attempt=2, wait_s=0.75, reason="rate_limited!", waited_s=1.125)
    assert [update["spending"].seconds for update in endpoint.updates] == [2.0, 4.375, 7.125]
    assert [update["reply"] for update in endpoint.updates] == [None, None, REPLY]
    assert last["pending_call"] is None
    assert ["step" in update for update in endpoint.updates] == [False, False, True]


def test_next_model_begins_with_its_first_try_and_knows_who_failed_before() -> None:
    endpoint = Endpoint([DOWN, DOWN, DOWN, DOWN, DOWN])
    result = paid(endpoint, budget(OURS, OTHER, retries=1))
    assert endpoint.edges == ["retry", "next model", "retry"]
    before = PendingCall(edge="next model", model=1, waited_s=0.375, failures=("ours: server error (2 tries)",))
    assert endpoint.updates[1]["pending_call"] == before
    assert result.stop == gave_up(DOWN, "ours: server error (2 tries); other: server error (2 tries)")


# --- The next model


def test_fallbacks_are_asked_in_order_once_the_tries_are_used_up() -> None:
    endpoint = Endpoint([DOWN, DOWN, BUSY, BUSY, REPLY])
    result = paid(endpoint, budget(OURS, OTHER, THIRD, retries=1))
    assert endpoint.course == "crsetwcrset" + "t" + "crsetwcrset" + "t" + "crset"
    assert endpoint.of(Emit)[2::3] == [fallen_back(DOWN, "ours", "other"), fallen_back(BUSY, "other", "third")]
    assert [each.model for each in endpoint.of(ModelChoice)] == ["ours", "ours", "other", "other", "third"]
    assert [each.entry.model for each in endpoint.of(Reserve)] == ["ours", "ours", "other", "other", "third"]
    assert (result.reply, result.spending.usage.total_calls, result.spending.booked) == (REPLY, 5, 15)


def test_what_the_endpoint_calls_wrong_goes_to_nobody_else() -> None:
    endpoint = Endpoint([failed(Kind.BAD_REQUEST)])
    result = paid(endpoint, budget(OURS, OTHER))
    assert endpoint.course == "crset"
    stop = gave_up(failed(Kind.BAD_REQUEST), "provider error: bad_request")
    assert result == Paid(spent(1, seconds=2.0, booked=11), stop=stop)


def test_prompt_that_is_too_long_and_cannot_be_shortened_goes_to_nobody_else() -> None:
    endpoint = Endpoint([failed(Kind.CONTEXT_OVERFLOW)])
    result = paid(endpoint, budget(OURS, OTHER))
    assert (endpoint.course, endpoint.edges) == ("crset", ["conversation shortened"])
    assert result.stop is not None
    assert (result.stop.reason, result.stop.diagnostics) == (StopReason.CONTEXT_OVERFLOW, ("context_overflow!",))


def test_when_all_have_failed_each_is_named() -> None:
    endpoint = Endpoint([DOWN, DOWN, NO_KEY])
    result = paid(endpoint, budget(OURS, OTHER, retries=1))
    assert result.stop == gave_up(NO_KEY, "ours: server error (2 tries); other: authentication")


def test_open_circuit_is_waited_for_only_where_nobody_else_is_left() -> None:
    endpoint = Endpoint([OPEN, OPEN, REPLY])
    result = paid(endpoint, budget(OURS, OTHER))
    assert (result.reply, result.spending.usage.total_calls) == (REPLY, 1)
    assert endpoint.course == "crset" + "t" + "crsetwcrset"
    assert endpoint.of(Wait) == [Wait(seconds=20.0, reason="connection!")]


@pytest.mark.parametrize("kind", [Kind.AUTHENTICATION, Kind.MODEL_UNAVAILABLE, Kind.CONNECTION])
def test_model_that_cannot_be_connected_costs_nothing_and_the_next_is_asked(kind: Kind) -> None:
    endpoint = Endpoint([REPLY], unreachable={"ours": failed(kind)})
    result = paid(endpoint, budget(OURS, OTHER))
    assert (endpoint.course, result.reply, result.spending.usage.total_calls) == ("c" + "t" + "crset", REPLY, 1)
    assert endpoint.of(Emit)[0] == fallen_back(failed(kind), "ours", "other")


# --- The book


FULL = StopCause(reason=StopReason.DAY_LIMIT, message="The day is full.")


@pytest.mark.parametrize(
    ("refused", "course", "spending"), [(11, "cr", Spending()), (12, "crsetwcr", spent(1, seconds=2.375, booked=11))]
)
def test_limit_of_the_day_sends_nothing_and_is_told(refused: int, course: str, spending: Spending) -> None:
    endpoint = Endpoint([BUSY], refusals={refused: FULL})
    assert paid(endpoint, budget(OURS, OTHER)) == Paid(spending, stop=FULL)
    assert endpoint.course == course


def test_what_was_lost_is_charged_once_before_anything_is_sent() -> None:
    """With a process that was killed: the book holds two calls that the counters do not."""
    gone = Used(calls=2, input_tokens=40, output_tokens=5, cached_tokens=4, cost_usd=0.25, seconds=3.0)
    endpoint = Endpoint([BUSY, REPLY], lost=Lost(gone, 10))
    spending = paid(endpoint, budget(price_of=lambda _: FREE), spent(1, 60, 5, booked=8)).spending
    assert endpoint.course == "c" + "r" + "rsetw" + "crset"
    assert [each.after for each in endpoint.of(Reserve)] == [8, 10, 11]
    assert spending == spent(
        5, 170, 13, seconds=3.0 + 2 * SECONDS + 0.375, cached_tokens=4, cost_usd=0.25, gauge=GAUGE, booked=12
    )


# --- What is charged


@pytest.mark.parametrize(
    ("result", "tokens_in", "tokens_out"),
    [
        (failed(Kind.TIMEOUT, received=30), ESTIMATE, 10),
        (failed(Kind.SERVER_ERROR, received=30), 0, 10),
        (NO_KEY, 0, 0),
        (ModelReply(text="x" * 30, reasoning="y" * 30, refusal="z" * 3), ESTIMATE, 21),
        (ModelReply(text="x" * 30, input_tokens=70), 70, 10),
        (ModelReply(text="x" * 30, input_tokens=-7, output_tokens=-7, cached_tokens=-7), ESTIMATE, 10),
    ],
)
def test_no_number_never_means_no_cost(result: Result, tokens_in: int, tokens_out: int) -> None:
    endpoint = Endpoint([result])
    spending = paid(endpoint, budget(retries=0, price_of=lambda _: CHEAP)).spending
    assert spending.usage[:3] == (1, tokens_in, tokens_out)
    assert endpoint.of(Settle) == [Settle(number=11, used=used(tokens_in, tokens_out, spending.cost_usd))]
    assert spending.cost_usd == pytest.approx((tokens_in * 1.0 + tokens_out * 2.0) / 1_000_000)


def test_what_is_never_sent_gives_its_reservation_back() -> None:
    endpoint = Endpoint(stop_at=1, stop="by Ctrl-C")
    nothing = Used(cost_usd=0.0)
    assert paid(endpoint, budget()).spending == Spending(booked=11)
    assert endpoint.effects[2:] == [Settle(number=11, used=nothing), told(nothing)]


@pytest.mark.parametrize(
    ("stop_at", "course", "calls"),
    [(0, "c", 0), (1, "cret", 0), (5, "crsetw", 1), (6, "crsetwc", 1), (7, "crsetwcret", 1)],
)
def test_stop_at_any_effect_ends_the_request(stop_at: int, course: str, calls: int) -> None:
    endpoint = Endpoint([BUSY, REPLY], stop_at=stop_at, stop="by the program")
    result = paid(endpoint, budget(OURS, OTHER))
    assert (endpoint.course, result.stop, result.reply) == (course, stopped("by the program"), None)
    assert (result.spending.usage.total_calls, result.spending.booked) == (
        calls,
        10 + course.count("r") if "r" in course else 0,
    )


def test_retry_that_no_longer_fits_is_not_waited_for() -> None:
    endpoint = Endpoint([BUSY])
    limits = RunLimits(api=APILimits(max_calls_per_turn=1))
    result = paid(endpoint, budget(limits=limits))
    assert result.stop is not None
    assert (result.stop.reason, endpoint.of(Wait)) == (StopReason.MAX_CALLS_PER_TURN, [])


def test_where_the_last_model_cannot_be_connected_the_request_ends() -> None:
    endpoint = Endpoint(unreachable={"ours": NO_KEY})
    result = paid(endpoint, budget())
    assert (result.stop, result.spending.usage.total_calls) == (gave_up(NO_KEY, "provider error: authentication"), 0)


# --- Prices


@pytest.mark.parametrize(
    ("wishes", "seconds_left", "waits"),
    [
        ((None, None), None, [0.5, 1.0]),
        ((None,) * 9, None, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]),
        ((2.5,), None, [2.5]),
        ((30.1,), None, []),
        ((None,), 2.6, [0.5]),
        ((2.0,), 4.0, []),
        ((float("nan"), -3.0), None, [0.0, 0.0]),
    ],
)
def test_how_long_to_wait(wishes: Sequence[float | None], seconds_left: float | None, waits: list[float]) -> None:
    endpoint = Endpoint([*(failed(Kind.RATE_LIMITED, wish) for wish in wishes), REPLY])
    paid(endpoint, budget(retries=len(wishes), limits=RunLimits(max_seconds=seconds_left), jitter=lambda: 1.0))
    assert [wait.seconds for wait in endpoint.of(Wait)] == waits
