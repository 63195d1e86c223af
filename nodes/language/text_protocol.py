"""Spec 1's text protocol: a call is a line `tool: NAME({json})`.

A line that starts with `tool:` is a call anywhere, also in a code fence. The running agent and the spec's functions use
the same reader. Beyond the spec's one-line form, the agent accepts JSON over several lines; text inside of it is never
another call. In the `strict` mode of the spec's functions, a call is one line with JSON as `json.loads` reads it.
Reading takes linear time.

Results are lines `tool_result({...})`: the i-th line answers the i-th call of the reply.

The arguments of a call are decoded strictly in both protocols. `json.loads` keeps the last of two equal keys, accepts
NaN, lone surrogates and integers of any size (which a checkpoint cannot store), and raises RecursionError. Here each of
these is a typed problem.
"""

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

from mendgraph.nodes.records import (
    CallResult,
    ExtractionError,
    ExtractionErrorType,
    JsonMap,
    ToolError,
    ToolErrorCode,
    ToolInvocation,
)

TOOL_PREFIX = "tool:"

ExtractionResult = ToolInvocation | ExtractionError

_FENCE = re.compile(r" {0,3}(`{3,}+|~{3,}+)([^\r\n]*)")
_JSON_START = re.compile(r"\(\s*+(?=[{\[])")
_JSON_TOKEN = re.compile(
    r"""(?P<open>[{\[]++) | (?P<close>[}\]]++)
      | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*(?P<quote>")?)
      | [^"(){}\[\]\\]++            # separators, white space, numbers, words""",
    re.DOTALL | re.VERBOSE,
)
_AFTER_STRING = re.compile(r"\s*+[,:\]}]")
_CLOSING_PAREN = re.compile(r"\s*+\)")


class ReadCall(NamedTuple):
    """A call and its position in the reply, up to `end_line`; native calls have line 0.

    `raw_arguments` is the exact text, or JSON if the call was written in another `format`. The id of a native call is
    unique in its reply. A `terminal` call ends the work.
    """

    tool: str
    raw_arguments: str
    outcome: ExtractionResult
    end_line: int = 0
    call_id: str = ""
    format: str = ""
    terminal: bool = False

    @property
    def line_number(self) -> int:
        """The first line of the call."""
        return self.outcome.line_number


def parse_tool_line(line: str, line_number: int, known_tools: frozenset[str]) -> ExtractionResult:
    """Read one call; never raises.

    The order of the checks (prefix, opening parenthesis, name, known tool, closing parenthesis, JSON) and their
    messages are the spec's; quoted parts of the line are cut to 200 characters. Source: spec 1 section 1.2.
    """
    return _read_call(line, line_number, known_tools, line, strict=True).outcome


def extract_tool_invocations_with_errors(
    text: str, known_tools: frozenset[str]
) -> tuple[list[ToolInvocation], list[ExtractionError]]:
    """Return all calls of a reply and all errors, each in the order of the reply.

    Each call is one line: a call whose JSON continues in the next line is an error. Source: spec 1 section 1.2.
    """
    outcomes = [call.outcome for call in extract_in_order(text, known_tools, strict=True)]
    return (
        [outcome for outcome in outcomes if isinstance(outcome, ToolInvocation)],
        [outcome for outcome in outcomes if isinstance(outcome, ExtractionError)],
    )


def extract_in_order(
    text: str, known_tools: frozenset[str], *, fenced: bool = True, strict: bool = False
) -> list[ReadCall]:
    """All calls of a reply, well-formed or not, in order; [] for a reply without `tool:` lines.

    Args:
        text: The whole reply.
        known_tools: The tools that there are.
        fenced: Whether lines in code fences count.
        strict: Whether a call is what its first line says, with JSON to the letter, as in the document.
    """
    lines = text.splitlines(keepends=True)
    bounds = list(accumulate(map(len, lines), initial=0))
    calls: list[ReadCall] = []
    index = 0
    fence = ""

    while index < len(lines):
        line = lines[index]
        if not line.lstrip().startswith(TOOL_PREFIX) or (fence and not fenced):
            fence = fence_after(line, fence)
            index = index + 1
            continue

        after = bisect_left(bounds, _call_end(text, bounds[index], bounds[index + 1]))
        source = line if strict else text[bounds[index] : bounds[after]]
        call = _read_call(source, index + 1, known_tools, source.splitlines()[0], strict=strict)
        calls.append(call._replace(end_line=after))
        index = after

    return calls


def without_lines(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    """Return the text with the lines of these inclusive ranges blank, so that line numbers stay the same."""
    lines = text.splitlines(keepends=True)
    for first, last in ranges:
        lines[first - 1 : last] = ["\n"] * len(lines[first - 1 : last])

    return "".join(lines)


def format_extraction_errors(errors: Sequence[ExtractionError]) -> str:
    """Format the errors for display and logs; "" for none. Source: spec 1 section 1.2."""
    if not errors:
        return ""

    lines = ["Tool Extraction Errors:"]

    for error in errors:
        lines.append(f"  Line {error.line_number}: [{error.error_type.name}]")
        lines.append(f"    Content: {error.line_content[:80]}...")
        lines.append(f"    Details: {error.details}")

    return "\n".join(lines)


def fence_after(line: str, fence: str) -> str:
    """Return the code fence that is open after `line`, given the one before it ("" for none).

    Source: CommonMark 4.5.
    """
    match = _FENCE.match(line)
    if match is None:
        return fence

    marks, info = match.groups()
    if not fence:
        is_inline_code = marks[0] == "`" and "`" in info
        return "" if is_inline_code else marks

    closes = marks.startswith(fence) and not info.strip()
    return "" if closes else fence


def _read_call(source: str, line_number: int, known_tools: frozenset[str], line: str, *, strict: bool) -> ReadCall:
    def broken(kind: ExtractionErrorType, details: str, tool: str = "", raw: str = "") -> ReadCall:
        return ReadCall(tool, raw, ExtractionError(kind, line_number, line, details))

    stripped = source.strip()
    if not stripped.startswith(TOOL_PREFIX):
        return broken(ExtractionErrorType.MISSING_TOOL_PREFIX, "Line does not start with 'tool:' prefix")

    after_prefix = stripped.removeprefix(TOOL_PREFIX).strip()
    name, paren, rest = after_prefix.partition("(")
    name = name.strip()

    if not paren:
        details = f"Missing '(' in tool invocation: '{excerpt(after_prefix)}'"
        return broken(ExtractionErrorType.MISSING_OPENING_PAREN, details)

    raw = rest.removesuffix(")")
    if not name:
        return broken(ExtractionErrorType.EMPTY_TOOL_NAME, "Tool name is empty", raw=raw)
    if name not in known_tools:
        return broken(ExtractionErrorType.UNKNOWN_TOOL_NAME, unknown_tool_details(name, known_tools), name, raw)

    if not rest.endswith(")"):
        details = f"Missing closing ')' in: '{excerpt(rest, at=len(rest))}'"
        return broken(ExtractionErrorType.MISSING_CLOSING_PAREN, details, name, raw)

    arguments = decode_arguments(raw.strip(), strict=strict)
    if isinstance(arguments, ArgumentProblem):
        return broken(arguments.kind, arguments.details, name, raw)

    return ReadCall(name, raw, ToolInvocation(name, arguments, line_number))


def _call_end(text: str, line_start: int, line_end: int) -> int:
    """Return the end of the call that starts at `line_start`, at least the end of its line.

    A call with broken JSON is one line. An unclosed string extends to the end of the text, because its content must not
    run.
    """
    paren = text.find("(", line_start, line_end)
    start = _JSON_START.match(text, paren) if paren >= 0 else None
    end = json_end(text, start.end()) if start else None

    if end is None:
        return line_end

    closing = _CLOSING_PAREN.match(text, end)
    return max(line_end, closing.end() if closing else end)


def tool_line_end(text: str, start: int) -> int:
    """Return the position after the call whose line starts at `start`, including the lines of its JSON."""
    return _call_end(text, start, text.find("\n", start) + 1 or len(text))


def json_end(text: str, start: int) -> int | None:
    """Return the position after the bracket that closes the one at `start`; None if brackets or strings are not JSON.

    An unclosed string ends at the end of the text. Many broken calls take linear time together: a scan ends where it
    meets the `(` of a later call outside of a string; a scan that passes it inside of a string stays on the other side
    of each quote than the later call's own scan, so that one of the two ends at the next call.
    """
    position = start
    depth = 0

    while token := _JSON_TOKEN.match(text, position):
        position = token.end()

        if token["string"]:
            if not token["quote"]:
                return len(text)
            if not _AFTER_STRING.match(text, position):
                return None
        elif token["open"]:
            depth += len(token["open"])
        elif token["close"]:
            if len(token["close"]) >= depth:
                return token.start() + depth

            depth -= len(token["close"])

    return None


# --- The arguments of a call


MAX_ARGUMENT_CHARS = 1_000_000
MAX_NESTING = 64
EXCERPT_CHARS = 200

_BRACKET = re.compile(r'(?P<open>[{\[])|(?P<close>[}\]])|"[^"\\]*+(?:\\.[^"\\]*+)*"?+', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"?+|[{\[]\s*+,|(?P<comma>,)(?=\s*+[}\]])', re.DOTALL)
_MAX_INTEGER_CHARS = 20
_JSON_KINDS = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}


class ArgumentProblem(NamedTuple):
    """Why a text is not an argument object: the kind of error, and a sentence that a model can act on."""

    kind: ExtractionErrorType
    details: str


class _RejectedError(ValueError):
    """Carries the sentence for the model out of the JSON decoder."""


def decode_arguments(text: str, *, strict: bool = False) -> JsonMap | ArgumentProblem:
    """Decode one JSON object; the time is linear in the length of `text`.

    Unless `strict`, line breaks and tabs inside strings are accepted as they stand, and so is one comma after the last
    element, for nothing is lost by it. Nothing else is repaired: a missing bracket or quote would have to be guessed.

    Returns:
        The object, or an `ArgumentProblem`: OVERSIZED_ARGUMENTS beyond a million characters, else
        INVALID_JSON_SYNTAX (bad syntax, not an object, equal keys, NaN, integers beyond 64 bits, half a surrogate
        pair, nesting deeper than 64). Details quote at most 200 characters. Nothing is raised.
    """
    value = decode_strictly(text, strict=strict)
    if isinstance(value, dict | ArgumentProblem):
        return value

    kind = _JSON_KINDS.get(type(value), "a number")
    return _invalid(f'The arguments must be one JSON object such as {{"param": "value"}}, not {kind}.')


def decode_strictly(text: str, *, strict: bool = False) -> Any:
    """Decode any JSON value under the rules of `decode_arguments`, or return an `ArgumentProblem`."""
    if len(text) > MAX_ARGUMENT_CHARS:
        details = (
            f"The arguments have {len(text)} characters, the limit is {MAX_ARGUMENT_CHARS}. Send less in one call."
        )

        return ArgumentProblem(ExtractionErrorType.OVERSIZED_ARGUMENTS, details)

    if _nests_too_deeply(text):
        return _invalid(f"The arguments are nested deeper than {MAX_NESTING} levels. Send a flatter object.")

    try:
        value = _loads(text, strict=strict)
    except json.JSONDecodeError as error:
        quoted = excerpt(text, at=error.pos)
        return _invalid(f"JSON parse error: {error.msg} at position {error.pos}. JSON: '{quoted}'")
    except _RejectedError as error:
        return _invalid(str(error))

    if _has_half_a_character(text, value):
        return _invalid("A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character.")

    return value


def excerpt(text: str, *, at: int = 0, limit: int = EXCERPT_CHARS) -> str:
    """Return `text`, or the part of `limit` characters around position `at`, with "..." where it is cut."""
    if len(text) <= limit:
        return text

    room = limit - 6
    start = max(0, min(at - room // 2, len(text) - room))
    end = start + room

    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def _invalid(details: str) -> ArgumentProblem:
    return ArgumentProblem(ExtractionErrorType.INVALID_JSON_SYNTAX, details)


def _loads(text: str, *, strict: bool) -> Any:
    """Decode the value; unless `strict`, without a trailing comma if that is the only problem."""
    load = partial(
        json.loads,
        strict=strict,
        object_pairs_hook=_object_without_equal_keys,
        parse_int=_integer_of_64_bits,
        parse_float=_finite_number,
        parse_constant=_no_constant,
    )

    try:
        return load(text)
    except json.JSONDecodeError as error:
        if strict:
            repaired = text
        else:
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
    """Return the spec's sentence about an unknown tool."""
    return f"Unknown tool '{excerpt(name)}'. Available: {sorted(known_tools)}"


# --- How results go back: spec 1's lines, or one JSON text for each native call

RESULT_MARK: Final = "tool_result("
"""The start of a result line. A model must not write it."""
_LINE_BREAKING_OR_UNSENDABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def render_text_results(results: Sequence[CallResult]) -> str:
    """Return a `tool_result({...})` line for each result, in order: "tool" first, then spec 2's envelope.

    Line breaks, control characters and lone surrogates are escaped, so that a result is one line that can be sent and
    stored.
    """
    return "\n".join(f"{RESULT_MARK}{_compact({'tool': result.tool, **result.result.as_map()})})" for result in results)


def render_native_result(result: CallResult) -> str:
    """Return the content of the tool message: the envelope as compact JSON, without the tool's name."""
    return _compact(result.result.as_map())


def parse_text_results(text: str) -> list[JsonMap]:
    """Return the maps that `render_text_results` rendered, in order; other lines are ignored."""
    results = []

    for line in text.split("\n"):
        if line.startswith(RESULT_MARK) and line.endswith(")"):
            try:
                value = json.loads(line[len(RESULT_MARK) : -1])
            except (ValueError, RecursionError):
                continue

            if isinstance(value, dict):
                results.append(value)

    return results


def _compact(value: JsonMap) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _LINE_BREAKING_OR_UNSENDABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


MISSED: Final = "old_str does not occur in"
"""The start of the error of an edit whose old text does not occur, after the part about earlier edits."""


def is_miss(error: ToolError | None) -> bool:
    """Return whether an edit failed because its old text is not in the file."""
    return error is not None and error.code is ToolErrorCode.INVALID_ARGUMENT and MISSED in error.message
