from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.effects import Answer, Booked, Connect, Effect, Reserve, Send, Sent, Stopped, Wait
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.exchange import (
    LONGEST_ACCOUNT,
    MOST_BYTES,
    CallModelState,
    CallSettings,
    account_of,
    exchange,
    may_wrap_up,
    wrap_up_messages,
)
from mendgraph.nodes.call_model.ledger import WRAP_UP_INPUT_TOKENS, Mending, RunLimits, Spending
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.prompts.estimates import Gauge, estimate_input, estimate_tokens
from mendgraph.nodes.call_model.prompts.prompt import Prompt, build_prompt
from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.records import (
    CallResult,
    ChangeKind,
    Correction,
    EditForm,
    FileChange,
    JsonMap,
    ModelReply,
    Plan,
    PlanStatus,
    PlanStep,
    Profile,
    Protocol,
    ProviderErrorKind,
    ProviderFailure,
    RawCall,
    StopCause,
    StopReason,
    ToolCall,
    ToolResult,
)
from tests.nodes.call_model.spendings import spent

TASK = HumanMessage("Fix calc.py")
PROMPT = build_prompt(Profile(), [], [TASK], (), 0.0)
ESTIMATE = estimate_tokens(PROMPT.size, len(PROMPT.messages))
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3)
CONNECT = Connect(model=None, base_url=None)
GAUGE = Gauge(size=PROMPT.size, messages=len(PROMPT.messages), tokens=70)

Result = ModelReply | ProviderFailure


def failed(kind: ProviderErrorKind, retry_after_s: float | None = None) -> ProviderFailure:
    return ProviderFailure(kind=kind, message=f"{kind.value}!", retry_after_s=retry_after_s)


def state(**fields: Any) -> CallModelState:
    base = CallModelState(messages=[TASK], profile=Profile(), spending=Spending())
    return cast("CallModelState", {**base, **fields})


def settings_of(seed: int | None = None, temperature: float = 0.0, **budget: Any) -> CallSettings:
    """Settings with these fields of the budget; `model` and `base_url` are its one model's."""
    chosen = ModelChoice(model=budget.pop("model", None), base_url=budget.pop("base_url", None))
    return CallSettings(CallBudget(models=(chosen,), jitter=lambda: 1.0, **budget), temperature, seed)


def play(
    results: Sequence[Result], settings: CallSettings, given: CallModelState, unreachable: ProviderFailure | None = None
) -> tuple[list[Effect], dict[str, Any]]:
    """Run the script against an endpoint that answers with `results`, each after two seconds.

    Of the effects, those that reach the endpoint or the clock are given; nothing is booked.
    """
    script, answers, effects = exchange(given, settings, []), iter(results), list[Effect]()
    answer: Answer = None
    while True:
        try:
            effect = script.send(answer)
        except StopIteration as end:
            return effects, end.value
        answer = None
        if isinstance(effect, Connect | Send | Wait):
            effects.append(effect)
        if isinstance(effect, Connect):
            answer = unreachable
        elif isinstance(effect, Send):
            answer = Sent(result=next(answers), seconds=2.0)
        elif isinstance(effect, Reserve):
            answer = Booked(number=0)


def sending(max_output_tokens: int = 2_048, timeout_s: float = 300.0, seed: int | None = None) -> Send:
    return Send(call=Call(prompt=PROMPT, max_output_tokens=max_output_tokens, timeout_s=timeout_s, seed=seed))


def used_up(
    calls: int, tokens_in: int, tokens_out: int, seconds: float, gauge: Gauge | None = None, free: int = 0
) -> Spending:
    """What so many calls come to: `free` ones without tokens, the others without a price.

    `gauge` is what the endpoint counted last, if it did.
    """
    usage = APIUsageStats(calls, tokens_in, tokens_out, calls)
    return Spending(usage=usage, seconds=seconds, unpriced_calls=calls - free, gauge=gauge or Gauge())


def gave_up(kind: ProviderErrorKind, tries: str = "") -> StopCause:
    overflow = kind is ProviderErrorKind.CONTEXT_OVERFLOW
    return StopCause(
        reason=StopReason.CONTEXT_OVERFLOW if overflow else StopReason.PROVIDER_FAILED,
        message=f"{kind.value}!",
        diagnostics=(f"provider error: {kind.value}{tries}",),
    )


def test_a_reply_is_paid_and_counts_a_step() -> None:
    settings = settings_of(seed=7, timeout_s=60.0, model="m", base_url="http://h")
    effects, update = play([REPLY], settings, state(step=4))
    assert effects == [Connect(model="m", base_url="http://h"), sending(timeout_s=60.0, seed=7)]
    assert update == {"reply": REPLY, "spending": used_up(1, 70, 3, 2.0, GAUGE), "step": 5}


@pytest.mark.parametrize(("opened", "asked", "tries"), [(0, 2, 2), (1, 3, 3), (2, 0, 2), (0, 0, 0)])
def test_corrections_that_are_settled_count_as_tries_of_the_turn(opened: int, asked: int, tries: int) -> None:
    given = state(
        corrections=[Correction(reply="x", prompt="y")] * opened,
        spending=Spending(mending=Mending(asked_again=asked)),
        profile=Profile(edit_form=EditForm.BLOCKS),
    )
    [_, call], update = play([REPLY], settings_of(seed=10), given)
    assert isinstance(call, Send)
    assert call.call.prompt == build_prompt(given["profile"], [], [TASK], given["corrections"], 0.0, asked)
    assert (call.call.prompt.failed_tries, call.call.seed) == (tries, 10 + tries)
    gauge = Gauge(size=call.call.prompt.size, messages=len(call.call.prompt.messages), tokens=70)
    assert update["spending"] == used_up(1, 70, 3, 2.0, gauge).model_copy(
        update={"mending": Mending(asked_again=asked)}
    )


def test_a_preloaded_reply_costs_nothing() -> None:
    ready = ModelReply(text="tool: x", preloaded=True)
    assert play([], settings_of(), state(preload=ready)) == ([], {"reply": ready, "preload": None, "step": 1})


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"api": APILimits(max_calls_per_session=0)}, StopReason.MAX_CALLS_PER_SESSION),
        ({"api": APILimits(max_input_tokens_per_session=ESTIMATE - 1)}, StopReason.MAX_INPUT_TOKENS),
        ({"api": APILimits(max_output_tokens_per_session=15)}, StopReason.MAX_OUTPUT_TOKENS),
    ],
)
def test_a_call_that_does_not_fit_is_not_even_connected(limits: dict[str, Any], reason: StopReason) -> None:
    effects, update = play([], settings_of(limits=RunLimits(**limits)), state())
    assert effects == []
    assert (update["reply"], update["spending"], update["stop"].reason) == (None, Spending(), reason)
    assert "step" not in update


class Ends:
    """Answers effects with `results`, until the effect of this number (from 0), which a stop ends."""

    def __init__(self, stop_at: int, stopped: Stopped, results: Sequence[Result]) -> None:
        self.effects: list[Effect] = []
        self.stop_at, self.stopped, self.results = stop_at, stopped, iter(results)

    def play(self, given: CallModelState | None = None, settings: CallSettings | None = None) -> dict[str, Any]:
        script = exchange(given or state(step=4), settings or settings_of(), [])
        answer: Sent | Stopped | None = None
        while True:
            try:
                effect = script.send(answer)
            except StopIteration as end:
                return dict(end.value)
            answer = None
            if not isinstance(effect, Connect | Send | Wait):
                continue
            self.effects.append(effect)
            answer = Sent(result=next(self.results), seconds=2.0) if isinstance(effect, Send) else None
            if len(self.effects) > self.stop_at:
                answer = self.stopped


DROPPED = Stopped(reason="by Ctrl-C", sent=True, seconds=1.5, received_characters=30)


def test_a_request_that_can_be_made_no_smaller_is_not_sent_twice() -> None:
    effects, update = play([failed(ProviderErrorKind.CONTEXT_OVERFLOW)], settings_of(), state())
    assert effects == [CONNECT, sending()]
    assert (update["stop"].reason, update["stop"].diagnostics) == (StopReason.CONTEXT_OVERFLOW, ("context_overflow!",))
    assert "nothing more can be left out" in update["stop"].message


@pytest.mark.parametrize(
    ("kind", "max_seconds", "is_clock"),
    [
        (ProviderErrorKind.TIMEOUT, 2.0, True),
        (ProviderErrorKind.TIMEOUT, 2.5, False),
        (ProviderErrorKind.CONNECTION, 2.0, False),
    ],
)
def test_a_timeout_at_the_end_of_the_turn_is_the_turns(
    kind: ProviderErrorKind, max_seconds: float, is_clock: bool
) -> None:
    effects, update = play([failed(kind)], settings_of(limits=RunLimits(max_seconds=max_seconds)), state())
    clock = StopCause(reason=StopReason.WALL_CLOCK, message="Limit 'max_seconds' exceeded: 2.0/2.0")
    assert effects == [CONNECT, sending(timeout_s=max_seconds)]
    assert update["stop"] == (clock if is_clock else gave_up(kind))


def test_an_account_is_what_comes_after_the_thoughts() -> None:
    limits = RunLimits(api=APILimits(99, 3, 99_000, 99_000), wrap_up=True)
    reply = ModelReply(text="<think>\nI must not say that.\n</think>\nOne line is mended.")
    spending = Spending(usage=APIUsageStats(2, 0, 0, 2))
    _, update = play([reply], settings_of(limits=limits), state(spending=spending))
    assert update["stop"].account == "One line is mended."


def test_who_stops_the_account_stops_the_run() -> None:
    limits = RunLimits(api=APILimits(99, 3, 99_000, 99_000), wrap_up=True)
    given = state(spending=Spending(usage=APIUsageStats(2, 0, 0, 2)))
    update = Ends(1, DROPPED, [REPLY]).play(given, settings_of(limits=limits))
    spending = update.pop("spending")
    cause = StopCause(reason=StopReason.CANCELLED, message="The run was stopped by Ctrl-C.")
    assert update == {"reply": None, "stop": cause}
    assert (spending.usage.total_calls, spending.usage.calls_in_current_turn, spending.seconds) == (3, 3, 1.5)


CAUSE = StopCause(reason=StopReason.MAX_CALLS_PER_TURN, message="Limit 'max_calls_per_turn' exceeded: 9/9")


def step(protocol: Protocol, tool: str, arguments: JsonMap, said: str = "") -> list[AnyMessage]:
    """One reply with a call, and its result."""
    call = ToolCall(call_id="c", tool=tool, arguments=arguments, raw_arguments=as_json(arguments))
    text = said if protocol is Protocol.NATIVE else f"{said}\ntool: {tool}({as_json(arguments)})".strip()
    result = CallResult(call_id="c", tool=tool, result=ToolResult.success())
    return settle_exchange(ModelReply(text=text), [call], [result], protocol)


def as_json(arguments: JsonMap) -> str:
    return "{" + ",".join(f'"{name}":"{value}"' for name, value in arguments.items()) + "}"


def change(path: str) -> FileChange:
    return FileChange(path=path, kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")


def asked(history: list[AnyMessage], plan: Plan | None = None, changes: tuple[FileChange, ...] = ()) -> str:
    """What the model is told."""
    system, user = wrap_up_messages(history, CAUSE, plan or Plan(), changes)
    assert (system["role"], user["role"]) == ("system", "user")
    return str(user["content"])


# --- What is asked


@pytest.mark.parametrize(
    ("protocol", "shown"),
    [(Protocol.NATIVE, "- read_file a.py\n- edit_file a.py"), (Protocol.TEXT, '- edit_file({"path":"a.py"})')],
)
def test_the_model_is_shown_the_facts_of_the_turn(protocol: Protocol, shown: str) -> None:
    history: list[AnyMessage] = [
        HumanMessage("An older task."),
        *step(protocol, "delete_file", {"path": "old.py"}),
        AIMessage("Deleted."),
        HumanMessage("Mend calc.py."),
        *step(protocol, "read_file", {"path": "a.py"}, "I look."),
        *step(protocol, "read_file", {"path": "a.py"}),
        *step(protocol, "edit_file", {"path": "a.py"}, "Now I mend it."),
    ]
    plan = Plan(steps=(PlanStep(title="look", status=PlanStatus.DONE), PlanStep(title="mend")))
    text = asked(history, plan, (change("b.py"), change("a.py"), change("b.py")))
    assert text.startswith(f"Task:\nMend calc.py.\n\nLimit: {CAUSE.message}\n\n")
    assert "Plan:\n- look (done)\n- mend (pending)\n\nChanged files: b.py, a.py\n\n" in text
    assert shown in text
    assert text.count("read_file") == 1
    assert "Now I mend it." in text.rpartition("What you said last:\n")[2]
    assert "old" not in text


def test_of_many_calls_the_last_are_told() -> None:
    history: list[AnyMessage] = [HumanMessage("Do.")]
    for number in range(300):
        history += step(Protocol.NATIVE, "read_file", {"path": f"file_{number}.py"})
    text = asked(history)
    assert text.endswith("- read_file file_299.py")
    assert "file_0.py" not in text


TEXTS = st.text(max_size=40).map(lambda text: text * 200) | st.sampled_from(["é" * 9_000, "🙂" * 9_000, "\ud800" * 9])


@given(
    task=TEXTS,
    said=TEXTS,
    path=st.text(min_size=1, max_size=300),
    title=st.text(min_size=1, max_size=200),
    many=st.integers(0, 30),
)
def test_what_is_asked_fits_what_is_held_back(task: str, said: str, path: str, title: str, many: int) -> None:
    history: list[AnyMessage] = [HumanMessage(task)]
    for _ in range(many):
        history += step(Protocol.NATIVE, "read_file", {"path": path}, said)
    plan = Plan(steps=(PlanStep(title=title),) * many)
    messages = wrap_up_messages(history, CAUSE, plan, [change(f"{path}{number}") for number in range(many)])
    assert sum(len(message["content"].encode()) for message in messages) <= MOST_BYTES
    told = messages[1]["content"]
    assert all(part in told for part in ("Task:\n", "\n\nLimit: ", "\n\nChanged files: "))
    assert all((part in told) is bool(many) for part in ("\n\nPlan:\n", "\n\nCalls, "))
    prompt = Prompt(messages=messages)
    assert estimate_input(prompt.size, 2, Gauge()) <= WRAP_UP_INPUT_TOKENS
    dense = Gauge(size=MOST_BYTES, messages=2, tokens=int(MOST_BYTES / 2.65))
    assert estimate_input(prompt.size, 2, dense) <= WRAP_UP_INPUT_TOKENS


# --- What is answered


@pytest.mark.parametrize(
    ("reply", "account"),
    [
        (ModelReply(text="  I mended add.\nThe tests are left.\n"), "I mended add.\nThe tests are left."),
        (ModelReply(text=""), ""),
        (ModelReply(text=" \n "), ""),
        (ModelReply(text="Done.", calls=(RawCall(call_id="c", tool="f", arguments="{}"),)), ""),
        (ModelReply(text='Not yet.\ntool: read_file({"path":"a"})'), ""),
        (ModelReply(text="x" * LONGEST_ACCOUNT), "x" * LONGEST_ACCOUNT),
        (ModelReply(text="x" * 9_000), f"{'x' * (LONGEST_ACCOUNT - 4)} ..."),
        (ModelReply(text="é" * 9_000), f"{'é' * ((LONGEST_ACCOUNT - 4) // 2)} ..."),
    ],
)
def test_an_account_is_plain_text_of_bounded_length(reply: ModelReply, account: str) -> None:
    assert account_of(reply) == account
    assert len(account) <= LONGEST_ACCOUNT


# --- When it may be made


def cause(reason: StopReason) -> StopCause:
    return StopCause(reason=reason, message="because")


@pytest.mark.parametrize(
    ("limits", "spending", "allowed"),
    [
        ({"max_steps": 3}, spent(3, steps=3), True),
        ({"max_steps": 3, "wrap_up": False}, spent(3, steps=3), False),
        ({"max_steps": 3, "api": APILimits(max_calls_per_turn=3)}, spent(3, steps=3), False),
        ({"max_steps": 3, "max_seconds": 5.0}, spent(3, steps=3, seconds=5.0), False),
    ],
)
def test_a_limit_on_steps_leaves_one_call_where_no_other_limit_is_reached(
    limits: dict[str, Any], spending: Any, allowed: bool
) -> None:
    chosen = RunLimits(**{"wrap_up": True, **limits})
    assert may_wrap_up(spending, chosen, cause(StopReason.MAX_STEPS)) is allowed
