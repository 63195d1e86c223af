"""Spec 1's text protocol: a call is a line `tool: NAME({json})`.

Beyond the spec's one-line form, the JSON may hold any character, line breaks included, so a call can span lines; what
stands inside it, and inside fenced code blocks, is never taken for another call. A call may leave its one long text to
the fenced block after it (`body_blocks`). Reading is linear in the reply.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from nodes.language.body_blocks import BODY_ARGUMENTS, missing_argument, read_body, with_body
from nodes.language.closest import closest_names
from nodes.language.json_arguments import ArgumentProblem, excerpt
from nodes.language.repeated_edits import decode_call
from nodes.records import ExtractionError, ExtractionErrorType, ToolInvocation

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
    """One call at its place in the reply, from `line_number` to `end_line`, its block included.

    `raw_arguments` is the exact text between the parentheses, `body` that of the block which gives what they lack.
    """

    line_number: int
    tool: str
    raw_arguments: str
    outcome: ExtractionResult
    end_line: int
    body: str | None = None


def parse_tool_line(line: str, line_number: int, known_tools: frozenset[str]) -> ExtractionResult:
    """Read one call; never raises.

    The order of the checks (prefix, opening parenthesis, name, known tool, closing parenthesis, JSON) and the texts
    are the spec's; quoted parts of the line are cut to 200 characters. Source: spec 1 section 1.2.
    """
    return _read_call(line, line_number, known_tools).outcome


def extract_tool_invocations_with_errors(
    text: str, known_tools: frozenset[str]
) -> tuple[list[ToolInvocation], list[ExtractionError]]:
    """All calls of a reply and all errors, each in the order of the reply. Source: spec 1 section 1.2."""
    outcomes = [call.outcome for call in extract_in_order(text, known_tools)]
    return (
        [outcome for outcome in outcomes if isinstance(outcome, ToolInvocation)],
        [outcome for outcome in outcomes if isinstance(outcome, ExtractionError)],
    )


def extract_in_order(
    text: str, known_tools: frozenset[str], bodies: Mapping[str, str] = BODY_ARGUMENTS
) -> list[TextCall]:
    """All calls of a reply, well-formed or not, in order; [] for a reply without `tool:` lines outside fences.

    `bodies` names for a tool the argument that it takes from the fenced block after its line.
    """
    lines = text.splitlines(keepends=True)
    bounds = list(accumulate(map(len, lines), initial=0))
    calls: list[TextCall] = []
    index, fence = 0, ""
    while index < len(lines):
        before, fence = fence, fence_after(lines[index], fence)
        if before or fence or not lines[index].lstrip().startswith(TOOL_PREFIX):
            index += 1
            continue
        end = _call_end(text, bounds[index], bounds[index + 1])
        after = bisect_left(bounds, end)
        call = _read_call(text[bounds[index] : bounds[after]], index + 1, known_tools)
        call, end = _completed(call, text, bounds[after], bodies)
        index = bisect_left(bounds, end)
        calls.append(call._replace(end_line=index))
    return calls


def without_bodies(text: str, calls: Sequence[TextCall]) -> str:
    """The text in which of each call only the first line is left, the others blank: all lines keep their numbers."""
    lines = text.splitlines(keepends=True)
    for call in calls:
        for index in range(call.line_number, call.end_line):
            lines[index] = "\n" if lines[index].endswith("\n") else ""
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


def unknown_tool_details(name: str, known_tools: frozenset[str]) -> str:
    """The spec's sentence about an unknown tool, with the closest known names where there are any."""
    return _unknown_tool_details(excerpt(name), known_tools)


@lru_cache(maxsize=64)  # a reply that misnames a tool does so on every line
def _unknown_tool_details(name: str, known_tools: frozenset[str]) -> str:
    details = f"Unknown tool '{name}'. Available: {sorted(known_tools)}"
    close = closest_names(name, known_tools)
    return f"{details} Did you mean: {', '.join(close)}?" if close else details


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


def _read_call(source: str, line_number: int, known_tools: frozenset[str]) -> TextCall:
    def broken(kind: ExtractionErrorType, details: str, tool: str = "", raw: str = "") -> TextCall:
        error = ExtractionError(kind, line_number, _first_line(source), details)
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
    call = decode_call(name, raw.strip(), known_tools)
    if isinstance(call, ArgumentProblem):
        return broken(call.kind, call.details, name, raw)
    outcome = ToolInvocation(call.tool, call.arguments, line_number)
    return TextCall(line_number, call.tool, raw, outcome, line_number)


def _first_line(source: str) -> str:
    return source.splitlines()[0] if source else ""


def _completed(call: TextCall, text: str, after: int, bodies: Mapping[str, str]) -> tuple[TextCall, int]:
    """The call with what the block at `after` gives it, if it lacks that, and where what belongs to it ends."""
    outcome = call.outcome
    name = missing_argument(call.tool, outcome.args, bodies) if isinstance(outcome, ToolInvocation) else None
    body = read_body(text, after) if name else None
    if name is None or body is None or isinstance(outcome, ExtractionError):
        return call, after
    if isinstance(body.text, ArgumentProblem):
        line = _first_line(f"{TOOL_PREFIX} {call.tool}({call.raw_arguments})")
        return call._replace(
            outcome=ExtractionError(body.text.kind, call.line_number, line, body.text.details)
        ), body.end
    completed = outcome._replace(args=with_body(outcome.args, name, body.text))
    return call._replace(outcome=completed, body=body.text), body.end


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
