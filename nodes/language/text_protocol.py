"""Spec 1's text protocol: a call is a line `tool: NAME({json})`.

A line that begins with `tool:` is a call wherever it stands, in a code fence too. Beyond the spec's one-line form, the
JSON may hold any character, line breaks included, so a call can span lines; what stands inside it is never taken for
another call. The document's functions read one line for each call. Reading is linear in the reply.

Results go back as lines `tool_result({...})`: the i-th line answers the i-th call of the reply.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from mendgraph.nodes.language.json_arguments import ArgumentProblem, decode_arguments, excerpt, unknown_tool_details
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

_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)([^\r\n]*)")
_JSON_START = re.compile(r"\(\s*+(?=[{\[])")
_JSON_TOKEN = re.compile(
    r"""(?P<open>[{\[]++) | (?P<close>[}\]]++)
      | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*(?P<quote>")?)
      | [^"(){}\[\]\\]++            # separators, white space, numbers, words""",
    re.DOTALL | re.VERBOSE,
)
_AFTER_STRING = re.compile(r"\s*+[,:\]}]")
_CLOSING_PAREN = re.compile(r"\s*+\)")


class TextCall(NamedTuple):
    """One call at its place in the reply, from `line_number` to `end_line`.

    `raw_arguments` is the exact text between the parentheses.
    """

    line_number: int
    tool: str
    raw_arguments: str
    outcome: ExtractionResult
    end_line: int


def parse_tool_line(line: str, line_number: int, known_tools: frozenset[str]) -> ExtractionResult:
    """Read one call; never raises.

    The order of the checks (prefix, opening parenthesis, name, known tool, closing parenthesis, JSON) and the texts
    are the spec's; quoted parts of the line are cut to 200 characters. Source: spec 1 section 1.2.
    """
    return _read_call(line, line_number, known_tools, line).outcome


def extract_tool_invocations_with_errors(
    text: str, known_tools: frozenset[str]
) -> tuple[list[ToolInvocation], list[ExtractionError]]:
    """All calls of a reply and all errors, each in the order of the reply; one line for each call.

    A call whose JSON goes on in the next line is an error, and what follows of it no call. Source: spec 1 section 1.2.
    """
    outcomes = [call.outcome for call in extract_in_order(text, known_tools, one_line=True)]
    return (
        [outcome for outcome in outcomes if isinstance(outcome, ToolInvocation)],
        [outcome for outcome in outcomes if isinstance(outcome, ExtractionError)],
    )


def extract_in_order(
    text: str, known_tools: frozenset[str], *, fenced: bool = True, one_line: bool = False
) -> list[TextCall]:
    """All calls of a reply, well-formed or not, in order; [] for a reply without `tool:` lines.

    Args:
        text: The whole reply.
        known_tools: The tools that there are.
        fenced: Whether lines in code fences count.
        one_line: Whether a call is what its first line says, as in the document.
    """
    lines = text.splitlines(keepends=True)
    bounds = list(accumulate(map(len, lines), initial=0))
    calls: list[TextCall] = []
    index, fence = 0, ""
    while index < len(lines):
        line = lines[index]
        if not line.lstrip().startswith(TOOL_PREFIX) or (fence and not fenced):
            fence, index = fence_after(line, fence), index + 1
            continue
        after = bisect_left(bounds, _call_end(text, bounds[index], bounds[index + 1]))
        source = line if one_line else text[bounds[index] : bounds[after]]
        calls.append(_read_call(source, index + 1, known_tools, source.splitlines()[0])._replace(end_line=after))
        index = after
    return calls


def without_lines(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    """The text in which the lines of these ranges, both ends included, are blank: all lines keep their numbers."""
    lines = text.splitlines(keepends=True)
    for first, last in ranges:
        lines[first - 1 : last] = ["\n"] * len(lines[first - 1 : last])
    return "".join(lines)


def format_extraction_errors(errors: Sequence[ExtractionError]) -> str:
    """The errors for display and logs, "" for none. Source: spec 1 section 1.2."""
    if not errors:
        return ""
    lines = ["Tool Extraction Errors:"]
    for error in errors:
        lines.append(f"  Line {error.line_number}: [{error.error_type.name}]")
        lines.append(f"    Content: {error.line_content[:80]}...")
        lines.append(f"    Details: {error.details}")
    return "\n".join(lines)


def fence_after(line: str, fence: str) -> str:
    """The code fence that is open after `line`, given the one open before it ("" for none). Source: CommonMark 4.5."""
    match = _FENCE.match(line)
    if match is None:
        return fence
    marks, info = match.groups()
    if not fence:
        is_inline_code = marks[0] == "`" and "`" in info
        return "" if is_inline_code else marks
    closes = marks.startswith(fence) and not info.strip()
    return "" if closes else fence


def _read_call(source: str, line_number: int, known_tools: frozenset[str], line: str) -> TextCall:
    def broken(kind: ExtractionErrorType, details: str, tool: str = "", raw: str = "") -> TextCall:
        error = ExtractionError(kind, line_number, line, details)
        return TextCall(line_number, tool, raw, error, line_number)

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
    arguments = decode_arguments(raw.strip())
    if isinstance(arguments, ArgumentProblem):
        return broken(arguments.kind, arguments.details, name, raw)
    return TextCall(line_number, name, raw, ToolInvocation(name, arguments, line_number), line_number)


def _call_end(text: str, line_start: int, line_end: int) -> int:
    """Where the call that starts at `line_start` ends: at least at its line's end, at most at the text's.

    A call whose JSON is broken is its line alone. A string that is never closed runs to the end of the text: what
    stands in it is content that must not run.
    """
    paren = text.find("(", line_start, line_end)
    start = _JSON_START.match(text, paren) if paren >= 0 else None
    end = json_end(text, start.end()) if start else None
    if end is None:
        return line_end
    closing = _CLOSING_PAREN.match(text, end)
    return max(line_end, closing.end() if closing else end)


def json_end(text: str, start: int) -> int | None:
    """Just after the bracket that closes the one at `start`; None where brackets and strings are no JSON.

    The end of the text if a string is never closed. Many broken calls cost linear time together: a scan ends where it
    meets the `(` of a later call outside a string, and one that passes it inside a string is from there on always on
    the other side of a quote than the later call's own scan, so that one of the two ends at the next call.
    """
    position, depth = start, 0
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


# --- How results go back: spec 1's lines, or one JSON text for each native call

_RESULT: Final = "tool_result("
_LINE_BREAKING_OR_UNSENDABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def render_text_results(results: Sequence[CallResult]) -> str:
    """One `tool_result({...})` line for each result, in order, "tool" first, then spec 2's envelope.

    Every line break, control character and lone surrogate is escaped, so a result is always one line that can be
    sent and stored.
    """
    return "\n".join(f"{_RESULT}{_compact({'tool': result.tool, **result.result.as_map()})})" for result in results)


def render_native_result(result: CallResult) -> str:
    """The content of the tool message: the envelope as compact JSON, without the tool's name."""
    return _compact(result.result.as_map())


def parse_text_results(text: str) -> list[JsonMap]:
    """The maps that `render_text_results` rendered, in order; lines that are no such result are passed over."""
    results = []
    for line in text.split("\n"):
        if line.startswith(_RESULT) and line.endswith(")"):
            try:
                value = json.loads(line[len(_RESULT) : -1])
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                results.append(value)
    return results


def _compact(value: JsonMap) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _LINE_BREAKING_OR_UNSENDABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


MISSED: Final = "old_str does not occur in"

"""How the error of such an edit begins, after what multi_edit says of the edits before."""

WHOLE_FORM_AFTER: Final = 2

"""Misses on one file in one turn after which the whole file is asked for: who cannot quote it can still write it."""


def is_miss(error: ToolError | None) -> bool:
    """Whether an edit failed because its old text is not in the file."""
    return error is not None and error.code is ToolErrorCode.INVALID_ARGUMENT and MISSED in error.message


def miss_advice(path: str, misses: int) -> str:
    """What is added to the error of the last of so many misses on this file, "" where nothing is yet.

    It names the form that needs no old text. The file is read first, as write_file replaces only what was read.
    """
    if misses < WHOLE_FORM_AFTER:
        return ""
    return (
        f"That is miss {misses} on {path} in this turn: read_file it, then give its whole new text with write_file"
        " instead of old_str and new_str."
    )
