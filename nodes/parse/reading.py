"""The meaning of a reply: calls in order, errors, or an answer. The same for text and native, whole and streamed.

The finish reason is examined first: a reply that was cut, refused or filtered never runs a call. Then each call is read
in order and its arguments are validated; a malformed call keeps its position. A reply without calls is the answer.
"""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.formats.recognition import whole_calls
from mendgraph.nodes.language.text_protocol import ReadCall, extract_in_order, unknown_tool_details, without_lines
from mendgraph.nodes.parse.answers import NOTHING_CHANGED, TurnFacts, paths_to_check
from mendgraph.nodes.parse.native_calls import read_native_calls, repaired_arguments
from mendgraph.nodes.parse.written_calls import read_text_calls, with_line_numbers, with_lines
from mendgraph.nodes.records import (
    Answer,
    CallError,
    ExtractionError,
    ExtractionErrorType,
    FinishReason,
    JsonMap,
    ModelReply,
    Profile,
    Protocol,
    Reading,
    ToolCall,
    ToolInvocation,
)

if TYPE_CHECKING:
    from mendgraph.nodes.language.block_form import BlockReader

ANSWER_TOOL: Final = "final_answer"
CHECKS_TOOL: Final = "run_checks"

MOST_CALLS: Final = 64
"""The maximum number of calls of one reply that run. A model that writes thousands repeats itself, and must see the
first results before it continues.
"""

Item = ToolCall | CallError


class ReplyReading(NamedTuple):
    """The meaning of a reply: `items` are its calls, malformed or not; `errors` those of a malformed reply.

    A malformed reply with calls in `items` has written all of them in another format, and `heal` repairs it. `text`
    replaces the reply's text in the history, unless it is None.
    """

    reading: Reading
    items: list[Item]
    errors: list[ExtractionError]
    answer: Answer | None = None
    text: str | None = None


class Reader(NamedTuple):
    """The properties of a run that reading depends on.

    `validate` returns the canonical arguments of a call, or their problems. `check_answer` returns the problems of an
    answer by the user's schema. `turn` holds facts about the turn, and `judge_answer` returns another objection to an
    answer's text. `blocks` reads the edits of the block form; None in other forms. `offered` are the tools that the
    model is shown; None for all. `paths_of` returns the files that a call names inside of an argument, `schema_of` the
    schema of a tool's arguments. `texts` are the file contents, pages and results that the model has seen; `looking`
    are the read-only tools.
    """

    profile: Profile
    known_tools: frozenset[str]
    validate: Callable[[str, dict[str, Any]], dict[str, Any] | list[str]]
    check_answer: Callable[[Answer], list[str]]
    writing_tools: frozenset[str] = frozenset()
    turn: TurnFacts = TurnFacts()
    judge_answer: Callable[[str], ExtractionError | None] = lambda _: None
    offered: frozenset[str] | None = None
    paths_of: Callable[[ToolCall], Sequence[str]] = lambda _: ()
    schema_of: Callable[[str], JsonMap] = lambda _: {}
    texts: Callable[[], Sequence[str]] = lambda: ()
    looking: frozenset[str] = frozenset()
    blocks: "BlockReader | None" = None

    @property
    def tools(self) -> ToolSchemas:
        """The tools, for reading calls in any format."""
        return ToolSchemas(self.known_tools, self.schema_of)


def read_reply(reply: ModelReply, step: int, reader: Reader) -> ReplyReading:
    """Read one complete reply; never raises. `step` makes generated call ids unique in the thread."""
    error = _broken_reply(reply)
    if error is not None and error.error_type is ExtractionErrorType.THOUGHT_ONLY_REPLY:
        return _thought(reply, step, reader) or _malformed([error])

    if error is not None:
        return _malformed([error])

    calls, prose, text, quotes = _read_calls(reply, step, reader)
    is_terminal = bool(calls) and calls[-1].terminal
    checked = [_checked(call, reader) for call in calls]
    items = with_implied_calls(checked, prose, step, reader, terminal=is_terminal)

    if not items:
        return _judged_answer(reply, quotes, step, reader)

    errors = [item.error for item in items if isinstance(item, CallError)]
    if len(errors) == len(items):
        return ReplyReading(Reading.MALFORMED, items, errors[: MOST_CALLS + 1])  # those beyond all say the same

    formats = [item.format for item in items if isinstance(item, ToolCall) and not item.implied]
    if all(formats):
        return ReplyReading(Reading.MALFORMED, items, [_in_other_format(reply.text, formats[0])], text=text)

    first = items[0]
    if len(items) == 1 and isinstance(first, ToolCall) and first.tool == ANSWER_TOOL:
        return ReplyReading(Reading.ANSWER, items, [], Answer.given(first.arguments))

    return ReplyReading(Reading.CALLS, items, [], text=text)


def _in_other_format(text: str, form: str) -> ExtractionError:
    details = f"The call is written in the format '{form}'. It is read as it is."
    return ExtractionError(ExtractionErrorType.MISSING_TOOL_PREFIX, 0, text[:200], details)


def _thought(reply: ModelReply, step: int, reader: Reader) -> ReplyReading | None:
    """Return the calls at the end of a reply that is only reasoning, if all of them only read; else None."""
    written = read_text_calls(reply.reasoning, reader.tools, reader.texts, answered=False)
    calls = [_checked(call, reader) for call in _numbered(written.last_calls, f"call_{step}", ())]
    if not calls or not all(isinstance(call, ToolCall) and call.tool in reader.looking for call in calls):
        return None

    text = ""
    if reader.profile.protocol is Protocol.TEXT:
        text = with_lines("", written.last_calls)

    error = _in_other_format(reply.reasoning, written.last_calls[0].format)
    return ReplyReading(Reading.MALFORMED, calls, [error], text=text)


def with_implied_calls(
    items: list[Item], prose: str, step: int, reader: Reader, *, terminal: bool = False
) -> list[Item]:
    """Add the implied calls: an answer after complete edits, and checks before an answer.

    A `terminal` reply ends the work with its last call, so an answer follows it (source: spec 4). A final answer with
    an objection is malformed, unless other calls of the reply may still make it true. Calls beyond `MOST_CALLS` are
    malformed.
    """
    details = f"Not run: a reply may hold {MOST_CALLS} calls at most. Send it again."
    too_many = ExtractionError(ExtractionErrorType.TOO_MANY_CALLS, 0, "", details)
    items = [*items[:MOST_CALLS], *(_refused(item, too_many) for item in items[MOST_CALLS:])]

    if not _changed_paths(items, reader):
        items = [_refused_answer(item, reader) for item in items]

    implied = _implied_answer(items, prose, step, reader, terminal=terminal)
    return _with_checks([*items, *implied], step, reader)


def _refused(item: Item, error: ExtractionError) -> CallError:
    return CallError(call_id=item.call_id, tool=item.tool, raw_arguments=item.raw_arguments, error=error)


def _refused_answer(item: Item, reader: Reader) -> Item:
    """Return the call, as malformed if it is a final answer with an objection."""
    if not isinstance(item, ToolCall) or item.tool != ANSWER_TOOL:
        return item

    error = _answer_error(str(item.arguments.get("answer", "")), reader)
    if error is None:
        return item

    return _refused(item, error)


def check_call(call: ToolInvocation, call_id: str, raw_arguments: str, reader: Reader) -> Item:
    """Validate a well-formed call by its tool's schema, and a final answer by the user's schema as well."""
    arguments = reader.validate(call.tool_name, call.args)
    if not isinstance(arguments, dict):
        fitted = repaired_arguments(call, reader.tools, reader.validate)
        if fitted is not None:
            arguments, raw_arguments = fitted

    kind = ExtractionErrorType.INVALID_ARGUMENTS
    problems: list[str] = []

    if not isinstance(arguments, dict):
        problems = arguments
    elif call.tool_name == ANSWER_TOOL:
        kind = ExtractionErrorType.INVALID_ANSWER
        problems = reader.check_answer(Answer.given(arguments))

    if problems or not isinstance(arguments, dict):
        details = f"{call.tool_name}: {'; '.join(problems)}"
        error = ExtractionError(kind, call.line_number, raw_arguments[:200], details)
        return CallError(call_id=call_id, tool=call.tool_name, raw_arguments=raw_arguments, error=error)

    return ToolCall(
        call_id=call_id,
        tool=call.tool_name,
        arguments=arguments,
        raw_arguments=raw_arguments,
        line_number=call.line_number,
    )


def _checked(call: ReadCall, reader: Reader) -> Item:
    if isinstance(call.outcome, ExtractionError):
        error = call.outcome
        if error.error_type is ExtractionErrorType.UNKNOWN_TOOL_NAME and reader.offered is not None:
            error = error._replace(details=unknown_tool_details(call.tool, reader.offered))

        return CallError(call_id=call.call_id, tool=call.tool, raw_arguments=call.raw_arguments, error=error)

    checked = check_call(call.outcome, call.call_id, call.raw_arguments, reader)
    if call.format and isinstance(checked, ToolCall):
        return checked.model_copy(update={"format": call.format})

    return checked


def _broken_reply(reply: ModelReply) -> ExtractionError | None:
    """Return why nothing of a reply may run: its finish reason, or neither text nor calls."""
    kinds = ExtractionErrorType
    finish = reply.finish_reason
    is_empty = not reply.text.strip() and not reply.calls

    if finish is FinishReason.LENGTH:
        kind = kinds.TRUNCATED_REPLY
        when = " while it was still thinking" if is_empty and reply.reasoning else ""
        details = f"The reply was cut at the token limit{when}. Nothing was executed."
    elif finish is FinishReason.REFUSAL:
        kind = kinds.REFUSED_REPLY
        details = f"The model refused: {reply.refusal[:300]}"
    elif finish is FinishReason.CONTENT_FILTER:
        kind = kinds.FILTERED_REPLY
        details = "The endpoint's content filter stopped the reply."
    elif not is_empty:
        return None
    elif reply.reasoning.strip():
        kind = kinds.THOUGHT_ONLY_REPLY
        details = "The reply was only thought: no answer and no tool call."
    else:
        kind = kinds.EMPTY_REPLY
        details = "The reply was empty."

    return ExtractionError(kind, 0, reply.text[:200], details)


def _read_calls(reply: ModelReply, step: int, reader: Reader) -> tuple[list[ReadCall], str, str | None, str]:
    """Return the calls in order, the prose around blocks (in the block form), the text for the history, and quotes.

    Native calls come first or last, as the history needs them; a call of the text that repeats one of them is dropped.
    Blocks in the answer to a question are quotations.
    """
    prefix = f"call_{step}"
    is_native = reader.profile.protocol is Protocol.NATIVE
    blocks = reader.blocks
    edits: list[ReadCall] = []
    prose = ""
    text = reply.text

    if blocks is not None:
        edits, prose, text = _edits(reply.text, blocks, reader)

    native_calls = read_native_calls(reply.calls, reader.tools, prefix)
    answered = any(call.tool == ANSWER_TOOL for call in native_calls)
    native_only = is_native and (bool(native_calls) or blocks is None)
    written = read_text_calls(text, reader.tools, reader.texts, answered=answered, native=native_only)
    native_outcomes = [call.outcome[:2] for call in native_calls]
    calls = [call for call in written.calls if call.outcome[:2] not in native_outcomes]
    history_text = None

    if not edits and any(call.format and isinstance(call.outcome, ToolInvocation) for call in calls):
        if is_native:
            history_text = written.prose
        else:
            history_text = with_lines(written.prose, calls)
            calls = with_line_numbers(written.prose, calls)

    if native_only:
        return [*native_calls, *_numbered(calls, prefix, native_calls)], "", history_text, written.quotes

    if native_calls:
        edits = []

    if calls:
        prose = ""

    if blocks is not None:
        calls = [call for call in calls if not blocks.names_file_of(call, edits)]

    in_order = sorted([*calls, *edits], key=lambda call: call.line_number)
    return [*_numbered(in_order, prefix, native_calls), *native_calls], prose, history_text, written.quotes


def _edits(text: str, blocks: "BlockReader", reader: Reader) -> tuple[list[ReadCall], str, str]:
    """Return the edits of a reply in block form, the prose around them, and the text without their blocks."""
    tool_lines = extract_in_order(text, reader.known_tools, fenced=False)
    if not tool_lines and whole_calls(text, reader.tools):
        return [], "", text

    plain = without_lines(text, [(call.line_number + 1, call.end_line) for call in tool_lines])
    read = blocks.edits(plain)
    edits = []
    edit_lines = []

    for edit, lines in zip(read.calls, read.lines, strict=True):
        if not _holds_call(edit.outcome, reader):
            edits.append(edit)
            edit_lines.append(lines)

    remaining_text = without_lines(text, edit_lines)
    if blocks.is_question:
        return [], "", remaining_text

    return edits, read.prose, remaining_text


def _holds_call(edit: ToolInvocation | ExtractionError, reader: Reader) -> bool:
    """Return whether the new text of a file is a tool call, and the file is only mentioned before it."""
    if isinstance(edit, ExtractionError) or str(edit.args["path"]).endswith((".json", ".md")):
        return False

    return bool(read_text_calls(str(edit.args["content"]), reader.tools, answered=False).calls)


def _numbered(calls: Sequence[ReadCall], prefix: str, others: Sequence[ReadCall]) -> list[ReadCall]:
    """Return the calls with ids `<prefix>_<number>` that no other call has."""
    ids = {call.call_id for call in others}
    numbered = []
    number = 0

    for call in calls:
        while f"{prefix}_{number}" in ids:
            number += 1

        numbered.append(call._replace(call_id=f"{prefix}_{number}"))
        number += 1

    return numbered


def _implied_answer(items: Sequence[Item], prose: str, step: int, reader: Reader, *, terminal: bool) -> list[ToolCall]:
    """Return the answer that a reply implies; its text may be empty, because `stop` lists the changes.

    In the block form a reply that only changes files is the complete work, and its prose is the answer: a small model
    that is asked whether it is done repeats itself. The same holds for a `terminal` reply. The answer counts only if
    every call succeeds, and never if the user requires a value.
    """
    if ANSWER_TOOL not in reader.known_tools or reader.check_answer(Answer(text=prose)) or not items:
        return []

    if not all(isinstance(item, ToolCall) and item.tool != ANSWER_TOOL for item in items):
        return []

    only_edits = all(item.tool in reader.writing_tools for item in items)
    if not terminal and not (only_edits and reader.blocks is not None):
        return []

    if not only_edits and _answer_error(prose, reader) is not None:
        return []

    return [_implied(ANSWER_TOOL, {"answer": prose}, f"call_{step}_answer")]


def _with_checks(items: list[Item], step: int, reader: Reader) -> list[Item]:
    """Insert the checks before an answer in a reply, after everything that they check."""
    tools = [item.tool if isinstance(item, ToolCall) else "" for item in items]
    if ANSWER_TOOL not in tools:
        return items

    paths = paths_to_check(reader.turn, _changed_paths(items, reader))
    if paths is None:
        return items

    place = tools.index(ANSWER_TOOL)
    for index, tool in enumerate(tools):
        if tool in reader.writing_tools:
            place = max(place, index + 1)

    return [*items[:place], _implied_checks(paths, step), *items[place:]]


def _implied_checks(paths: Sequence[str], step: int) -> ToolCall:
    return _implied(CHECKS_TOOL, {"paths": list(paths)}, f"call_{step}_checks")


def _implied(tool: str, arguments: dict[str, Any], call_id: str) -> ToolCall:
    raw_arguments = ""
    if tool == CHECKS_TOOL:
        raw_arguments = json.dumps(arguments, ensure_ascii=False)

    return ToolCall(call_id=call_id, tool=tool, arguments=arguments, raw_arguments=raw_arguments, implied=True)


def _changed_paths(items: Sequence[Item], reader: Reader) -> tuple[str, ...]:
    """Return the files that a reply changes; "a file" stands for unnamed ones."""
    paths: list[str] = []

    for item in items:
        if isinstance(item, ToolCall) and item.tool in reader.writing_tools:
            named = [str(item.arguments[field]) for field in ("path", "target") if field in item.arguments]
            paths += [*named, *reader.paths_of(item)] or ["a file"]

    return tuple(paths)


def _answer_error(answer: str, reader: Reader) -> ExtractionError | None:
    """Return the objection to an answer of a reply that changes nothing itself; None if there is none."""
    error = reader.judge_answer(answer)
    if error is None and reader.turn.change_required and not reader.turn.changed:
        return ExtractionError(ExtractionErrorType.UNFOUNDED_CLAIM, 0, answer[:200], NOTHING_CHANGED)

    return error


def _judged_answer(reply: ModelReply, quotes: str, step: int, reader: Reader) -> ReplyReading:
    """Return the answer, with the checks that must precede it, or its problems. `quotes` is a quoted format."""
    answer = Answer(text=reply.text.strip(), quotes=quotes)
    problems = reader.check_answer(answer)

    if reader.blocks is not None and reader.blocks.shows_file(answer.text):
        problems = [*problems, "this shows a file instead of answering"]

    if problems:
        kind = ExtractionErrorType.INVALID_ANSWER
        return _malformed([ExtractionError(kind, 0, reply.text[:200], "; ".join(problems))])

    error = _answer_error(answer.text, reader)
    if error is not None:
        return _malformed([error])

    paths = paths_to_check(reader.turn)
    if paths is None:
        return ReplyReading(Reading.ANSWER, [], [], answer)

    answer_call = _implied(ANSWER_TOOL, {"answer": answer.text, "value": answer.value}, f"call_{step}_answer")
    return ReplyReading(Reading.CALLS, [_implied_checks(paths, step), answer_call], [])


def _malformed(errors: list[ExtractionError]) -> ReplyReading:
    return ReplyReading(Reading.MALFORMED, [], errors)
