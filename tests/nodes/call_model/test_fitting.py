import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import example, given, settings, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.call_model import exchange as script_of
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.exchange import OUTPUT_SHARE, CallModelState, CallSettings, Fitting, build_prompt
from mendgraph.nodes.call_model.ledger import RunLimits, Spending
from mendgraph.nodes.call_model.model import Call, Stopped
from mendgraph.nodes.call_model.node import call_model
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.pending_call import FIRST_TRY, MOST_ROUNDS, PendingCall
from mendgraph.nodes.call_model.prompts.estimates import estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.window import SUMMARY_SYSTEM, WHOLE, Window
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.records import (
    ChangeKind,
    EditForm,
    FileChange,
    ModelReply,
    Plan,
    PlanStep,
    Profile,
    Protocol,
    ProviderErrorKind as Kind,
    ProviderFailure,
    StopCause,
    StopReason,
)
from tests.nodes.call_model.recorded_services import Effect, Emit, RecordedServices, Settle
from tests.nodes.call_model.window_histories import exchange, histories, read, with_ids

NATIVE = Profile(protocol=Protocol.NATIVE)
MOST = 400
LIMITS = RunLimits(max_output_tokens_per_call=MOST)
SUMMARY = json.dumps({"done": ["read a.py"], "findings": ["add subtracts"], "left": ["mend it"], "files": ["a.py"]})
GOOD = ModelReply(text=SUMMARY, input_tokens=9_000, output_tokens=40)
DOWN = ProviderFailure(kind=Kind.SERVER_ERROR, message="It failed.")

Result = ModelReply | ProviderFailure | Stopped | StopCause


def history(steps: int, characters: int = 3_000, said: str = "") -> list[AnyMessage]:
    """A request and so many steps, each of which has read a file of so many characters."""
    messages: list[AnyMessage] = [HumanMessage("Mend calc.py.")]
    for _ in range(steps):
        messages += exchange(Protocol.NATIVE, read(characters), said=said)
    return with_ids(messages)


@dataclass(frozen=True)
class Fitted:
    """A prompt that fits, with the most that its reply may have; or why there is none. And what is shown by then."""

    window: Window
    spending: Spending
    prompt: Prompt | None = None
    most_output: int | None = None
    stop: StopCause | None = None


READS = history(20)
"""About 21,000 tokens, nearly all of them in results."""
TALKS = history(20, 0, said="I look at it. " * 200)
"""About as many, none of them in results."""


def conversation(messages: list[AnyMessage], profile: Profile = NATIVE, **more: Any) -> CallModelState:
    return cast("CallModelState", {"messages": messages, "profile": profile, "spending": Spending(), **more})


def whole(given: CallModelState) -> int:
    """The tokens of a request that holds all, as estimated."""
    prompt = build_prompt(given["profile"], [], given["messages"], (), None)
    return estimate_input(prompt.size, len(prompt.messages), Spending().gauge)


def estimate(fitted: Fitted, spending: Spending | None = None) -> int:
    assert fitted.prompt is not None
    gauge = (spending or fitted.spending).gauge
    return estimate_input(fitted.prompt.size, len(fitted.prompt.messages), gauge)


class Endpoint:
    """Answers requests for a summary with `result`; effects are kept, but for the telling of what calls cost."""

    def __init__(self, result: Result = GOOD) -> None:
        self.result = result
        self.effects: list[Effect] = []

    def play(
        self,
        given: CallModelState,
        window_tokens: int | None,
        *,
        window: Window = WHOLE,
        spending: Spending | None = None,
        limits: RunLimits = LIMITS,
        refused: bool = False,
    ) -> Fitted:
        state = cast("CallModelState", {**given, "window": window, "spending": spending or Spending()})
        if refused:
            state["window"] = window.model_copy(update={"tokens": whole(given)})
            state["pending_call"] = PendingCall(edge=script_of.SHORTENED, overflow="Too long.", is_too_long=True)
        settings = CallSettings(CallBudget(limits=limits), window_tokens=window_tokens)
        refusals = {1: self.result} if isinstance(self.result, StopCause) else {}
        results = [] if isinstance(self.result, StopCause) else [self.result] * MOST_ROUNDS
        services = RecordedServices(results, refusals=refusals, first=1)
        fitted = self._fitted(state, settings, services)
        self.effects += [effect for effect in services.effects if not isinstance(effect, ModelChoice)]
        return fitted

    def _fitted(self, state: CallModelState, settings: CallSettings, services: RecordedServices) -> Fitted:
        """What the first visit sends that asks for no summary; visits before it are made."""
        while True:
            spending, told = state["spending"], list[Effect]()
            pending = state.get("pending_call") or FIRST_TRY
            fitting = Fitting(state, settings, (), lambda *event: told.append(Emit(*event)), spending, pending)  # noqa: B023
            request = fitting.request()
            if isinstance(request, StopCause):
                services.effects.extend(told)
                return Fitted(fitting.window, spending, stop=request)
            if request.purpose == "reply":
                services.effects.extend(told)
                return Fitted(fitting.window, spending, request.prompt, request.most_output)
            update = call_model(state, settings, (), services)
            state = cast("CallModelState", {**state, **update})
            if update.get("stop"):
                return Fitted(state["window"], state["spending"], stop=update["stop"])

    @property
    def asked(self) -> int:
        """How often the model was asked for a summary."""
        sends = [effect for effect in self.effects if isinstance(effect, Call)]
        assert all(send.quiet and send.prompt.messages[0]["content"] == SUMMARY_SYSTEM for send in sends)
        return len(sends)

    @property
    def compactions(self) -> list[str]:
        """What was told of compactions: each has to have saved something."""
        told = [e.payload for e in self.effects if isinstance(e, Emit) and e.name == "context.compacted"]
        assert all(payload["tokens_after"] < payload["tokens_before"] for payload in told)
        return [payload["kind"] for payload in told]


# --- While it fits


@pytest.mark.parametrize("window_tokens", [None, 100_000])
def test_nothing_is_done_and_all_is_shown_while_it_fits(window_tokens: int | None) -> None:
    endpoint = Endpoint()
    fitted = endpoint.play(conversation(READS), window_tokens)
    assert endpoint.effects == []
    assert fitted.prompt == build_prompt(NATIVE, [], READS, (), None)
    assert (fitted.window, fitted.spending, fitted.stop) == (WHOLE, Spending(), None)


# --- When it does not


def test_notes_of_the_project_give_way_before_the_request_does() -> None:
    notes = (ProjectNotes(path="AGENTS.md", text="Use tabs.\n" * 400),)
    endpoint = Endpoint()
    fitted = endpoint.play(conversation(history(0), notes=notes), 1_000)
    assert fitted.prompt == build_prompt(NATIVE, [], history(0), (), None)
    roomy = endpoint.play(conversation(history(0), notes=notes), 20_000)
    assert estimate(roomy) > estimate(fitted) + 1_000


def test_what_cannot_be_cleared_is_summed_up_and_that_is_paid() -> None:
    endpoint = Endpoint()
    plan = Plan(steps=(PlanStep(title="mend add"),))
    change = FileChange(path="src/a.py", kind=ChangeKind.EDITED, sha256_before="a", sha256_after="b", diff="")
    fitted = endpoint.play(conversation(TALKS, plan=plan, changes=[change]), 20_000)
    assert (endpoint.compactions, endpoint.asked) == (["summarised"], 1)
    assert (fitted.spending.usage[:3], fitted.window.no_summary) == ((1, 9_000, 40), False)
    assert fitted.prompt is not None
    head = fitted.prompt.messages[1]["content"]
    assert all(text in head for text in ("Mend calc.py.", "add subtracts", "mend add", "src/a.py"))
    assert estimate(fitted) + MOST <= 20_000


@pytest.mark.parametrize(
    ("result", "calls"),
    [
        (DOWN, 1),
        (ModelReply(text="I would rather not.", input_tokens=900, output_tokens=40), 1),
        (StopCause(reason=StopReason.DAY_LIMIT, message="The day is full."), 0),
    ],
    ids=["failure", "refusal", "day limit"],
)
def test_where_no_summary_comes_the_window_slides(result: Result, calls: int) -> None:
    endpoint = Endpoint(result)
    fitted = endpoint.play(conversation(TALKS), 20_000)
    assert (endpoint.compactions, fitted.stop) == (["slid"], None)
    assert fitted.spending.usage.total_calls == calls
    assert fitted.window.no_summary is isinstance(result, ModelReply)
    assert estimate(fitted) + MOST <= 20_000


def test_stop_in_the_middle_of_a_summary_ends_it_and_what_was_sent_is_paid() -> None:
    endpoint = Endpoint(Stopped(reason="by Ctrl-C", sent=True, seconds=1.5, received_characters=30))
    fitted = endpoint.play(conversation(TALKS), 20_000)
    assert fitted.stop == StopCause(reason=StopReason.CANCELLED, message="The run was stopped by Ctrl-C.")
    assert (fitted.prompt, fitted.window, endpoint.compactions) == (None, WHOLE, [])
    assert (fitted.spending.usage.total_calls, fitted.spending.usage.total_output_tokens) == (1, 10)
    assert isinstance(endpoint.effects[-1], Emit)
    assert isinstance(endpoint.effects[-2], Settle)


# --- After an endpoint's refusal


def test_after_a_refusal_half_is_sent_and_the_window_is_known_to_be_smaller() -> None:
    endpoint = Endpoint()
    fitted = endpoint.play(conversation(READS), None, refused=True)
    assert fitted.window.tokens == whole(conversation(READS))
    assert endpoint.compactions == ["cleared"]
    assert estimate(fitted) <= whole(conversation(READS)) * 0.55
    later = Endpoint()
    assert later.play(conversation(READS), None, window=fitted.window).prompt == fitted.prompt
    assert later.effects == []


def test_request_of_which_nothing_can_be_left_out_is_sent_as_long_as_it_fits() -> None:
    endpoint, asked = Endpoint(), with_ids([HumanMessage("Mend calc.py. " * 1_000)])
    whole = endpoint.play(conversation(asked), None)
    tight = endpoint.play(conversation(asked), estimate(whole) + MOST + 100)
    assert (tight.prompt, tight.window, endpoint.effects) == (whole.prompt, WHOLE, [])


# --- What is left for the reply


def test_after_the_last_round_the_request_is_sent_as_it_is_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Endpoint().play(conversation(READS), 20_000)
    monkeypatch.setattr(script_of, "MOST_ROUNDS", 1)
    endpoint = Endpoint()
    assert endpoint.play(conversation(READS), 20_000) == usual
    assert endpoint.compactions == ["cleared"]


# --- The block form

BLOCKS = Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS)


def block_history(turns: int) -> list[AnyMessage]:
    messages: list[AnyMessage] = []
    for _ in range(turns):
        messages += [HumanMessage("What is it?"), AIMessage("It is so. " * 100)]
    return with_ids([*messages, HumanMessage("Mend calc.py.")])


def test_block_form_leaves_out_by_itself_and_moves_no_window() -> None:
    endpoint = Endpoint()
    whole = endpoint.play(conversation(block_history(20), BLOCKS), None)
    fitted = endpoint.play(conversation(block_history(20), BLOCKS), 4_000)
    assert (endpoint.effects, fitted.window, whole.most_output) == ([], WHOLE, None)
    assert estimate(fitted) + MOST <= 4_000 < estimate(whole)
    assert (fitted.most_output or 0) >= MOST


def test_after_a_refusal_the_block_form_shows_half() -> None:
    given = conversation(block_history(20), BLOCKS)
    fitted = Endpoint().play(given, None, refused=True)
    assert (fitted.window.tokens, fitted.stop) == (whole(given), None)
    assert estimate(fitted) <= whole(given) // 2


# --- Whatever the history


SHORT_TALK: list[AnyMessage] = [
    HumanMessage("Request 0: "),
    AIMessage("", tool_calls=[{"name": "read_file", "args": {"path": "x.py"}, "id": "c0"}]),
    ToolMessage('{"ok":false,"error":{"code":"not_found","message":""}}', name="read_file", tool_call_id="c0"),
    AIMessage("Done: "),
    HumanMessage("Request 1: "),
]
"""Of which a beginning takes as much room as what it stands for."""


@settings(max_examples=40)
@example(messages=with_ids(SHORT_TALK), window_tokens=None, reply=GOOD, refused=True, most=16)
@given(
    messages=histories(),
    window_tokens=st.none() | st.integers(1_024, 9_000),
    reply=st.sampled_from([GOOD, DOWN, ModelReply(text="{}"), ModelReply(text="no", input_tokens=1, output_tokens=1)]),
    refused=st.booleans(),
    most=st.integers(16, 9_000),
)
def test_what_is_sent_fits_or_nothing_is(
    messages: list[AnyMessage], window_tokens: int | None, reply: ModelReply, refused: bool, most: int
) -> None:
    endpoint = Endpoint(reply)
    limits = RunLimits(max_output_tokens_per_call=most)
    fitted = endpoint.play(conversation(messages), window_tokens, limits=limits, refused=refused)
    known = min((each for each in (window_tokens, fitted.window.tokens) if each), default=None)
    assert len(endpoint.compactions) <= MOST_ROUNDS
    assert endpoint.asked <= 1
    assert fitted.spending.usage.total_calls == endpoint.asked
    assert (fitted.prompt is None) is (fitted.stop is not None)
    if fitted.prompt is None:
        assert fitted.stop is not None
        assert fitted.stop.reason is StopReason.CONTEXT_OVERFLOW
        return
    assert any(message["role"] == "user" and "Request" in message["content"] for message in fitted.prompt.messages)
    if known is not None:
        assert estimate(fitted) + min(most, known // OUTPUT_SHARE) <= known
    if refused:
        assert fitted.window != WHOLE
