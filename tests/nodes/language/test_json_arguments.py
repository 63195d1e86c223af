import json
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from nodes.language.json_arguments import ArgumentProblem, Pairs, decode_arguments, decode_strictly, excerpt
from nodes.records import ExtractionErrorType

INVALID = ExtractionErrorType.INVALID_JSON_SYNTAX

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=st.dictionaries(st.text(), json_values, max_size=5), ascii_only=st.booleans())
def test_what_json_writes_is_read_back(value: dict[str, Any], ascii_only: bool) -> None:
    assert decode_arguments(json.dumps(value, ensure_ascii=ascii_only)) == value


@given(text=st.text() | st.text(alphabet='{}[]":,\\u0d8 e1-\n', max_size=60))
def test_any_text_gives_an_object_or_a_bounded_problem(text: str) -> None:
    outcome = decode_arguments(text)
    assert isinstance(outcome, dict | ArgumentProblem)
    if isinstance(outcome, ArgumentProblem):
        assert len(outcome.details) < 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"text": "one\n\ttwo\r\n"}', {"text": "one\n\ttwo\r\n"}),
        (' \n{"a": 1}\n', {"a": 1}),
        ('{"n": 18446744073709551615, "m": -9223372036854775808}', {"n": 2**64 - 1, "m": -(2**63)}),
        ('{"smile": "\\ud83d\\ude00"}', {"smile": "\U0001f600"}),
        ('{"text": "\\\\ud83d"}', {"text": "\\ud83d"}),
        ('{"brackets": "' + "[" * 100 + '"}', {"brackets": "[" * 100}),
        ('{"a": {"x": 1}, "b": {"x": 2}}', {"a": {"x": 1}, "b": {"x": 2}}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2 ,\n], "b": {"c": "d",}, }', {"a": [1, 2], "b": {"c": "d"}}),
        ('{"a": ",}", "b": "\\",]",}', {"a": ",}", "b": '",]'}),
    ],
)
def test_lossless_input_is_accepted(text: str, expected: dict[str, Any]) -> None:
    assert decode_arguments(text) == expected


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("", "JSON parse error: Expecting value at position 0. JSON: ''"),
        (
            "{path: 1}",
            "JSON parse error: Expecting property name enclosed in double quotes at position 1. JSON: '{path: 1}'",
        ),
        ('{"a": 1} {}', "JSON parse error: Extra data at position 9. JSON: '{\"a\": 1} {}'"),
        ("[1]", 'The arguments must be one JSON object such as {"param": "value"}, not an array.'),
        ('"a"', 'The arguments must be one JSON object such as {"param": "value"}, not a string.'),
        ("null", 'The arguments must be one JSON object such as {"param": "value"}, not null.'),
        ("true", 'The arguments must be one JSON object such as {"param": "value"}, not true or false.'),
        ("1.5", 'The arguments must be one JSON object such as {"param": "value"}, not a number.'),
        (
            '{"old_str": "a", "b": 1, "old_str": "c"}',
            "Duplicate key 'old_str': write each key once, and one call for each change.",
        ),
        ('{"a": [{"b": 1, "b": 1}]}', "Duplicate key 'b': write each key once, and one call for each change."),
        ('{"a": NaN}', "NaN is not a JSON value. Write a number, null or a string."),
        ('{"a": -Infinity}', "-Infinity is not a JSON value. Write a number, null or a string."),
        ('{"a": 1e999}', "The number 1e999 is too large. Send it as a string."),
        (
            '{"a": 18446744073709551616}',
            "The integer 18446744073709551616 does not fit in 64 bits. Send it as a string.",
        ),
        (
            '{"a": -9223372036854775809}',
            "The integer -9223372036854775809 does not fit in 64 bits. Send it as a string.",
        ),
        (
            '{"a": "\\ud83d"}',
            "A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character.",
        ),
        (
            '{"\ud83d": 1}',
            "A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character.",
        ),
        (
            '{"a": ' + "[" * 64 + "]" * 64 + "}",
            "The arguments are nested deeper than 64 levels. Send a flatter object.",
        ),
    ],
)
def test_each_trap_is_a_typed_problem(text: str, details: str) -> None:
    assert decode_arguments(text) == ArgumentProblem(INVALID, details)


@pytest.mark.parametrize(
    "text",
    [
        "{,}",
        '{"a": 1,,}',
        '{"a": [ ,]}',
        '{"a": ,}',
        '{"a": 1,} x,}',
        '{"a": [1,}',
        '{"a": "b,',
        '{"a": "b,}',
        '{"a": 1,',
        '{"a": 1,]',
        '{"a": 1, "b" 2,}',
        "{'a': 1,}",
    ],
)
def test_what_more_than_a_trailing_comma_is_wrong_with_is_told_as_it_was_sent(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads(text)
    error = raised.value
    details = f"JSON parse error: {error.msg} at position {error.pos}. JSON: '{text}'"
    assert decode_arguments(text) == ArgumentProblem(INVALID, details)


def test_equal_keys_before_a_trailing_comma_are_told() -> None:
    details = "Duplicate key 'a': write each key once, and one call for each change."
    assert decode_arguments('{"a": 1, "a": 2,}') == ArgumentProblem(INVALID, details)


def test_what_equal_keys_mean_can_be_said() -> None:
    def join(pairs: Pairs) -> dict[str, Any] | None:
        return {"joined": [value for _, value in pairs]} if pairs[0][0] == "a" else None

    assert decode_strictly('[{"a": 1, "a": 2}, {"b": 1}]', join=join) == [{"joined": [1, 2]}, {"b": 1}]
    assert isinstance(decode_strictly('[{"a": 1, "a": 2}, {"b": 1, "b": 2}]', join=join), ArgumentProblem)


@pytest.mark.parametrize("unit", [",", "{,", ', "', '"a",', "[ ", ", \n", '\\"'])
def test_endless_commas_are_a_problem(unit: str) -> None:
    assert isinstance(decode_arguments('{"a": [1' + unit * (100_000 // len(unit))), ArgumentProblem)


@given(value=st.dictionaries(st.text(), json_values, max_size=5))
def test_a_trailing_comma_changes_nothing(value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=1)
    assert decode_arguments(re.sub(r"([^\s{\[])\n( *[}\]])", r"\1,\n\2", text)) == value


def test_sixty_four_levels_are_enough() -> None:
    assert decode_strictly("[" * 64 + "]" * 64) != ArgumentProblem(INVALID, "")
    assert isinstance(decode_arguments('{"a": ' + "[" * 63 + "]" * 63 + "}"), dict)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_endless_nesting_is_no_recursion(text: str) -> None:
    assert decode_arguments(text) == ArgumentProblem(
        INVALID, "The arguments are nested deeper than 64 levels. Send a flatter object."
    )


def test_the_size_limit_counts_characters() -> None:
    text = '{"a":"' + "x" * 999_992 + '"}'
    assert decode_arguments(text) == {"a": "x" * 999_992}
    assert decode_arguments(text + " ") == ArgumentProblem(
        ExtractionErrorType.OVERSIZED_ARGUMENTS,
        "The arguments have 1000001 characters, the limit is 1000000. Send less in one call.",
    )
    assert decode_arguments("{}", max_chars=1) == ArgumentProblem(
        ExtractionErrorType.OVERSIZED_ARGUMENTS,
        "The arguments have 2 characters, the limit is 1. Send less in one call.",
    )


def test_a_five_thousand_digit_integer_is_not_quoted_whole() -> None:
    outcome = decode_arguments('{"a": ' + "9" * 5_000 + "}")
    assert outcome == ArgumentProblem(
        INVALID, f"The integer {'9' * 34}... does not fit in 64 bits. Send it as a string."
    )


def test_a_long_broken_text_is_quoted_around_the_error() -> None:
    outcome = decode_arguments('{"a": "' + "x" * 50_000 + '" oops}')
    assert isinstance(outcome, ArgumentProblem)
    assert outcome.details.startswith("JSON parse error: Expecting ',' delimiter at position 50009. JSON: '...xxx")
    assert outcome.details.endswith("xxx\" oops}'")
    assert len(outcome.details) < 300


@settings(deadline=None)
@given(text=st.text(max_size=300), at=st.integers(0, 300), limit=st.integers(10, 200))
def test_an_excerpt_keeps_its_limit_and_its_place(text: str, at: int, limit: int) -> None:
    quoted = excerpt(text, at=at, limit=limit)
    assert len(quoted) <= limit
    assert quoted == text or quoted.strip(".") in text
    if len(text) > limit and at < len(text):
        assert text[at] in quoted
