"""Document 1, sections 1 and 2: our extraction and healing beside the document's own code."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph import AgentContext, run_task
from mendgraph.documents import (
    ExtractionError,
    ExtractionErrorType,
    SelfHealingConfig,
    ToolInvocation,
    attempt_extraction_with_healing,
    extract_tool_invocations_with_errors,
    format_extraction_errors,
    generate_corrective_prompt,
    parse_tool_line,
)
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.specs import document_1
from tests.specs.document_1 import plain

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
calls = st.builds(
    lambda name, arguments, after: f"tool: {name}({json.dumps(arguments, ensure_ascii=False)}){after}",
    st.sampled_from(sorted(KNOWN)),
    st.dictionaries(texts, texts | st.lists(texts, max_size=2), max_size=3) | st.none() | st.integers(-9, 9),
    st.sampled_from(["", " ", ")", " and so on"]),
)
lines = st.lists(pieces, max_size=9).map("".join) | calls


# --- 1.2 parse_tool_line, extract_tool_invocations_with_errors


def difference(line: str, ours: ToolInvocation | ExtractionError, documents: document_1.ExtractionResult) -> str:
    """How our reading of the line differs from the document's; "" if it does not."""
    if plain(ours) == plain(documents):
        return ""
    if isinstance(ours, ToolInvocation):
        return "an error is lost"
    if isinstance(documents, document_1.ToolInvocation):
        return "stricter JSON" if not is_strict_object(line.strip().partition("(")[2][:-1]) else "a call is lost"
    if plain(ours._replace(details="")) != plain(documents._replace(details="")):
        return "another error"
    if ours.error_type is ExtractionErrorType.INVALID_JSON_SYNTAX and "JSON parse error" not in ours.details:
        return "stricter JSON"
    return "a long line is quoted in part" if len(line) > QUOTED_CHARS else "other details"


ON_PURPOSE = {"", "stricter JSON", "a long line is quoted in part"}


def is_strict_object(raw: str) -> bool:
    """Whether this is one JSON object without equal keys and NaN."""

    def unequal(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError
        return dict(pairs)

    def refuse(_: str) -> None:
        raise ValueError

    try:
        return isinstance(json.loads(raw, object_pairs_hook=unequal, parse_constant=refuse), dict)
    except ValueError:
        return False


@given(lines, st.integers(1, 99))
def test_line_is_read_as_in_the_document(line: str, number: int) -> None:
    documents = document_1.parse_tool_line(line, number, KNOWN)
    assert difference(line, parse_tool_line(line, number, KNOWN), documents) in ON_PURPOSE


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('tool: read_file({"a": 1, "a": 2})', "stricter JSON"),
        ('tool: read_file({"a": NaN})', "stricter JSON"),
        ("tool: read_file([1])", "stricter JSON"),
        ('tool: read_file("a.py")', "stricter JSON"),
        ("tool: read_file(" + "x" * 300, "a long line is quoted in part"),
        ('tool: read_file({"a": 1,})', ""),
        ('tool: read_file({"a": "x\ty"})', ""),
    ],
)
def test_line_is_read_differently_only_on_purpose(line: str, expected: str) -> None:
    """What a run reads leniently, such as a trailing comma, is here an error as in the document."""
    documents = document_1.parse_tool_line(line, 1, KNOWN)
    assert difference(line, parse_tool_line(line, 1, KNOWN), documents) == expected


def test_each_kind_of_error_has_the_documents_text() -> None:
    """In the order of the checks: each line has the faults of all checks after its own as well."""
    rows = [
        ("read_file({})", "MISSING_TOOL_PREFIX"),
        ("tool: read_file", "MISSING_OPENING_PAREN"),
        ("tool: (", "EMPTY_TOOL_NAME"),
        ("tool: xyzzy(", "UNKNOWN_TOOL_NAME"),
        ("tool: read_file(", "MISSING_CLOSING_PAREN"),
        ("tool: read_file(x)", "INVALID_JSON_SYNTAX"),
    ]
    for line, kind in rows:
        ours = parse_tool_line(line, 7, KNOWN)
        assert isinstance(ours, ExtractionError)
        assert ours.error_type.name == kind
        assert plain(ours) == plain(document_1.parse_tool_line(line, 7, KNOWN))


@given(st.lists(lines, max_size=8).map("\n".join))
def test_reply_is_read_as_in_the_document(reply: str) -> None:
    """Line by line, each `tool:` line one call or one error with details, in a fence too: none fails silently.

    Stricter: what goes on over the lines after a broken call, in its arguments, is no call.
    """
    invocations, errors = extract_tool_invocations_with_errors(reply, KNOWN)
    read: dict[int, Any] = {item.line_number: item for part in (invocations, errors) for item in part}
    theirs = document_1.extract_tool_invocations_with_errors(reply, KNOWN)
    expected: dict[int, Any] = {item.line_number: item for part in theirs for item in part}
    before = {number: max((at for at in read if at < number), default=0) for number in expected.keys() - read.keys()}
    assert all(isinstance(read.get(at), ExtractionError) for at in before.values())
    assert read.keys() <= expected.keys()
    numbered = reply.splitlines()
    assert {difference(numbered[at - 1], read[at], expected[at]) for at in read} <= ON_PURPOSE
    for part in (invocations, errors):
        assert [item.line_number for item in part] == sorted(item.line_number for item in part)
    assert all(error.details for error in errors)


@pytest.mark.parametrize(
    "reply",
    [
        'First.\ntool: read_file({"path": "a"})\nThen.\n  tool: edit_file({"path": "b"})  ',
        'For example:\n```\ntool: read_file({"path": "a"})\n```\nDone.',
        'tool: edit_file({"path": "a"})\n```python\nx = 1\n```',
        'tool: read_file({"path":\n"a"})\ntool: read_file({})',
        "tool: xyzzy({})\r\ntool: read_file({})\x0ctool: read_file\u2028tool:",
        "No call at all. I would use tool: read_file({}).",
        'tool: read_file({"path": "a\tb"})\ntool: read_file({"path": "a",})',
    ],
    ids=["prose", "fence", "block of an edit", "two lines", "line ends", "none", "lenient JSON"],
)
def test_reply_is_read_line_by_line(reply: str) -> None:
    ours = extract_tool_invocations_with_errors(reply, KNOWN)
    assert plain(ours) == plain(document_1.extract_tool_invocations_with_errors(reply, KNOWN))


def test_line_in_the_arguments_of_a_broken_call_never_runs() -> None:
    """The document reads the second line as a separate call, so intended content would run."""
    reply = 'tool: edit_file({"path": "a.md", "new_str": "# How\ntool: edit_file({})\n'
    invocations, errors = extract_tool_invocations_with_errors(reply, KNOWN)
    assert (invocations, [error.line_number for error in errors]) == ([], [1])
    assert len(document_1.extract_tool_invocations_with_errors(reply, KNOWN)[0]) == 1


# --- 1.2 format_extraction_errors, 2.2 generate_corrective_prompt

errors_of_the_document = st.lists(
    st.builds(
        document_1.ExtractionError,
        st.sampled_from(document_1.ExtractionErrorType),
        st.integers(0, 99),
        st.builds(lambda text, times: text * times, texts, st.integers(1, 30)),
        texts,
    ),
    max_size=5,
)


@given(errors_of_the_document, texts, st.booleans(), st.booleans())
def test_error_texts_match_the_document(
    errors: list[document_1.ExtractionError], reply: str, details: bool, reminder: bool
) -> None:
    ours = [ExtractionError(ExtractionErrorType[error.error_type.name], *error[1:]) for error in errors]
    assert format_extraction_errors(ours) == document_1.format_extraction_errors(errors)
    prompt = generate_corrective_prompt(ours, reply, SelfHealingConfig(3, details, reminder))
    config = document_1.SelfHealingConfig(3, details, reminder)
    assert prompt == document_1.generate_corrective_prompt(errors, reply, config)


@pytest.mark.parametrize(("details", "reminder"), [(True, False), (False, True)])
def test_options_omit_parts_of_the_corrective_prompt(tmp_path: Path, details: bool, reminder: bool) -> None:
    bad = "tool: read_file({path})"
    model = ScriptedModel([Say(bad), Say("Done.")])
    context = AgentContext(
        workspace=str(tmp_path), protocol="text", include_error_details=details, include_format_reminder=reminder
    )
    run_task("Do it.", context, model=model)
    errors = document_1.extract_tool_invocations_with_errors(bad, frozenset({"read_file"}))[1]
    config = document_1.SelfHealingConfig(3, details, reminder)
    corrective = model.calls[1].prompt.messages[-1]["content"]
    assert corrective == document_1.generate_corrective_prompt(errors, bad, config)


def test_only_five_errors_are_listed_and_the_others_counted() -> None:
    errors = [ExtractionError(ExtractionErrorType.EMPTY_TOOL_NAME, at, "tool: (", f"number {at}") for at in range(8)]
    named = [line for line in generate_corrective_prompt(errors, "", SelfHealingConfig()).splitlines() if "- " in line]
    assert named[:6] == [*(f"- EMPTY_TOOL_NAME: number {at}" for at in range(5)), "- and 3 more"]


# --- 2.3 attempt_extraction_with_healing

GOOD = 'tool: read_file({"path": "a.py"})'
REPLIES = (
    *(GOOD, f"I read it.\n{GOOD}\n{GOOD}", "The file is fine.", "", f"tool: xyzzy({{}})\n{GOOD}"),
    *("tool: xyzzy({})", "tool: read_file(", "tool: read_file({path})\ntool:", "```\ntool: (\n```"),
)


def healed(heal: Any, replies: list[str], conversation: Conversation, config: Any) -> tuple[Any, list[Conversation]]:
    """The result, and each conversation that the model was given."""
    seen: list[Conversation] = []

    def get_llm_response(messages: Conversation) -> str:
        seen.append(deepcopy(messages))
        return replies[min(len(seen), len(replies)) - 1]

    return plain(heal(get_llm_response, conversation, KNOWN, config)), seen


@given(
    st.lists(st.sampled_from(REPLIES), min_size=1, max_size=6),
    st.lists(st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}, texts), max_size=3),
    st.tuples(st.integers(0, 5), st.booleans(), st.booleans()),
)
def test_healing_matches_the_document(
    replies: list[str], conversation: Conversation, config: tuple[int, bool, bool]
) -> None:
    """The result with all attempts, and each conversation that the model is given."""
    before = deepcopy(conversation)
    ours = healed(attempt_extraction_with_healing, replies, conversation, SelfHealingConfig(*config))
    documents_config = document_1.SelfHealingConfig(*config)
    assert ours == healed(document_1.attempt_extraction_with_healing, replies, conversation, documents_config)
    assert conversation == before


def test_up_to_three_malformed_replies_are_healed() -> None:
    """Section 9: "up to 3 retries", which is the default."""
    for bad in range(6):
        replies = iter([*["tool: read_file({path})"] * bad, GOOD])
        result = attempt_extraction_with_healing(lambda _, replies=replies: next(replies), [], KNOWN)  # type: ignore[misc]
        assert (result.success, len(result.attempts)) == (bad <= 3, min(bad, 3))
        assert [attempt.attempt_number for attempt in result.attempts] == list(range(min(bad, 3)))


def test_exception_of_the_model_propagates() -> None:
    def broken(_: Conversation) -> str:
        raise ConnectionError("no route")

    with pytest.raises(ConnectionError, match="no route"):
        attempt_extraction_with_healing(broken, [], KNOWN)


# --- 5.1 pure functions


@given(st.lists(lines, max_size=5).map("\n".join))
def test_extraction_and_prompts_are_pure(reply: str) -> None:
    first = extract_tool_invocations_with_errors(reply, KNOWN)
    copied = deepcopy(first)
    prompts = {generate_corrective_prompt(first[1], reply, SelfHealingConfig()) for _ in range(2)}
    formatted = {format_extraction_errors(first[1]) for _ in range(2)}
    assert first == copied == extract_tool_invocations_with_errors(reply, KNOWN)
    assert (len(prompts), len(formatted)) == (1, 1)
