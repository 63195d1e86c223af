from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Spending, Used
from mendgraph.nodes.call_model.model import Call, UnsettledUsage
from mendgraph.nodes.call_model.paid_call import CallBudget, stopped
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.prices import FREE, Price
from mendgraph.nodes.call_model.prompts.estimates import Gauge
from mendgraph.nodes.call_model.turn_prompt import build_prompt
from mendgraph.nodes.language.token_estimates import estimate_tokens
from mendgraph.nodes.records import (
    JsonMap,
    ModelReply,
    Profile,
    ProviderErrorKind as Kind,
    ProviderFailure,
    StopCause,
    StopReason,
)
from tests.row_tables import rows
from tests.rules.call_model.recorded_services import (
    SECONDS,
    Emit,
    RecordedServices,
    Reserve,
    Settle,
    Wait,
    merged,
    run_visits,
)
from tests.rules.call_model.spendings import spent

TASK = HumanMessage("Mend calc.py, please.")
PROMPT = build_prompt(Profile(), [], [TASK], (), None)
ESTIMATE = estimate_tokens(PROMPT.size, len(PROMPT.messages))
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3)
GAUGE = Gauge(size=PROMPT.size, messages=len(PROMPT.messages), tokens=70)
OURS, OTHER, THIRD = (ModelChoice(model=name) for name in ("ours", "other", "third"))
CHEAP = Price(input=1.0, output=2.0)

Result = ModelReply | ProviderFailure


def failed(kind: Kind, retry_after_s: float | None = None, received: int = 0) -> ProviderFailure:
    return ProviderFailure(
        kind=kind, message=f"{kind.value}!", retry_after_s=retry_after_s, received_characters=received
    )


BUSY, DOWN, NO_KEY = failed(Kind.RATE_LIMITED), failed(Kind.SERVER_ERROR), failed(Kind.AUTHENTICATION)
OPEN = failed(Kind.CONNECTION, retry_after_s=20.0).model_copy(update={"sent": False})


class Played(NamedTuple):
    """The services and updates of all visits of a call, and its result."""

    services: RecordedServices
    updates: list[JsonMap]
    spending: Spending
    reply: ModelReply | None
    stop: StopCause | None

    @property
    def course(self) -> str:
        return self.services.course

    def of(self, kind: type[Any]) -> list[Any]:
        return self.services.of(kind)


def play(results: Sequence[Result], *models: ModelChoice, before: Spending | None = None, **more: Any) -> Played:
    """Make one call, sync and async; `more` are fields of the budget, and what `RecordedServices` are given."""
    services_options = {
        name: more.pop(name) for name in ("unreachable", "refusals", "lost", "stop_at", "stop") if name in more
    }
    state = CallModelState(messages=[TASK], profile=Profile(), spending=before or Spending())
    settings = CallSettings(CallBudget(models=models or (OURS,), thread="t", **more))
    services, updates = run_visits(lambda: RecordedServices(results, **services_options), state, settings)
    update = merged(updates)
    return Played(services, updates, update["spending"], update["reply"], update.get("stop"))


def usage(tokens_in: int, tokens_out: int, cost: float | None = None) -> Used:
    return Used(calls=1, input_tokens=tokens_in, output_tokens=tokens_out, cost_usd=cost, seconds=SECONDS)


def usage_event(what: Used) -> Emit:
    payload = {"purpose": "reply", "model": "ours", **what.model_dump(exclude={"calls"})}
    return Emit(name="model.usage", payload=payload)


def fallen_back(failure: ProviderFailure, model: str, following: str) -> Emit:
    payload = {"model": model, "following": following, "reason": failure.message}
    return Emit(name="model.fallback", payload=payload)


def gave_up(failure: ProviderFailure, diagnostics: str) -> StopCause:
    return StopCause(reason=StopReason.PROVIDER_FAILED, message=failure.message, diagnostics=(diagnostics,))


def test_retry_has_its_own_reservation_and_settlement() -> None:
    reserved: JsonMap = {"input_tokens": ESTIMATE, "output_tokens": 2_048, "cost_usd": None}
    entry = Entry(thread="t", model="ours", purpose="reply", **reserved)
    sent = Call(prompt=PROMPT, max_output_tokens=2_048, timeout_s=300.0)
    free, paid = usage(0, 0, 0.0), usage(70, 3)
    played = play([BUSY, REPLY])
    assert played.services.effects == [
        *(ModelChoice(model="ours", base_url=None), Reserve(entry=entry), sent),
        *(Settle(number=11, usage=free), usage_event(free), Wait(seconds=0.375, reason="rate_limited!")),
        *(ModelChoice(model="ours", base_url=None), Reserve(entry=entry, after=11), sent),
        *(Settle(number=12, usage=paid), usage_event(paid)),
    ]
    assert (played.reply, played.stop) == (REPLY, None)
    assert played.spending == spent(2, 70, 3, seconds=4.375, unpriced_calls=1, gauge=GAUGE, booked=12)


def test_call_is_sent_three_times_by_default() -> None:
    played = play([DOWN, DOWN, DOWN, REPLY])
    assert played.stop == gave_up(DOWN, "provider error: server_error (3 tries)")
    assert len(played.of(Call)) == 3


def test_next_model_starts_at_its_first_try_and_keeps_earlier_failures() -> None:
    played = play([DOWN, DOWN, NO_KEY], OURS, OTHER, retries=1)
    assert [update["pending_call"].edge for update in played.updates[:-1]] == ["retry", "next model"]
    before = PendingCall(edge="next model", model=1, waited_s=0.375, failures=("ours: server error (2 tries)",))
    assert played.updates[1]["pending_call"] == before
    assert played.stop == gave_up(NO_KEY, "ours: server error (2 tries); other: authentication")


def test_fallbacks_are_tried_in_order_after_all_retries() -> None:
    played = play([DOWN, DOWN, BUSY, BUSY, REPLY], OURS, OTHER, THIRD, retries=1)
    assert played.course == "crsetwcrset" + "t" + "crsetwcrset" + "t" + "crset"
    assert played.of(Emit)[2::3] == [fallen_back(DOWN, "ours", "other"), fallen_back(BUSY, "other", "third")]
    assert [choice.model for choice in played.of(ModelChoice)] == ["ours", "ours", "other", "other", "third"]
    assert [reservation.entry.model for reservation in played.of(Reserve)] == [
        "ours",
        "ours",
        "other",
        "other",
        "third",
    ]
    assert (played.reply, played.spending.usage.total_calls, played.spending.booked) == (REPLY, 5, 15)


def test_open_circuit_is_waited_for_only_on_the_last_model() -> None:
    played = play([OPEN, OPEN, REPLY], OURS, OTHER)
    assert (played.reply, played.spending.usage.total_calls) == (REPLY, 1)
    assert played.course == "crset" + "t" + "crsetwcrset"
    assert played.of(Wait) == [Wait(seconds=20.0, reason="connection!")]


@rows(Kind.AUTHENTICATION, Kind.MODEL_UNAVAILABLE, Kind.CONNECTION)
def test_unreachable_model_costs_nothing_and_the_next_is_called(kind: Kind) -> None:
    played = play([REPLY], OURS, OTHER, unreachable={"ours": failed(kind)})
    assert (played.course, played.reply, played.spending.usage.total_calls) == ("c" + "t" + "crset", REPLY, 1)
    assert played.of(Emit)[0] == fallen_back(failed(kind), "ours", "other")


FULL = StopCause(reason=StopReason.DAY_LIMIT, message="The day is full.")


@rows((11, "cr", Spending()), (12, "crsetwcr", spent(1, seconds=2.375, booked=11)))
def test_reached_day_limit_sends_nothing_and_stops(refused: int, course: str, spending: Spending) -> None:
    played = play([BUSY], OURS, OTHER, refusals={refused: FULL})
    assert (played.course, played.spending, played.stop) == (course, spending, FULL)


def test_lost_call_is_charged_once_before_the_next_request() -> None:
    """By a process that was killed: the book has two calls that the counters lack."""
    gone = Used(calls=2, input_tokens=40, output_tokens=5, cached_tokens=4, cost_usd=0.25, seconds=3.0)
    played = play(
        [BUSY, REPLY], lost=UnsettledUsage(gone, 10), before=spent(1, 60, 5, booked=8), price_of=lambda _: FREE
    )
    assert played.course == "c" + "r" + "rsetw" + "crset"
    assert [reservation.after for reservation in played.of(Reserve)] == [8, 10, 11]
    seconds = 3.0 + 2 * SECONDS + 0.375
    assert played.spending == spent(5, 170, 13, seconds=seconds, cached_tokens=4, cost_usd=0.25, gauge=GAUGE, booked=12)


@rows(
    (failed(Kind.TIMEOUT, received=30), ESTIMATE, 10),
    (failed(Kind.SERVER_ERROR, received=30), 0, 10),
    (NO_KEY, 0, 0),
    (ModelReply(text="x" * 30, reasoning="y" * 30, refusal="z" * 3), ESTIMATE, 21),
    (ModelReply(text="x" * 30, input_tokens=70), 70, 10),
    (ModelReply(text="x" * 30, input_tokens=-7, output_tokens=-7, cached_tokens=-7), ESTIMATE, 10),
)
def test_missing_usage_is_estimated_and_charged(result: Result, tokens_in: int, tokens_out: int) -> None:
    played = play([result], retries=0, price_of=lambda _: CHEAP)
    assert played.spending.usage[:3] == (1, tokens_in, tokens_out)
    assert played.of(Settle) == [Settle(number=11, usage=usage(tokens_in, tokens_out, played.spending.cost_usd))]
    assert played.spending.cost_usd == pytest.approx((tokens_in * 1.0 + tokens_out * 2.0) / 1_000_000)


def test_unsent_call_returns_its_reservation() -> None:
    played = play([], stop_at=1, stop="by Ctrl-C")
    nothing = Used(cost_usd=0.0)
    assert played.spending == Spending(booked=11)
    assert played.services.effects[2:] == [Settle(number=11, usage=nothing), usage_event(nothing)]


@rows((0, "c", 0, 0), (1, "cret", 0, 11), (5, "crsetw", 1, 11), (6, "crsetwc", 1, 11), (7, "crsetwcret", 1, 12))
def test_stop_at_any_effect_ends_the_request(stop_at: int, course: str, calls: int, booked: int) -> None:
    played = play([BUSY, REPLY], OURS, OTHER, stop_at=stop_at, stop="by the program")
    assert (played.course, played.stop, played.reply) == (course, stopped("by the program"), None)
    assert (played.spending.usage.total_calls, played.spending.booked) == (calls, booked)


def test_retry_over_a_limit_is_not_waited_for() -> None:
    played = play([BUSY], limits=RunLimits(api=APILimits(max_calls_per_turn=1)))
    assert played.stop is not None
    assert (played.stop.reason, played.of(Wait)) == (StopReason.MAX_CALLS_PER_TURN, [])


@rows(
    ((None, None), None, [0.5, 1.0]),
    ((None,) * 9, None, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]),
    ((2.5,), None, [2.5]),
    ((30.1,), None, []),
    ((None,), 2.6, [0.5]),
    ((2.0,), 4.0, []),
    ((float("nan"), -3.0), None, [0.0, 0.0]),
)
def test_retry_wait_is_retry_after_or_doubles(
    wishes: Sequence[float | None], seconds_left: float | None, waits: list[float]
) -> None:
    results: list[Result] = [*(failed(Kind.RATE_LIMITED, wish) for wish in wishes), REPLY]
    played = play(results, retries=len(wishes), limits=RunLimits(max_seconds=seconds_left), jitter=lambda: 1.0)
    assert [wait.seconds for wait in played.of(Wait)] == waits
