import pytest

from mendgraph.nodes.heal.corrective_prompt import (
    DEFAULT_SELF_HEALING_CONFIG,
    Manner,
    SelfHealingConfig,
    generate_corrective_prompt,
    manner_of,
)
from mendgraph.nodes.records import EditForm, ExtractionError, ExtractionErrorType, Profile, Protocol

E = ExtractionErrorType
SPEC_KINDS = list(E)[:6]

TEXT_REMINDER = """
Reminder of correct format:
  tool: TOOL_NAME({"param": "value"})

Requirements:
  - Use compact single-line JSON
  - Use double quotes for strings
  - Ensure parentheses are balanced
"""
NATIVE_REMINDER = """
Requirements:
  - Call one of the given tools as a function call, do not write the call as text
  - Send the arguments as one JSON object with every required parameter
  - Use double quotes for strings
"""
OPENING = "I could not parse your tool invocation. Please fix the following issues:"
CLOSING = "\nPlease retry your response with the correct format."


def error(kind: ExtractionErrorType, details: str = "details") -> ExtractionError:
    return ExtractionError(kind, 1, "line", details)


def prompt_for(*errors: ExtractionError, config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG) -> str:
    return generate_corrective_prompt(errors, "the reply", config)


def test_the_defaults_are_the_specs() -> None:
    assert SelfHealingConfig() == SelfHealingConfig(3, True, True, 2, 1) == DEFAULT_SELF_HEALING_CONFIG
    assert SelfHealingConfig(5, False, False) == SelfHealingConfig(
        max_retries=5, include_error_details=False, include_format_reminder=False
    )


@pytest.mark.parametrize("kind", SPEC_KINDS)
def test_the_specs_six_kinds_have_the_specs_text(kind: ExtractionErrorType) -> None:
    assert prompt_for(error(kind)) == f"{OPENING}\n- {kind.name}: details\n{TEXT_REMINDER}{CLOSING}"


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (E.INVALID_ARGUMENTS, "Repeat the call with arguments that fit the tool's parameters."),
        (E.INVALID_ANSWER, "Give the final answer again, with a value that fits the asked schema."),
        (E.OVERSIZED_ARGUMENTS, "Send less in one call: make several smaller edits."),
        (E.EMPTY_REPLY, "Reply with a tool call or with an answer."),
        (E.THOUGHT_ONLY_REPLY, "You only thought. Now answer, or make the tool call."),
        (
            E.TRUNCATED_REPLY,
            "The reply was cut at the token limit and nothing ran. Send a shorter reply or smaller edits.",
        ),
        (E.REFUSED_REPLY, "Reply to the task as it is, or say in the answer what cannot be done."),
        (E.FILTERED_REPLY, "Reply in other words."),
    ],
)
def test_our_own_kinds_say_what_to_do(kind: ExtractionErrorType, remedy: str) -> None:
    assert f"- {kind.name}: details {remedy}\n" in prompt_for(error(kind))


def test_every_kind_of_ours_has_a_remedy() -> None:
    for kind in set(list(E)[6:]) - {E.UNFOUNDED_CLAIM}:
        assert f"- {kind.name}: details\n" not in prompt_for(error(kind))


def test_details_and_reminder_can_be_left_out() -> None:
    errors = [error(E.EMPTY_TOOL_NAME)]
    assert prompt_for(*errors, config=SelfHealingConfig(include_error_details=False)) == (
        f"{OPENING}\n{TEXT_REMINDER}{CLOSING}"
    )
    assert prompt_for(*errors, config=SelfHealingConfig(include_format_reminder=False)) == (
        f"{OPENING}\n- EMPTY_TOOL_NAME: details\n{CLOSING}"
    )


def test_as_many_errors_as_are_shown_leave_none_to_count() -> None:
    lines = prompt_for(*[error(E.EMPTY_TOOL_NAME, "y")] * 5).split("\n")
    assert [line for line in lines if line.startswith("- ")] == ["- EMPTY_TOOL_NAME: y"] * 5


def test_long_details_and_many_errors_are_bounded() -> None:
    lines = prompt_for(error(E.EMPTY_TOOL_NAME, "x" * 501), *[error(E.EMPTY_TOOL_NAME, "y" * 500)] * 7).split("\n")
    assert lines[1:8] == [
        f"- EMPTY_TOOL_NAME: {'x' * 497}...",
        *[f"- EMPTY_TOOL_NAME: {'y' * 500}"] * 4,
        "- and 3 more",
        "",
    ]


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_each_protocol_is_reminded_of_its_own_form(protocol: Manner) -> None:
    errors = [error(E.INVALID_JSON_SYNTAX)]
    prompt = generate_corrective_prompt(errors, "", DEFAULT_SELF_HEALING_CONFIG, protocol=protocol)
    opening = OPENING if protocol == "text" else "I could not use your tool call. Please fix the following issues:"
    reminder = TEXT_REMINDER if protocol == "text" else NATIVE_REMINDER
    assert prompt == f"{opening}\n- INVALID_JSON_SYNTAX: details\n{reminder}{CLOSING}"
    assert ("tool:" in prompt) == (protocol == "text")


# --- In the block form


def in_blocks(*errors: ExtractionError, config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG) -> str:
    return generate_corrective_prompt(errors, "the reply", config, protocol="blocks")


def test_in_the_block_form_only_what_was_wrong_is_said() -> None:
    assert in_blocks(error(E.UNKNOWN_TOOL_NAME, "There is no tool 'x'.")) == "There is no tool 'x'."
    assert in_blocks(error(E.EMPTY_REPLY, "The reply was empty."), error(E.INVALID_JSON_SYNTAX, "No JSON.")) == (
        "The reply was empty.\nNo JSON."
    )


@pytest.mark.parametrize("config", [DEFAULT_SELF_HEALING_CONFIG, SelfHealingConfig(3, False, False)])
def test_in_the_block_form_nothing_is_reminded_of_and_nothing_left_out(config: SelfHealingConfig) -> None:
    for kind in set(E) - {E.UNFOUNDED_CLAIM}:
        said = in_blocks(error(kind), config=config)
        assert (said.startswith("details"), said.count("\n")) == (True, 0)
        assert not {kind.name, "Reminder", "Requirements", "tool:", "retry"} & set(said.replace(":", ": ").split())


def test_in_the_block_form_long_details_and_many_errors_are_bounded() -> None:
    errors = [error(E.EMPTY_TOOL_NAME, "x" * 501), *[error(E.EMPTY_TOOL_NAME, "y")] * 7]
    assert in_blocks(*errors) == "\n".join([f"{'x' * 497}...", *["y"] * 4])


@pytest.mark.parametrize(
    ("profile", "lines", "manner"),
    [
        (Profile(protocol=Protocol.TEXT), ["calc.py"], "text"),
        (Profile(protocol=Protocol.TEXT, edit_form=EditForm.PATCH), ["tool: x"], "text"),
        (Profile(protocol=Protocol.NATIVE), ["tool: x"], "native"),
        (Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS), ["calc.py"], "blocks"),
        (Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS), [], "blocks"),
        (Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS), ["a tool: x"], "blocks"),
        (Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS), ["calc.py", "  tool: x"], "text"),
        (Profile(protocol=Protocol.NATIVE, edit_form=EditForm.BLOCKS), ["tool: x"], "blocks"),
    ],
)
def test_who_is_asked_for_blocks_is_spoken_to_of_lines_only_where_one_went_wrong(
    profile: Profile, lines: list[str], manner: Manner
) -> None:
    errors = [ExtractionError(E.TRUNCATED_REPLY, 1, line, "Cut.") for line in lines]
    assert manner_of(profile, errors) == manner


# --- An answer that is not borne out


@pytest.mark.parametrize("protocol", ["text", "native", "blocks"])
def test_an_answer_that_is_not_borne_out_is_met_with_the_facts_alone(protocol: Manner) -> None:
    errors = [
        error(E.EMPTY_TOOL_NAME),
        error(E.UNFOUNDED_CLAIM, "No file was changed. Change it."),
        error(E.EMPTY_REPLY),
    ]
    for config in (DEFAULT_SELF_HEALING_CONFIG, SelfHealingConfig(3, False, False)):
        prompt = generate_corrective_prompt(errors, "I fixed it.", config, protocol=protocol)
        assert prompt == "No file was changed. Change it."
