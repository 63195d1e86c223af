from mendgraph.nodes.heal.corrective_prompt import (
    DEFAULT_SELF_HEALING_CONFIG,
    ReminderStyle,
    SelfHealingConfig,
    generate_corrective_prompt,
)
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType
from tests.row_tables import rows

E = ExtractionErrorType

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


def prompt_for(*errors: ExtractionError) -> str:
    return generate_corrective_prompt(errors, "the reply", DEFAULT_SELF_HEALING_CONFIG)


def test_defaults_are_those_of_the_spec() -> None:
    assert SelfHealingConfig() == SelfHealingConfig(3, True, True, 2, 1) == DEFAULT_SELF_HEALING_CONFIG
    assert SelfHealingConfig(5, False, False) == SelfHealingConfig(
        max_retries=5, include_error_details=False, include_format_reminder=False
    )


def test_long_details_and_many_errors_are_bounded() -> None:
    lines = prompt_for(error(E.EMPTY_TOOL_NAME, "x" * 501), *[error(E.EMPTY_TOOL_NAME, "y" * 500)] * 7).split("\n")
    assert lines[1:8] == [
        f"- EMPTY_TOOL_NAME: {'x' * 497}...",
        *[f"- EMPTY_TOOL_NAME: {'y' * 500}"] * 4,
        "- and 3 more",
        "",
    ]
    assert "more" not in prompt_for(*[error(E.EMPTY_TOOL_NAME)] * 5)


def test_remedy_follows_its_error() -> None:
    assert "\n- FILTERED_REPLY: details Reply in other words.\n" in prompt_for(error(E.FILTERED_REPLY))


@rows("text", "native")
def test_reminder_describes_the_protocol_in_use(protocol: ReminderStyle) -> None:
    errors = [error(E.INVALID_JSON_SYNTAX)]
    prompt = generate_corrective_prompt(errors, "", DEFAULT_SELF_HEALING_CONFIG, protocol=protocol)
    opening = OPENING if protocol == "text" else "I could not use your tool call. Please fix the following issues:"
    reminder = TEXT_REMINDER if protocol == "text" else NATIVE_REMINDER
    assert prompt == f"{opening}\n- INVALID_JSON_SYNTAX: details\n{reminder}{CLOSING}"
    assert ("tool:" in prompt) == (protocol == "text")


def in_blocks(*errors: ExtractionError, config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG) -> str:
    return generate_corrective_prompt(errors, "the reply", config, protocol="brief")


def test_block_form_prompt_contains_only_the_errors() -> None:
    errors = (error(E.EMPTY_REPLY, "The reply was empty."), error(E.INVALID_JSON_SYNTAX, "No JSON."))
    assert in_blocks(*errors) == "The reply was empty.\nNo JSON."
    assert in_blocks(*errors, config=SelfHealingConfig(include_error_details=False)) == CLOSING.strip()
