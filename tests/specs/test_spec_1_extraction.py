"""Document 1, sections 1 and 2: our extraction and healing beside the document's own code."""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.heal.healing import SelfHealingConfig, attempt_extraction_with_healing, generate_corrective_prompt
from mendgraph.nodes.language.text_protocol import (
    extract_tool_invocations_with_errors,
    format_extraction_errors,
    parse_tool_line,
)
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, JsonMap, Protocol, ToolInvocation
from tests.doubles.replies import Say
from tests.specs import document_1
from tests.specs.same_values import plain
from tests.specs.watched_runs import watch

KNOWN = frozenset({"read_file", "edit_file"})
QUOTED_CHARS = 200
"""Ours quotes so much of a line in an error's details; the document quotes it whole."""

Conversation = list[dict[str, Any]]

pieces = st.sampled_from(
    [
        *("tool:", "tool: read_file(", "tool: edit_file (", "tool: ({})", "tool: xyzzy({})", "tool: read_fil({})"),
        *(" ", "\t", "(", ")", "{", "}", "[", "]", '"path"', ":", '"a.py"', ",", "1", "null", "NaN", "x", "'", "\\"),
        *("```", "~~~", "```python", "Now:", "  ", '"a\tb"', '{"path": "a\tb"}', '{"path": "a",}'),
    ]
)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)
json_values = st.none() | st.booleans() | st.integers(-9, 9) | texts | st.lists(texts, max_size=2)
calls = st.builds(
    lambda name, arguments, after: f"tool: {name}({json.dumps(arguments, ensure_ascii=False)}){after}",
    st.sampled_from(sorted(KNOWN)),
    st.dictionaries(texts, json_values, max_size=3) | json_values,
    st.sampled_from(["", " ", ")", " and so on"]),
)
lines = st.lists(pieces, max_size=9).map("".join) | calls


# --- 1.2 parse_tool_line, extract_tool_invocations_with_errors


def difference(line: str, ours: ToolInvocation | ExtractionError, documents: document_1.ExtractionResult) -> str:
    """How ours reads the line otherwise than the document, which is "" where it does not."""
    if plain(ours) == plain(documents):
        return ""
    raw = line.strip().partition("(")[2].removesuffix(")")
    if isinstance(documents, document_1.ToolInvocation):
        is_error = isinstance(ours, ExtractionError) and ours.error_type is ExtractionErrorType.INVALID_JSON_SYNTAX
        return "stricter JSON" if is_error and not is_strict_object(raw) else "a call is lost"
    if isinstance(ours, ToolInvocation):
        return "an error is lost"
    if plain(ours._replace(details="")) != plain(documents._replace(details="")):
        return "another error"
    if ours.error_type is ExtractionErrorType.INVALID_JSON_SYNTAX and "JSON parse error" not in ours.details:
        return "stricter JSON"
    return "a long line is quoted in part" if len(line) > QUOTED_CHARS else "other details"


ON_PURPOSE = {"", "stricter JSON", "a long line is quoted in part"}


def is_strict_object(raw: str) -> bool:
    """Whether this is one JSON object without equal keys and NaN."""

    def unequal(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if max(Counter(key for key, _ in pairs).values(), default=1) > 1:
            raise ValueError
        return dict(pairs)

    def refuse(_: str) -> None:
        raise ValueError

    try:
        return isinstance(json.loads(raw, object_pairs_hook=unequal, parse_constant=refuse), dict)
    except ValueError:
        return False


@given(lines, st.integers(1, 99))
def test_line_is_read_as_the_document_reads_it(line: str, number: int) -> None:
    documents = document_1.parse_tool_line(line, number, KNOWN)
    assert difference(line, parse_tool_line(line, number, KNOWN), documents) in ON_PURPOSE


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('tool: read_file({"a": 1, "a": 2})', "stricter JSON"),
        ('tool: read_file({"a": NaN})', "stricter JSON"),
        ("tool: read_file([1])", "stricter JSON"),
        ('tool: read_file("a.py")', "stricter JSON"),
        ("tool: read_file(null)", "stricter JSON"),
        ("tool: read_file(" + "x" * 300, "a long line is quoted in part"),
    ],
)
def test_what_is_read_otherwise_on_purpose(line: str, found: str) -> None:
    documents = document_1.parse_tool_line(line, 1, KNOWN)
    assert difference(line, parse_tool_line(line, 1, KNOWN), documents) == found


@pytest.mark.parametrize(
    "line",
    [
        'tool: read_file({"a": 1,})',
        'tool: read_file({"a": "x\ty"})',
        'tool: read_file({"a": "x\x0by"})',
        'tool: read_file({"a": "x\u00a0y"})',
    ],
    ids=["trailing comma", "raw tab", "raw control character", "raw space"],
)
def test_line_that_a_run_reads_leniently_is_what_the_document_says(line: str) -> None:
    documents = document_1.parse_tool_line(line, 1, KNOWN)
    assert plain(parse_tool_line(line, 1, KNOWN)) == plain(documents)
    ours = extract_tool_invocations_with_errors(line, KNOWN)
    assert plain(ours) == plain(document_1.extract_tool_invocations_with_errors(line, KNOWN))


ONE_LINE_EACH = [
    ("read_file({})", "MISSING_TOOL_PREFIX"),
    ("tool: read_file", "MISSING_OPENING_PAREN"),
    ("tool: (", "EMPTY_TOOL_NAME"),
    ("tool: xyzzy(", "UNKNOWN_TOOL_NAME"),
    ("tool: read_file(", "MISSING_CLOSING_PAREN"),
    ("tool: read_file(x)", "INVALID_JSON_SYNTAX"),
]


@pytest.mark.parametrize(("line", "kind"), ONE_LINE_EACH)
def test_each_kind_of_error_has_the_documents_text(line: str, kind: str) -> None:
    """In the order of the checks: each line has the faults of all checks after its own as well."""
    ours = parse_tool_line(line, 7, KNOWN)
    assert isinstance(ours, ExtractionError)
    assert ours.error_type.name == kind
    assert plain(ours) == plain(document_1.parse_tool_line(line, 7, KNOWN))


@given(st.lists(lines, max_size=8).map("\n".join))
def test_reply_is_read_as_the_document_reads_it(reply: str) -> None:
    """Line by line, each `tool:` line one call or one error with details, in a fence too: none fails silently.

    Stricter: what goes on over the lines after a broken call, in its arguments, is no call.
    """
    invocations, errors = extract_tool_invocations_with_errors(reply, KNOWN)
    read: dict[int, ToolInvocation | ExtractionError] = {each.line_number: each for each in invocations}
    read |= {each.line_number: each for each in errors}
    calls, mistakes = document_1.extract_tool_invocations_with_errors(reply, KNOWN)
    expected: dict[int, document_1.ExtractionResult] = {each.line_number: each for each in calls}
    expected |= {each.line_number: each for each in mistakes}
    before = {number: max((at for at in read if at < number), default=0) for number in expected.keys() - read.keys()}
    assert all(isinstance(read.get(at), ExtractionError) for at in before.values())
    assert read.keys() <= expected.keys()
    numbered = reply.splitlines()
    assert {difference(numbered[at - 1], read[at], expected[at]) for at in read} <= ON_PURPOSE
    assert [each.line_number for each in invocations] == sorted(each.line_number for each in invocations)
    assert [each.line_number for each in errors] == sorted(each.line_number for each in errors)
    assert all(error.details for error in errors)


@pytest.mark.parametrize(
    "reply",
    [
        'First.\ntool: read_file({"path": "a"})\nThen.\n  tool: edit_file({"path": "b"})  ',
        'For example:\n```\ntool: read_file({"path": "a"})\n```\nDone.',
        'tool: read_file({"path": "a"})\n```python\nx = 1\n```',
        'tool: edit_file({"path": "a"})\n```python\nx = 1\n```',
        'tool: read_file({"path":\n"a"})\ntool: read_file({})',
        "tool: xyzzy({})\r\ntool: read_file({})\x0ctool: read_file\u2028tool:",
        "No call at all. I would use tool: read_file({}).",
        "",
    ],
    ids=["prose", "fence", "block", "block of an edit", "two lines", "line ends", "none", "empty"],
)
def test_reply_is_read_line_by_line(reply: str) -> None:
    ours = extract_tool_invocations_with_errors(reply, KNOWN)
    assert plain(ours) == plain(document_1.extract_tool_invocations_with_errors(reply, KNOWN))


def test_what_stands_in_the_text_of_a_broken_call_never_runs() -> None:
    """The document reads its second line as a call of its own: here what was meant as content would run."""
    reply = 'tool: edit_file({"path": "a.md", "new_str": "# How\ntool: edit_file({})\n'
    invocations, errors = extract_tool_invocations_with_errors(reply, KNOWN)
    assert (invocations, [error.line_number for error in errors]) == ([], [1])
    assert len(document_1.extract_tool_invocations_with_errors(reply, KNOWN)[0]) == 1


# --- 1.2 format_extraction_errors, 2.2 generate_corrective_prompt

kinds = st.sampled_from(document_1.ExtractionErrorType)
contents = st.builds(lambda text, times: text * times, texts, st.integers(1, 30))
errors_of_the_document = st.lists(
    st.builds(document_1.ExtractionError, kinds, st.integers(0, 99), contents, texts), max_size=5
)


def ours_of(errors: list[document_1.ExtractionError]) -> list[ExtractionError]:
    return [ExtractionError(ExtractionErrorType[error.error_type.name], *error[1:]) for error in errors]


@given(errors_of_the_document)
def test_errors_are_shown_as_the_document_shows_them(errors: list[document_1.ExtractionError]) -> None:
    assert format_extraction_errors(ours_of(errors)) == document_1.format_extraction_errors(errors)


@given(errors_of_the_document, texts, st.booleans(), st.booleans())
def test_corrective_prompt_is_the_documents(
    errors: list[document_1.ExtractionError], reply: str, details: bool, reminder: bool
) -> None:
    """Up to five errors."""
    ours = generate_corrective_prompt(ours_of(errors), reply, SelfHealingConfig(3, details, reminder))
    theirs = document_1.generate_corrective_prompt(errors, reply, document_1.SelfHealingConfig(3, details, reminder))
    assert ours == theirs


@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize("reminder", [True, False])
def test_run_leaves_out_of_its_corrective_prompts_what_its_options_say(
    tmp_path: Path, details: bool, reminder: bool
) -> None:
    settings: JsonMap = {"include_error_details": details, "include_format_reminder": reminder}
    bad = "tool: read_file({path})"
    _, _, model = watch(tmp_path, Protocol.TEXT, Say(bad), Say("Done."), settings=settings)
    corrective = model.calls[1].prompt.messages[-1]["content"]
    errors = document_1.extract_tool_invocations_with_errors(bad, frozenset({"read_file"}))[1]
    config = document_1.SelfHealingConfig(3, details, reminder)
    assert corrective == document_1.generate_corrective_prompt(errors, bad, config)


def test_of_more_than_five_errors_the_others_are_counted() -> None:
    errors = [ExtractionError(ExtractionErrorType.EMPTY_TOOL_NAME, at, "tool: (", f"number {at}") for at in range(8)]
    named = [line for line in generate_corrective_prompt(errors, "", SelfHealingConfig()).splitlines() if "- " in line]
    assert named[:6] == [*(f"- EMPTY_TOOL_NAME: number {at}" for at in range(5)), "- and 3 more"]


# --- 2.3 attempt_extraction_with_healing

GOOD = 'tool: read_file({"path": "a.py"})'
REPLIES = (
    *(GOOD, f"I read it.\n{GOOD}\n{GOOD}", "The file is fine.", "", f"tool: xyzzy({{}})\n{GOOD}"),
    *("tool: xyzzy({})", "tool: read_file(", "tool: read_file({path})\ntool:", "```\ntool: (\n```"),
)


def heard(
    heal: Callable[..., Any], replies: list[str], conversation: Conversation, config: Any
) -> tuple[Any, list[Conversation]]:
    """The result, and each conversation that the model was given."""
    seen: list[Conversation] = []

    def get_llm_response(given: Conversation) -> str:
        seen.append(deepcopy(given))
        return replies[min(len(seen), len(replies)) - 1]

    return plain(heal(get_llm_response, conversation, KNOWN, config)), seen


@given(
    st.lists(st.sampled_from(REPLIES), min_size=1, max_size=6),
    st.lists(st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}, texts), max_size=3),
    st.tuples(st.integers(0, 5), st.booleans(), st.booleans()),
)
def test_healing_is_the_documents(
    replies: list[str], conversation: Conversation, config: tuple[int, bool, bool]
) -> None:
    """The result with all attempts, and each conversation that the model is given."""
    before = deepcopy(conversation)
    ours = heard(attempt_extraction_with_healing, replies, conversation, SelfHealingConfig(*config))
    documents_config = document_1.SelfHealingConfig(*config)
    assert ours == heard(document_1.attempt_extraction_with_healing, replies, conversation, documents_config)
    assert conversation == before


@pytest.mark.parametrize("bad", range(6))
def test_three_malformed_replies_are_healed_and_a_fourth_is_not(bad: int) -> None:
    """Section 9: "up to 3 retries", which is the default."""
    asked = iter([*["tool: read_file({path})"] * bad, GOOD])
    result = attempt_extraction_with_healing(lambda _: next(asked), [], KNOWN)
    assert (result.success, len(result.attempts)) == (bad <= 3, min(bad, 3))
    assert [attempt.attempt_number for attempt in result.attempts] == list(range(min(bad, 3)))


def test_what_the_model_cannot_say_passes_through() -> None:
    """`get_llm_response` is the caller's: its exceptions are the caller's too."""

    def broken(_: Conversation) -> str:
        raise ConnectionError("no route")

    with pytest.raises(ConnectionError, match="no route"):
        attempt_extraction_with_healing(broken, [], KNOWN)


# --- 5.1 pure functions


@given(st.lists(lines, max_size=5).map("\n".join))
def test_extraction_and_prompts_change_nothing_and_say_the_same_twice(reply: str) -> None:
    first = extract_tool_invocations_with_errors(reply, KNOWN)
    kept = deepcopy(first)
    errors, config = first[1], SelfHealingConfig()
    texts = [(format_extraction_errors(errors), generate_corrective_prompt(errors, reply, config)) for _ in range(2)]
    assert first == kept == extract_tool_invocations_with_errors(reply, KNOWN)
    assert texts[0] == texts[1]
