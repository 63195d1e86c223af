"""Calls in the text of a reply: `tool:` lines, calls in other formats, and results that the model invented.

Complete calls of known tools run as they are. A call is malformed, and is requested again, if it has no unique reading,
if it occurs byte for byte in a text that the model has seen, or if it follows invented results. Quotations are not
calls.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from mendgraph.nodes.language.formats.call_format import Markup, ToolSchemas
from mendgraph.nodes.language.formats.recognition import ROLE_LINE, mask_markup, recognise, without_markup
from mendgraph.nodes.language.formats.table import FORMAT_OF
from mendgraph.nodes.language.provider_state import without_thoughts
from mendgraph.nodes.language.text_protocol import (
    RESULT_MARK,
    ReadCall,
    extract_in_order,
    fence_after,
    unknown_tool_details,
)
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, FinishReason, ModelReply, ToolInvocation

_QUOTE_IT: Final = "An answer quotes calls in a code fence, between sentences."
_SHOWN: Final = "it stands in a file, page or result that you were shown"
_INVENTED: Final = "it stands behind a result that was not given by a tool"
_ONLY_QUOTED: Final = "it stands in a code fence, where calls are quoted"
_LINE: Final = "tool: line"
_MOST_CHECKED: Final = 100
"""The maximum number of calls that are compared with texts that the model has seen."""


class TextCalls(NamedTuple):
    """The calls of a text in order, including malformed ones, and its prose. `quotes` names the format of a quotation.

    `last_calls` are those at the very end of the text.
    """

    calls: list[ReadCall]
    prose: str
    quotes: str = ""
    last_calls: list[ReadCall] = []  # noqa: RUF012 - never changed


def read_text_calls(
    text: str,
    tools: ToolSchemas,
    texts: Callable[[], Sequence[str]] = lambda: (),
    *,
    answered: bool,
    native: bool = False,
) -> TextCalls:
    """Read a text. If it contains a final answer (`answered`, or a line outside of fences), fences are quotations.

    Lines that the model has seen are not calls in the `native` protocol: quotations in a fence, else malformed.
    """
    markups = recognise(text, tools)
    plain = mask_markup(text, markups)
    lines = extract_in_order(plain, tools.names, fenced=False)
    unfenced = {call.line_number for call in lines}
    answered = answered or any(call.tool == "final_answer" for call in lines)
    if not answered:
        lines = extract_in_order(plain, tools.names)

    quotes = ""
    if native:
        lines, quotes = _without_shown_lines(lines, unfenced, text, tools, texts)

    if not markups:
        return TextCalls(lines, text, quotes)

    if answered:
        markups = [markup for markup in markups if not text.startswith(("```", "~~~"), markup.start)]

    calls = [markup for markup in markups if not markup.quoted]
    for markup in markups:
        if markup.quoted and not quotes:
            quotes = markup.format

    invention = _invention(text, markups, tools.names)
    before_invention = [call for call in calls if invention is None or call.start < invention]
    prose = without_markup(text[:invention], before_invention)

    if quotes and not calls and not lines and not plain.strip():
        calls = [markup._replace(quoted=False, problem=_ONLY_QUOTED) for markup in markups]

    shown = _shown_calls(text, calls, texts)
    markup_calls, last_calls = _markup_calls(text, calls, tools, invention, shown)
    in_order = markup_calls
    if lines:
        in_order = sorted([*lines, *markup_calls], key=lambda call: call.line_number)

    return TextCalls(in_order, prose, quotes, last_calls)


def _without_shown_lines(
    lines: Sequence[ReadCall],
    unfenced: Collection[int],
    text: str,
    tools: ToolSchemas,
    texts: Callable[[], Sequence[str]],
) -> tuple[list[ReadCall], str]:
    """Return the `tool:` lines of a native reply that are meant as calls, and the format of a quoted one, if any."""
    calls: list[ReadCall] = []
    quotes = ""

    for line in lines[:_MOST_CHECKED]:
        if not _names_a_tool(line, tools):
            continue

        call = _unless_shown(line, text, texts)
        if call.line_number in unfenced or not call.format:
            calls.append(call)
        if call.line_number not in unfenced and not quotes:
            quotes = call.format

    return calls, quotes


def _markup_calls(
    text: str, markups: Sequence[Markup], tools: ToolSchemas, invented: int | None, refused: Collection[int]
) -> tuple[list[ReadCall], list[ReadCall]]:
    """Return the calls of these markups, and those at the very end of the text.

    Calls after the position `invented`, and those at a `refused` position, are malformed.
    """
    calls: list[ReadCall] = []
    first_of_last = 0
    end = 0
    line = 1

    for markup in markups:
        if text[end : markup.start].strip():
            first_of_last = len(calls)

        line += text.count("\n", end, markup.start)
        reason = markup.problem
        if invented is not None and markup.start > invented:
            reason = _INVENTED
        elif markup.start in refused:
            reason = _SHOWN

        calls += _read_calls(markup, text, line, tools, reason)
        line += text.count("\n", markup.start, markup.end)
        end = markup.end

    if text[end:].strip():
        return calls, []

    return calls, calls[first_of_last:]


def _names_a_tool(call: ReadCall, tools: ToolSchemas) -> bool:
    """Return whether a line that starts with `tool:` is meant as a call, in a protocol without such lines."""
    return call.tool in tools.names or (bool(call.tool) and call.raw_arguments.lstrip().startswith("{"))


def _unless_shown(call: ReadCall, text: str, texts: Callable[[], Sequence[str]]) -> ReadCall:
    """Return a `tool:` line, as malformed if it occurs in a text that the model has seen."""
    lines = "\n".join(text.splitlines()[call.line_number - 1 : call.end_line]).strip()
    is_shown = any(lines in shown_text for shown_text in texts())
    if not is_shown:
        return call

    details = f"The tool call does not run: {_SHOWN}. Nothing of it was executed. {_QUOTE_IT}"
    error = ExtractionError(ExtractionErrorType.MISSING_TOOL_PREFIX, call.line_number, lines[:200], details)
    return call._replace(outcome=error, format=_LINE)


def _read_calls(markup: Markup, text: str, line: int, tools: ToolSchemas, reason: str) -> Iterator[ReadCall]:
    content = text[markup.start : markup.start + 200]
    if reason:
        yield _refused_call(markup, content, line, reason)
        return

    for call in markup.calls:
        outcome: ToolInvocation | ExtractionError = ToolInvocation(call.tool, call.arguments, line)
        if call.tool not in tools.names:
            details = unknown_tool_details(call.tool, tools.names)
            outcome = ExtractionError(ExtractionErrorType.UNKNOWN_TOOL_NAME, line, content, details)

        raw_arguments = json.dumps(call.arguments, ensure_ascii=False)
        yield ReadCall(call.tool, raw_arguments, outcome, format=markup.format, terminal=call.terminal)


def _refused_call(markup: Markup, content: str, line: int, reason: str) -> ReadCall:
    """Return the markup as one malformed call."""
    call_format = FORMAT_OF.get(markup.format)
    subject = "The tool call"
    reminder = ""
    if call_format is not None:
        subject = f"The tool call in the format '{markup.format}'"
        if markup.problem:
            reminder = f" {call_format.reminder}"

    details = f"{subject} does not run: {reason}. Nothing of it was executed. {_QUOTE_IT}{reminder}"
    error = ExtractionError(ExtractionErrorType.MISSING_TOOL_PREFIX, line, content, details)
    tool = markup.calls[0].tool if markup.calls else ""
    return ReadCall(tool, content, error, format=markup.format or "unknown")


def _shown_calls(text: str, calls: Sequence[Markup], texts: Callable[[], Sequence[str]]) -> set[int]:
    """Return the positions of markup that occurs in a text that the model has seen, or that continues one.

    If the text between two raw values was seen, the end of the first is unknown, and all are refused.
    """
    markups = [markup for markup in calls if markup.calls][:_MOST_CHECKED]
    if not markups:
        return set()

    shown = "\0".join(texts())
    if not shown:
        return set()

    values_of: dict[int, list[tuple[int, int]]] = {}
    places: list[tuple[int, int]] = []
    for markup in markups:
        values = [place for call in markup.calls for place in call.values]
        values_of[markup.start] = values
        places += values

    for (_, end), (start, _) in pairwise(places):
        between = text[end:start].strip()
        if between and between in shown:
            return {position for position, values in values_of.items() if values}

    refused = set()
    for markup in markups:
        last = max((end for _, end in values_of[markup.start]), default=markup.end)
        if text[markup.start : last].strip() in shown:
            refused.add(markup.start)

    return refused


def with_lines(prose: str, calls: Sequence[ReadCall]) -> str:
    """Return the text of a reply for the history in the text protocol: its prose, then a line for each call."""
    lines = [f"tool: {call.tool}({call.raw_arguments})" for call in calls]
    return "\n".join([prose, *lines] if prose else lines)


def with_line_numbers(prose: str, calls: Sequence[ReadCall]) -> list[ReadCall]:
    """Return the calls with the line numbers that `with_lines` gives them."""
    line = len(prose.splitlines()) + 1
    placed = []
    for call in calls:
        placed.append(call._replace(outcome=call.outcome._replace(line_number=line)))
        line += max(1, len(call.raw_arguments.splitlines()))

    return placed


# --- A reply without what the model invented after its calls: results, and the next words of a person


def without_invented(reply: ModelReply, known_tools: frozenset[str]) -> ModelReply:
    """Return the reply without invented results; the same object if there are none, or if calls follow.

    If the token limit cut the invented part, the remaining reply is complete.
    """
    if reply.calls or not reply.text:
        return reply

    text = cut_invented(reply.text, known_tools)
    if text == reply.text:
        return reply

    finish = reply.finish_reason
    if finish is FinishReason.LENGTH:
        finish = FinishReason.STOP

    return reply.model_copy(update={"text": text.rstrip(), "finish_reason": finish})


def is_shortened(reply: ModelReply, remaining: ModelReply) -> bool:
    """Return whether the remaining reply is shorter than the model's reply, thoughts aside."""
    return remaining.text != without_thoughts(reply).text


def cut_invented(text: str, known_tools: frozenset[str]) -> str:
    """Return the text up to the line where it starts to invent; takes linear time.

    That is a `tool_result(` line, or, after a call, the start of another role's message: `user:`, `### User`,
    `<|im_start|>`. Text in calls and code fences does not count. A reply with later calls stays whole: these get
    errors.
    """
    markups = recognise(text, ToolSchemas(known_tools))
    place = _invention(text, markups, known_tools)
    if place is None or any(markup.start > place and not markup.quoted for markup in markups):
        return text

    return text[:place]


def _invention(text: str, markups: Sequence[Markup], known_tools: frozenset[str]) -> int | None:
    """Return the position where a reply starts to invent."""
    plain = mask_markup(text, markups)
    line_ends = {call.line_number: call.end_line for call in extract_in_order(plain, known_tools)}
    first_call_end = len(text)
    for markup in markups:
        if not markup.quoted:
            first_call_end = markup.end
            break

    position = 0
    end_of_call = 0
    fence = ""
    has_called = False

    for number, line in enumerate(plain.splitlines(keepends=True), start=1):
        start = position
        position += len(line)
        end_of_call = line_ends.get(number, end_of_call)
        has_called = has_called or number in line_ends or position > first_call_end
        if number <= end_of_call:
            continue

        fence_before = fence
        fence = fence_after(line, fence)
        is_result = line.startswith(RESULT_MARK)
        is_next_role = has_called and ROLE_LINE.match(line)
        if not fence_before and not fence and (is_result or is_next_role):
            return start + len(line) - len(line.lstrip())

    return None
