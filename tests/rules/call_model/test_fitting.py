import json
from dataclasses import dataclass
from typing import Any, cast

from hypothesis import example, given, settings, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from mendgraph.graph.machine.small_models import block_form
from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.exchange import OUTPUT_SHARE, SHORTENED
from mendgraph.nodes.call_model.ledger import RunLimits, Spending
from mendgraph.nodes.call_model.model import Call, CompletedCall, StoppedCall
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.pending_call import MOST_ROUNDS, PendingCall
from mendgraph.nodes.call_model.prompts.estimates import estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.summary import SUMMARY_SYSTEM
from mendgraph.nodes.call_model.turn_prompt import build_prompt
from mendgraph.nodes.call_model.window import WHOLE, Window
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
from tests.extent import slow
from tests.row_tables import rows
from tests.rules.call_model.prompts.prompting import prompt_of
from tests.rules.call_model.recorded_services import SECONDS, Emit, RecordedServices, Settle, merged, run_visits
from tests.rules.call_model.window_histories import exchange, histories, read, with_ids

NATIVE, BLOCKS = Profile(protocol=Protocol.NATIVE), Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS)
MOST = 400
SUMMARY = json.dumps({"done": ["read a.py"], "findings": ["add subtracts"], "left": ["mend it"], "files": ["a.py"]})
GOOD = ModelReply(text=SUMMARY, input_tokens=9_000, output_tokens=40)
DOWN = ProviderFailure(kind=Kind.SERVER_ERROR, message="It failed.")
WORDS = ModelReply(text="I see.")

Result = ModelReply | ProviderFailure | StoppedCall | StopCause


class Summarising(RecordedServices):
    """Answers requests for a summary with `result`, or the book does, and other requests with words."""

    def __init__(self, result: Result) -> None:
        super().__init__(refusals={1: result} if isinstance(result, StopCause) else {}, first=1)
        object.__setattr__(self, "result", result)

    def send(self, _: Any, call: Call) -> CompletedCall | StoppedCall:
        self._add(call)
        result = self.__dict__["result"] if call.quiet else WORDS
        return result if isinstance(result, StoppedCall) else CompletedCall(result=result, seconds=SECONDS)


@dataclass(frozen=True)
class Fitted:
    """What is shown after a call, what was spent, and the prompt that was sent or why none was.

    `summary_requests` counts the requests for a summary; `compactions` are the kinds of the events, each of which
    reports fewer tokens than before.
    """

    window: Window
    spending: Spending
    summary_requests: int
    compactions: list[str]
    services: RecordedServices
    prompt: Prompt | None
    most_output: int
    stop: StopCause | None

    @property
    def tokens(self) -> int:
        assert self.prompt is not None
        return estimate_input(self.prompt.size, len(self.prompt.messages), self.spending.gauge)


def fit(
    messages: list[AnyMessage],
    window_tokens: int | None,
    *,
    result: Result = GOOD,
    profile: Profile = NATIVE,
    window: Window = WHOLE,
    most: int = MOST,
    refused: bool = False,
    **more: Any,
) -> Fitted:
    """Make a call whose requests for a summary come to `result`; `refused`: its endpoint called it too long before."""
    initial = {"messages": messages, "profile": profile, "spending": Spending(), "window": window, **more}
    if refused:
        initial["window"] = window.model_copy(update={"tokens": tokens_of(messages, profile)})
        initial["pending_call"] = PendingCall(edge=SHORTENED, overflow="Too long.", is_too_long=True)
    budget = CallBudget(limits=RunLimits(max_output_tokens_per_call=most))
    settings = CallSettings(budget, window_tokens=window_tokens, blocks=block_form(profile))
    services, updates = run_visits(lambda: Summarising(result), cast("CallModelState", initial), settings)
    update = {"window": initial["window"], **merged(updates)}
    calls: list[Call] = services.of(Call)
    summaries = [call for call in calls if call.quiet]
    assert all(call.prompt.messages[0]["content"] == SUMMARY_SYSTEM for call in summaries)
    payloads = [event.payload for event in services.of(Emit) if event.name == "context.compacted"]
    assert all(payload["tokens_after"] < payload["tokens_before"] for payload in payloads)
    sent = calls[-1] if len(calls) > len(summaries) else None
    return Fitted(
        window=update["window"],
        spending=update["spending"],
        summary_requests=len(summaries),
        compactions=[payload["kind"] for payload in payloads],
        services=services,
        prompt=sent.prompt if sent else None,
        most_output=sent.max_output_tokens if sent else 0,
        stop=update.get("stop"),
    )


def tokens_of(messages: list[AnyMessage], profile: Profile = NATIVE) -> int:
    """The tokens of a request that holds all, as estimated."""
    prompt = prompt_of(profile, [], messages, (), None)
    return estimate_input(prompt.size, len(prompt.messages), Spending().gauge)


def history(steps: int, characters: int = 3_000, text: str = "") -> list[AnyMessage]:
    """A request and so many steps, each of which has read a file of so many characters."""
    messages: list[AnyMessage] = [HumanMessage("Mend calc.py.")]
    for _ in range(steps):
        messages += exchange(Protocol.NATIVE, read(characters), text=text)
    return with_ids(messages)


READS = history(20)
"""About 21,000 tokens, nearly all of them in results."""
TALKS = history(20, 0, text="I look at it. " * 200)
"""About as many, none of them in results."""


@rows(None, 100_000)
def test_prompt_that_fits_is_sent_in_full(window_tokens: int | None) -> None:
    fitted = fit(READS, window_tokens)
    assert (fitted.summary_requests, fitted.compactions, fitted.window, fitted.stop) == (0, [], WHOLE, None)
    assert fitted.prompt == build_prompt(NATIVE, [], READS, (), None)


def test_project_notes_are_dropped_before_the_request() -> None:
    notes = (ProjectNotes(path="AGENTS.md", text="Use tabs.\n" * 400),)
    tight, roomy = (fit(history(0), window_tokens, notes=notes) for window_tokens in (1_000, 20_000))
    assert tight.prompt == build_prompt(NATIVE, [], history(0), (), None)
    assert roomy.tokens > tight.tokens + 1_000


def test_conversation_that_cannot_be_cleared_is_summarized_and_charged() -> None:
    plan = Plan(steps=(PlanStep(title="mend add"),))
    change = FileChange(path="src/a.py", kind=ChangeKind.EDITED, sha256_before="a", sha256_after="b", diff="")
    fitted = fit(TALKS, 20_000, plan=plan, changes=[change])
    assert (fitted.compactions, fitted.summary_requests, fitted.window.no_summary) == (["summarised"], 1, False)
    paid = fitted.services.of(Settle)[0].usage
    assert (paid.input_tokens, paid.output_tokens, fitted.spending.usage.total_calls) == (9_000, 40, 2)
    assert fitted.prompt is not None
    head = fitted.prompt.messages[1]["content"]
    assert all(text in head for text in ("Mend calc.py.", "add subtracts", "mend add", "src/a.py"))
    assert fitted.tokens + MOST <= 20_000


@rows(
    (DOWN, 1),
    (ModelReply(text="I would rather not.", input_tokens=900, output_tokens=40), 1),
    (ModelReply(text=json.dumps({"done": ["x" * 399] * 20, "left": ["y" * 399] * 20})), 1),  # it saves no room
    (ModelReply(text='{"done": [" "]}'), 1),
    (StopCause(reason=StopReason.DAY_LIMIT, message="The day is full."), 0),
)
def test_window_slides_if_there_is_no_summary(result: Result, calls: int) -> None:
    fitted = fit(TALKS, 20_000, result=result)
    assert (fitted.compactions, fitted.stop, fitted.summary_requests) == (["slid"], None, calls)
    assert fitted.spending.usage.total_calls == calls + 1
    assert fitted.window.no_summary is isinstance(result, ModelReply)
    assert fitted.tokens + MOST <= 20_000


def test_summary_is_not_retried_after_it_was_too_long() -> None:
    fitted = fit(TALKS, 20_000, pending_call=PendingCall(edge=SHORTENED, summaries=1))
    assert (fitted.compactions, fitted.stop, fitted.summary_requests) == (["slid"], None, 0)
    assert fitted.tokens + MOST <= 20_000


def test_stop_ends_a_summary_and_its_request_is_charged() -> None:
    dropped = StoppedCall(reason="by Ctrl-C", sent=True, seconds=1.5, received_characters=30)
    fitted = fit(TALKS, 20_000, result=dropped)
    assert fitted.stop == StopCause(reason=StopReason.CANCELLED, message="The run was stopped by Ctrl-C.")
    assert (fitted.prompt, fitted.window, fitted.compactions) == (None, WHOLE, [])
    assert (fitted.spending.usage.total_calls, fitted.spending.usage.total_output_tokens) == (1, 10)
    assert fitted.services.course.endswith("et")


def test_refused_request_is_halved_and_the_smaller_window_remembered() -> None:
    fitted = fit(READS, None, refused=True)
    assert (fitted.window.tokens, fitted.compactions) == (tokens_of(READS), ["cleared"])
    assert fitted.tokens <= tokens_of(READS) * 0.55
    later = fit(READS, None, window=fitted.window)
    assert (later.prompt, later.summary_requests, later.compactions) == (fitted.prompt, 0, [])


def test_block_form_trims_without_a_summary_and_halves_after_a_refusal() -> None:
    turns: list[AnyMessage] = [HumanMessage("What is it?"), AIMessage("It is so. " * 100)]
    messages = with_ids([*turns * 20, HumanMessage("Mend calc.py.")])
    fitted = fit(messages, 4_000, profile=BLOCKS)
    assert (fitted.summary_requests, fitted.compactions, fitted.window) == (0, [], WHOLE)
    assert fitted.tokens + MOST <= 4_000 < tokens_of(messages, BLOCKS)
    assert fitted.most_output >= MOST
    halved = fit(messages, None, profile=BLOCKS, refused=True)
    assert (halved.window.tokens, halved.stop) == (tokens_of(messages, BLOCKS), None)
    assert halved.tokens <= tokens_of(messages, BLOCKS) // 2
    notes = (ProjectNotes(path="AGENTS.md", text="Use tabs.\n" * 40),)
    noted = fit(messages, 4_000, profile=BLOCKS, notes=notes)
    assert noted.tokens + MOST <= 4_000


SHORT_TALK: list[AnyMessage] = [
    HumanMessage("Request 0: "),
    AIMessage("", tool_calls=[{"name": "read_file", "args": {"path": "x.py"}, "id": "c0"}]),
    ToolMessage('{"ok":false,"error":{"code":"not_found","message":""}}', name="read_file", tool_call_id="c0"),
    AIMessage("Done: "),
    HumanMessage("Request 1: "),
]
"""Of which a beginning takes as much room as what it stands for."""


@slow
@settings(max_examples=25)
@example(messages=with_ids(SHORT_TALK), window_tokens=None, reply=GOOD, refused=True, most=16)
@given(
    messages=histories(),
    window_tokens=st.none() | st.integers(1_024, 9_000),
    reply=st.sampled_from([GOOD, DOWN, ModelReply(text="{}"), ModelReply(text="no", input_tokens=1, output_tokens=1)]),
    refused=st.booleans(),
    most=st.integers(16, 9_000),
)
def test_every_sent_request_fits(
    messages: list[AnyMessage], window_tokens: int | None, reply: ModelReply, refused: bool, most: int
) -> None:
    fitted = fit(messages, window_tokens, result=reply, most=most, refused=refused)
    limit = min((tokens for tokens in (window_tokens, fitted.window.tokens) if tokens), default=None)
    assert len(fitted.compactions) <= MOST_ROUNDS
    assert fitted.summary_requests <= 1
    assert fitted.spending.usage.total_calls == fitted.summary_requests + (fitted.prompt is not None)
    assert (fitted.prompt is None) is (fitted.stop is not None)
    if fitted.prompt is None:
        assert fitted.stop is not None
        assert fitted.stop.reason is StopReason.CONTEXT_OVERFLOW
        return
    assert any(message["role"] == "user" and "Request" in message["content"] for message in fitted.prompt.messages)
    if limit is not None:
        assert fitted.tokens + min(most, limit // OUTPUT_SHARE) <= limit
    if refused:
        assert fitted.window != WHOLE
