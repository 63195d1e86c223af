"""Strict decoding of a call's arguments, for both protocols.

`json.loads` alone is too generous for text that a model wrote and a file tool acts on: it keeps the last of two equal
keys, reads NaN, lets half characters and endless integers through (a checkpoint can hold neither) and raises
RecursionError or a plain ValueError where one expects JSONDecodeError. Here each of these is a typed problem.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, JsonMap, RawCall, ToolInvocation

MAX_ARGUMENT_CHARS = 1_000_000
MAX_NESTING = 64
EXCERPT_CHARS = 200

_BRACKET = re.compile(r'(?P<open>[{\[])|(?P<close>[}\]])|"[^"\\]*+(?:\\.[^"\\]*+)*"?+', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"?+|[{\[]\s*+,|(?P<comma>,)(?=\s*+[}\]])', re.DOTALL)
_MAX_INTEGER_CHARS = 20
_JSON_KINDS = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}


class ArgumentProblem(NamedTuple):
    """Why a text is no argument object: the kind of error, and a sentence that a model can act on."""

    kind: ExtractionErrorType
    details: str


class _RejectedError(ValueError):
    """Leaves the JSON scanner with the sentence for the model."""


def decode_arguments(text: str) -> JsonMap | ArgumentProblem:
    """Decode one JSON object; the time is linear in the length of `text`.

    Line breaks and tabs inside strings are accepted as they stand, and so is one comma after the last element, for
    nothing is lost by it. Nothing else is repaired: a missing bracket or quote would have to be guessed.

    Returns:
        The object, or an `ArgumentProblem`: OVERSIZED_ARGUMENTS beyond a million characters, else
        INVALID_JSON_SYNTAX (bad syntax, not an object, equal keys, NaN, integers beyond 64 bits, half a surrogate
        pair, nesting deeper than 64). Details quote at most 200 characters. Nothing is raised.
    """
    value = decode_strictly(text)
    if isinstance(value, dict | ArgumentProblem):
        return value
    kind = _JSON_KINDS.get(type(value), "a number")
    return _invalid(f'The arguments must be one JSON object such as {{"param": "value"}}, not {kind}.')


def decode_strictly(text: str) -> Any:
    """Decode any JSON value under the rules of `decode_arguments`; an `ArgumentProblem` where it breaks them."""
    if len(text) > MAX_ARGUMENT_CHARS:
        details = (
            f"The arguments have {len(text)} characters, the limit is {MAX_ARGUMENT_CHARS}. Send less in one call."
        )
        return ArgumentProblem(ExtractionErrorType.OVERSIZED_ARGUMENTS, details)
    if _nests_too_deeply(text):
        return _invalid(f"The arguments are nested deeper than {MAX_NESTING} levels. Send a flatter object.")
    try:
        value = _loads(text)
    except json.JSONDecodeError as error:
        quoted = excerpt(text, at=error.pos)
        return _invalid(f"JSON parse error: {error.msg} at position {error.pos}. JSON: '{quoted}'")
    except _RejectedError as error:
        return _invalid(str(error))
    if _has_half_a_character(text, value):
        return _invalid("A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character.")
    return value


def excerpt(text: str, *, at: int = 0, limit: int = EXCERPT_CHARS) -> str:
    """`text` if it has at most `limit` characters, else the part around position `at`, with "..." where it is cut."""
    if len(text) <= limit:
        return text
    room = limit - 6
    start = max(0, min(at - room // 2, len(text) - room))
    end = start + room
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def _invalid(details: str) -> ArgumentProblem:
    return ArgumentProblem(ExtractionErrorType.INVALID_JSON_SYNTAX, details)


def _loads(text: str) -> Any:
    """The value; a text that is no JSON for a trailing comma alone is read without it."""
    load = partial(
        json.loads,
        strict=False,
        object_pairs_hook=_object_without_equal_keys,
        parse_int=_integer_of_64_bits,
        parse_float=_finite_number,
        parse_constant=_no_constant,
    )
    try:
        return load(text)
    except json.JSONDecodeError as error:
        repaired = _TRAILING_COMMA.sub(lambda match: "" if match["comma"] else match[0], text)
        if repaired == text:
            raise
        try:
            return load(repaired)
        except json.JSONDecodeError:
            raise error from None


def _nests_too_deeply(text: str) -> bool:
    depth = 0
    for token in _BRACKET.finditer(text):
        depth += (token["open"] is not None) - (token["close"] is not None)
        if depth > MAX_NESTING:
            return True
    return False


def _object_without_equal_keys(pairs: list[tuple[str, Any]]) -> JsonMap:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        names = ", ".join(f"'{excerpt(key, limit=40)}'" for key, count in counts.items() if count > 1)
        raise _RejectedError(f"Duplicate key {excerpt(names)}: write each key once, and one call for each change.")
    return values


def _integer_of_64_bits(digits: str) -> int:
    if len(digits) <= _MAX_INTEGER_CHARS and -(2**63) <= (number := int(digits)) < 2**64:
        return number
    raise _RejectedError(f"The integer {excerpt(digits, limit=40)} does not fit in 64 bits. Send it as a string.")


def _finite_number(digits: str) -> float:
    number = float(digits)
    if abs(number) == float("inf"):
        raise _RejectedError(f"The number {excerpt(digits, limit=40)} is too large. Send it as a string.")
    return number


def _no_constant(name: str) -> Any:
    raise _RejectedError(f"{name} is not a JSON value. Write a number, null or a string.")


def _has_half_a_character(text: str, value: Any) -> bool:
    if text.isascii() and "\\u" not in text:
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def unknown_tool_details(name: str, known_tools: frozenset[str]) -> str:
    """The spec's sentence about an unknown tool."""
    return f"Unknown tool '{excerpt(name)}'. Available: {sorted(known_tools)}"


LONGEST_ID: Final = 20_000
"""Characters of an id that go back to its endpoint. Some proxies keep a signature of some kilobytes in it."""

_LONGEST_NAME: Final = 200
"""Characters that are kept of a name that no tool has."""


class ReadCall(NamedTuple):
    """One call at its place in the reply; a native one under an id that no other call of the reply has."""

    call_id: str
    tool: str
    raw_arguments: str
    outcome: ToolInvocation | ExtractionError


def read_native_calls(calls: Sequence[RawCall], known_tools: frozenset[str], id_prefix: str = "call") -> list[ReadCall]:
    """One entry for each call, in order, none dropped; never raises.

    Missing, unprintable, repeated and endless ids become `<id_prefix>_<index>`, so `id_prefix` should name the step.
    The history must carry these ids, not those of the reply. Blank arguments mean {}. Line numbers are 0.
    """
    read: list[ReadCall] = []
    for call_id, call in zip(_unique_ids(calls, id_prefix), calls, strict=True):
        outcome = _read_call(call, known_tools)
        read.append(ReadCall(call_id, call.tool.strip()[:_LONGEST_NAME], call.arguments, outcome))
    return read


def _read_call(call: RawCall, known_tools: frozenset[str]) -> ToolInvocation | ExtractionError:
    def broken(kind: ExtractionErrorType, details: str) -> ExtractionError:
        return ExtractionError(kind, 0, excerpt(f"{call.tool}({call.arguments})"), details)

    tool = call.tool.strip()
    if not tool:
        return broken(ExtractionErrorType.EMPTY_TOOL_NAME, "Tool name is empty")
    if tool not in known_tools:
        return broken(ExtractionErrorType.UNKNOWN_TOOL_NAME, unknown_tool_details(tool, known_tools))
    arguments = decode_arguments(call.arguments.strip() or "{}")
    if isinstance(arguments, ArgumentProblem):
        return broken(arguments.kind, arguments.details)
    return ToolInvocation(tool, arguments, 0)


def _unique_ids(calls: Sequence[RawCall], id_prefix: str) -> Iterator[str]:
    given = {call.call_id for call in calls}
    seen: set[str] = set()
    for index, call in enumerate(calls):
        call_id = call.call_id
        usable = call_id.strip() and call_id.isprintable() and len(call_id) <= LONGEST_ID
        if not usable or call_id in seen:
            call_id = f"{id_prefix}_{index}"
            while call_id in given or call_id in seen:
                call_id += "_"
        seen.add(call_id)
        yield call_id
