from typing import Any

from mendgraph.nodes.heal.corrective_prompt import (
    HealingAttempt,
    ReminderStyle,
    SelfHealingConfig,
    generate_corrective_prompt,
)
from mendgraph.nodes.heal.node import HealState, heal
from mendgraph.nodes.records import (
    CallError,
    Correction,
    ExtractionError,
    ExtractionErrorType as Kind,
    ModelReply,
    Profile,
    Protocol,
    RawCall,
    Reading,
    StopReason,
    ToolCall,
)
from tests.row_tables import rows

CONFIG = SelfHealingConfig(max_retries=2, max_schema_repairs=1)
DIALECT = '{"name": "read_file", "arguments": {"path": "a"}}'
CALL = ToolCall(call_id="call_3_0", tool="read_file", arguments={"path": "a"}, raw_arguments='{"path": "a"}')
BROKEN = CallError(
    call_id="call_3_1",
    tool="read_file",
    raw_arguments="{}",
    error=ExtractionError(Kind.INVALID_ARGUMENTS, 0, "", "bad"),
)


def error(kind: Kind) -> ExtractionError:
    return ExtractionError(kind, 1, "tool: x", "It is not right.")


def correction(schema_repair: bool = False) -> Correction:
    return Correction(reply="before", prompt="Fix it.", schema_repair=schema_repair)


def healed(
    kind: Kind,
    reply: ModelReply | None = None,
    items: list[ToolCall | CallError] | None = None,
    protocol: Protocol = Protocol.TEXT,
    **state: Any,
) -> dict[str, Any]:
    """The node's update."""
    full = HealState(reply=reply, items=items or [], errors=[error(kind)], profile=Profile(protocol=protocol))
    return heal({**full, **state}, CONFIG)  # type: ignore[typeddict-item] # a table of partial states


@rows(*Protocol)
def test_call_read_in_another_format_runs(protocol: Protocol) -> None:
    reply = ModelReply(text="I look.", input_tokens=7)
    update = healed(
        Kind.MISSING_TOOL_PREFIX, reply, [CALL, BROKEN], protocol, corrections=[correction()], healing_attempts=[]
    )
    assert update == {
        "reading": Reading.CALLS,
        "items": [CALL, BROKEN],
        "errors": [],
        "corrections": [],
        "verdicts": [],
        "results": [],
    }


@rows([], [BROKEN])
def test_unreadable_call_gets_a_correction(items: list[ToolCall | CallError]) -> None:
    update = healed(Kind.MISSING_TOOL_PREFIX, ModelReply(text=DIALECT), items)
    prompt = generate_corrective_prompt([error(Kind.MISSING_TOOL_PREFIX)], DIALECT, CONFIG, protocol="text")
    assert update == {
        "corrections": [Correction(reply=DIALECT, prompt=prompt)],
        "healing_attempts": [HealingAttempt(0, DIALECT, [error(Kind.MISSING_TOOL_PREFIX)], prompt)],
    }


def test_correction_is_appended_to_earlier_ones() -> None:
    first = HealingAttempt(0, "before", [error(Kind.EMPTY_REPLY)], "Fix it.")
    calls = (RawCall(call_id="x", tool="f", arguments="{"), RawCall(call_id="y", tool="g", arguments="{}"))
    update = healed(
        Kind.INVALID_ARGUMENTS,
        ModelReply(calls=calls),
        protocol=Protocol.NATIVE,
        corrections=[correction()],
        healing_attempts=[first],
    )
    prompt = generate_corrective_prompt([error(Kind.INVALID_ARGUMENTS)], "", CONFIG, protocol="native")
    assert update == {
        "corrections": [correction(), Correction(reply="f({)\ng({})", prompt=prompt, schema_repair=True)],
        "healing_attempts": [first, HealingAttempt(1, "", [error(Kind.INVALID_ARGUMENTS)], prompt)],
    }


@rows(
    (Protocol.TEXT, False, "calc.py", "text"),
    (Protocol.NATIVE, False, "tool: x", "native"),
    (Protocol.TEXT, True, "  tool: x", "text"),
    (Protocol.TEXT, True, "calc.py", "brief"),
    (Protocol.NATIVE, True, "tool: x", "brief"),
)
def test_reminder_mentions_tool_lines_only_to_models_that_write_them(
    protocol: Protocol, brief: bool, line: str, style: ReminderStyle
) -> None:
    errors = [ExtractionError(Kind.TRUNCATED_REPLY, 1, line, "Cut.")]
    profile = Profile(protocol=protocol)
    state = HealState(reply=ModelReply(text="x"), items=[], errors=errors, profile=profile)
    update = heal(state, CONFIG, brief=brief)
    assert update["corrections"][0].prompt == generate_corrective_prompt(errors, "x", CONFIG, protocol=style)


def test_unfounded_answer_is_corrected_once_then_ends_the_run() -> None:
    facts = ExtractionError(Kind.UNFOUNDED_CLAIM, 0, "Fixed.", "No file was changed.")
    update = healed(Kind.UNFOUNDED_CLAIM, ModelReply(text="Fixed."), errors=[facts], corrections=[correction()])
    first = HealingAttempt(0, "Fixed.", [facts], "No file was changed.")
    met = Correction(reply="Fixed.", prompt="No file was changed.", claim=True)
    assert update == {"corrections": [correction(), met], "healing_attempts": [first]}
    again = healed(Kind.UNFOUNDED_CLAIM, ModelReply(text="Fixed."), errors=[facts], healing_attempts=[first])
    assert list(again) == ["stop"]
    assert again["stop"].reason is StopReason.NOTHING_CHANGED


@rows(
    (Protocol.NATIVE, True, Kind.MISSING_TOOL_PREFIX, True),
    (Protocol.NATIVE, False, Kind.MISSING_TOOL_PREFIX, False),
    (Protocol.TEXT, True, Kind.MISSING_TOOL_PREFIX, False),
    (Protocol.NATIVE, True, Kind.TRUNCATED_REPLY, False),
)
def test_native_turn_whose_calls_stay_unreadable_text_switches_to_the_text_protocol_if_it_may(
    protocol: Protocol, may_switch: bool, kind: Kind, switches: bool
) -> None:
    attempts = [HealingAttempt(number, DIALECT, [error(kind)], "Fix it.") for number in range(CONFIG.max_retries)]
    state = HealState(
        reply=ModelReply(text=DIALECT),
        items=[],
        errors=[error(kind)],
        profile=Profile(protocol=protocol),
        healing_attempts=attempts,
        corrections=[correction()] * CONFIG.max_retries,
    )
    update = heal(state, CONFIG, may_switch=may_switch)
    if switches:
        assert update == {"profile": Profile(protocol=Protocol.TEXT), "corrections": []}
    else:
        assert update["stop"].reason is StopReason.HEALING_EXHAUSTED
