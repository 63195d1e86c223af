from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from nodes.call_model.budget import APILimits
from nodes.call_model.estimates import Gauge, estimate_input
from nodes.call_model.exchange import (
    LONGEST_ACCOUNT,
    MOST_BYTES,
    WRAPPED_UP,
    account_of,
    may_wrap_up,
    wrap_up_messages,
)
from nodes.call_model.ledger import WRAP_UP_INPUT_TOKENS, RunLimits, exhausted_limit
from nodes.call_model.prompt import Prompt
from nodes.language.history import settle_exchange
from nodes.records import (
    CallResult,
    ChangeKind,
    FileChange,
    JsonMap,
    ModelReply,
    Plan,
    PlanStatus,
    PlanStep,
    Protocol,
    RawCall,
    StopCause,
    StopReason,
    ToolCall,
    ToolResult,
)
from tests.nodes.call_model.spendings import LIMITS, SPENDINGS, spent

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


def test_a_turn_in_which_nothing_was_done_has_little_to_tell() -> None:
    assert asked([HumanMessage("Mend calc.py.")]) == (
        f"Task:\nMend calc.py.\n\nLimit: {CAUSE.message}\n\nChanged files: none"
    )


def test_long_arguments_are_not_told() -> None:
    arguments = {"path": "a.py", "content": "x" * 81, "mode": "w" * 80}
    assert f"- write_file a.py {'w' * 80}" in asked(
        [HumanMessage("Do."), *step(Protocol.NATIVE, "write_file", arguments)]
    )


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


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason is not StopReason.MAX_STEPS])
def test_no_other_limit_that_a_router_sees_leaves_any(reason: StopReason) -> None:
    assert not may_wrap_up(spent(3, steps=3), RunLimits(max_steps=3, wrap_up=True), cause(reason))


@given(SPENDINGS, LIMITS)
def test_the_call_that_may_wrap_up_passes_no_limit_but_that_on_steps(spending: Any, limits: RunLimits) -> None:
    found = exhausted_limit(spending, limits)
    if found is not None and may_wrap_up(spending, limits, found):
        assert found.reason is StopReason.MAX_STEPS
        assert exhausted_limit(spending, limits.model_copy(update={"max_steps": None})) is None


def test_only_limits_of_which_something_is_held_back_are_wrapped_up() -> None:
    assert {StopReason.WALL_CLOCK, StopReason.DAY_LIMIT, StopReason.CANCELLED}.isdisjoint(WRAPPED_UP)
    assert {reason for reason in StopReason if reason.value.startswith("max_")} == WRAPPED_UP
