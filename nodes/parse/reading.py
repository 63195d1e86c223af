"""What a reply means: calls in order, errors, or an answer. One verdict for text and native, whole or streamed.

The finish reason is judged before anything else: a reply that was cut, refused or filtered never runs a call, however
complete its calls look. Then each call is read, in order, and its arguments are checked against its tool's schema;
a malformed call keeps its place among the others, and so does one that is written in a form that does not run. A reply
with nothing to call is the answer.
"""

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from mendgraph.nodes.language.blocks import EDIT_TOOL, read_blocks
from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.formats.recognition import whole_calls
from mendgraph.nodes.language.names import is_question, named_paths
from mendgraph.nodes.language.text_protocol import ReadCall, extract_in_order, unknown_tool_details, without_lines
from mendgraph.nodes.parse.answers import NOTHING_CHANGED, TurnFacts, paths_to_check
from mendgraph.nodes.parse.native_calls import fitting, read_native_calls
from mendgraph.nodes.parse.written_calls import on_their_lines, read_written, with_lines
from mendgraph.nodes.records import (
    Answer,
    CallError,
    EditForm,
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

ANSWER_TOOL = "final_answer"
CHECKS_TOOL = "run_checks"

MOST_CALLS: Final = 64
"""Calls of one reply that are run. The results of more would not be looked at one by one, and a reply that has
thousands is a model that repeats itself: what it sees of the first ones has to come before the next ones."""


class ReplyReading(NamedTuple):
    """What `parse` found. `items` are the calls and malformed calls in order; `errors` those of a malformed reply.

    A malformed reply with calls among its items has written all of them in another format, and `heal` repairs it.
    `text` is what the history has of such a reply, None where it has the reply as it is.
    """

    reading: Reading
    items: list[ToolCall | CallError]
    errors: list[ExtractionError]
    answer: Answer | None = None
    text: str | None = None


class Reader(NamedTuple):
    """What reading needs to know of this run.

    `validate` checks arguments against a tool's schema: the canonical arguments, or what is wrong with them.
    `check_answer` checks a final answer against the user's schema: what is wrong with it, or nothing.
    `shown_files` are those that the model was shown in this turn, for the block form, where a small model answers by
    their names. `turn` is what is known of the turn, and `judge_answer` says what else speaks against an answer's text.
    `offered` are the tools that the model is told of, None means all.
    `paths_of` gives the files that a call names inside of an argument, `schema_of` the schema of a tool's arguments.
    `texts` are those that the model was shown in files, pages and results, and `looking` the tools that only read.
    """

    profile: Profile
    known_tools: frozenset[str]
    validate: Callable[[str, dict[str, Any]], dict[str, Any] | list[str]]
    check_answer: Callable[[Answer], list[str]]
    writing_tools: frozenset[str] = frozenset()
    shown_files: tuple[str, ...] = ()
    turn: TurnFacts = TurnFacts()
    judge_answer: Callable[[str], ExtractionError | None] = lambda _: None
    offered: frozenset[str] | None = None
    paths_of: Callable[[ToolCall], Sequence[str]] = lambda _: ()
    schema_of: Callable[[str], JsonMap] = lambda _: {}
    texts: Callable[[], Sequence[str]] = lambda: ()
    looking: frozenset[str] = frozenset()

    @property
    def tools(self) -> ToolSchemas:
        """What reading a call in any format needs to know of the tools."""
        return ToolSchemas(self.known_tools, self.schema_of)


def read_reply(reply: ModelReply, step: int, reader: Reader) -> ReplyReading:
    """Read one complete reply. Never raises; `step` makes the ids of calls that have none unique in the thread."""
    if (broken := _broken_reply(reply)) is not None:
        thought = None
        if broken.error_type is ExtractionErrorType.THOUGHT_ONLY_REPLY:
            thought = _thought(reply, step, reader)

        return thought or _malformed([broken])

    calls, prose, text, quotes = _read_calls(reply, step, reader)
    terminal = bool(calls) and calls[-1].terminal
    items = completed([_checked(call, reader) for call in calls], prose, step, reader, terminal=terminal)

    if not items:
        return _judged_answer(reply, quotes, step, reader)

    if all(isinstance(item, CallError) for item in items):
        items_read = items[: MOST_CALLS + 1]  # what is beyond says the same of each
        return ReplyReading(
            Reading.MALFORMED, items, [item.error for item in items_read if isinstance(item, CallError)]
        )

    formats = [item.format for item in items if isinstance(item, ToolCall) and not item.implied]
    if all(formats):
        return ReplyReading(Reading.MALFORMED, items, [_in_other_format(reply.text, formats[0])], text=text)

    only = items[0]
    if len(items) == 1 and isinstance(only, ToolCall) and only.tool == ANSWER_TOOL:
        return ReplyReading(Reading.ANSWER, items, [], Answer.given(only.arguments))

    return ReplyReading(Reading.CALLS, items, [], text=text)


def _in_other_format(text: str, form: str) -> ExtractionError:
    details = f"The call is written in the format '{form}'. It is read as it is."
    return ExtractionError(ExtractionErrorType.MISSING_TOOL_PREFIX, 0, text[:200], details)


def _thought(reply: ModelReply, step: int, reader: Reader) -> ReplyReading | None:
    """The calls at the very end of a reply that only thought, if all of them only read; None for any others."""
    written = read_written(reply.reasoning, reader.tools, reader.texts, answered=False)
    calls = [_checked(call, reader) for call in _numbered(written.last_calls, f"call_{step}", ())]
    if not calls or not all(isinstance(call, ToolCall) and call.tool in reader.looking for call in calls):
        return None

    text = ""
    if reader.profile.protocol is Protocol.TEXT:
        text = with_lines("", written.last_calls)

    error = _in_other_format(reply.reasoning, written.last_calls[0].format)
    return ReplyReading(Reading.MALFORMED, calls, [error], text=text)


def completed(
    items: list[ToolCall | CallError], prose: str, step: int, reader: Reader, *, terminal: bool = False
) -> list[ToolCall | CallError]:
    """The calls of a reply with those that it implies: an answer after whole edits, and checks before an answer.

    A `terminal` reply ends the work with its last call, so an answer follows it. Source: spec 4.

    A final answer that something speaks against is malformed, unless calls beside it may still make it true. Calls
    beyond `MOST_CALLS` are malformed as well.
    """
    too_many = f"Not run: a reply may hold {MOST_CALLS} calls at most. Send it again."
    one_too_many = ExtractionError(ExtractionErrorType.TOO_MANY_CALLS, 0, "", too_many)
    items = [*items[:MOST_CALLS], *(_refused(item, one_too_many) for item in items[MOST_CALLS:])]

    if not _changing(items, reader):
        for place, item in enumerate(items):
            if isinstance(item, ToolCall) and item.tool == ANSWER_TOOL:
                error = _answer_error(str(item.arguments.get("answer", "")), reader)
                items[place] = _refused(item, error) if error else item

    implied = _implied_answer(items, prose, step, reader, terminal=terminal)
    return _with_checks([*items, *implied], step, reader)


def _refused(item: ToolCall | CallError, error: ExtractionError) -> CallError:
    return CallError(call_id=item.call_id, tool=item.tool, raw_arguments=item.raw_arguments, error=error)


def check_call(call: ToolInvocation, call_id: str, raw_arguments: str, reader: Reader) -> ToolCall | CallError:
    """Check one well-formed call against its tool's schema, and a final answer against the user's as well."""
    checked = reader.validate(call.tool_name, call.args)
    if not isinstance(checked, dict):
        other = fitting(call, reader.tools, reader.validate)
        checked, raw_arguments = other or (checked, raw_arguments)

    kind = ExtractionErrorType.INVALID_ARGUMENTS
    problems = checked

    if isinstance(checked, dict):
        kind = ExtractionErrorType.INVALID_ANSWER

        if call.tool_name == ANSWER_TOOL:
            problems = reader.check_answer(Answer.given(checked))
        else:
            problems = []

    if problems or not isinstance(checked, dict):
        details = f"{call.tool_name}: " + "; ".join(problems)
        error = ExtractionError(kind, call.line_number, raw_arguments[:200], details)
        return CallError(call_id=call_id, tool=call.tool_name, raw_arguments=raw_arguments, error=error)

    return ToolCall(
        call_id=call_id,
        tool=call.tool_name,
        arguments=checked,
        raw_arguments=raw_arguments,
        line_number=call.line_number,
    )


def _checked(call: ReadCall, reader: Reader) -> ToolCall | CallError:
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
    kinds = ExtractionErrorType
    finish = reply.finish_reason
    said_nothing = not reply.text.strip() and not reply.calls

    if finish is FinishReason.LENGTH:
        when = ""
        if said_nothing and reply.reasoning:
            when = " while it was still thinking"

        broken = kinds.TRUNCATED_REPLY, f"The reply was cut at the token limit{when}. Nothing was executed."
    elif finish is FinishReason.REFUSAL:
        broken = kinds.REFUSED_REPLY, f"The model refused: {reply.refusal[:300]}"
    elif finish is FinishReason.CONTENT_FILTER:
        broken = kinds.FILTERED_REPLY, "The endpoint's content filter stopped the reply."
    elif not said_nothing:
        return None
    elif reply.reasoning.strip():
        broken = kinds.THOUGHT_ONLY_REPLY, "The reply was only thought: no answer and no tool call."
    else:
        broken = kinds.EMPTY_REPLY, "The reply was empty."

    return ExtractionError(broken[0], 0, reply.text[:200], broken[1])


def _read_calls(reply: ModelReply, step: int, reader: Reader) -> tuple[list[ReadCall], str, str | None, str]:
    """The calls of a reply in order, in the block form the prose around its blocks, the text for the history, quotes.

    Native calls come first or last, as the history needs them; a call of the text that is one of them is no second one.
    Blocks in the answer to a question are quotations: who asks wants nothing changed.
    """
    prefix = f"call_{step}"
    native_protocol = reader.profile.protocol is Protocol.NATIVE
    blocks = reader.profile.edit_form is EditForm.BLOCKS
    edits, prose, text = _edits(reply.text, reader) if blocks else ([], "", reply.text)
    native = read_native_calls(reply.calls, reader.tools, prefix)

    answered = any(call.tool == ANSWER_TOOL for call in native)
    plain = native_protocol and (bool(native) or not blocks)
    written = read_written(text, reader.tools, reader.texts, answered=answered, native=plain)
    outcomes = [call.outcome[:2] for call in native]
    calls = [call for call in written.calls if call.outcome[:2] not in outcomes]
    text_kept = None

    if any(call.format and isinstance(call.outcome, ToolInvocation) for call in calls) and not edits:
        if native_protocol:
            text_kept = written.prose
        else:
            text_kept = with_lines(written.prose, calls)

    if text_kept is not None and not native_protocol:
        calls = on_their_lines(written.prose, calls)

    if plain:
        return [*native, *_numbered(calls, prefix, native)], "", text_kept, written.quotes

    edits = edits if not native else []
    said = prose if not calls else ""
    calls = [call for call in calls if not _is_heading(call, [edit.outcome for edit in edits], reader)]
    in_order = sorted([*calls, *edits], key=lambda call: call.line_number)

    return [*_numbered(in_order, prefix, native), *native], said, text_kept, written.quotes


def _edits(text: str, reader: Reader) -> tuple[list[ReadCall], str, str]:
    """The edits of a reply in block form, the prose around them, and the text without their blocks."""
    extracted = extract_in_order(text, reader.known_tools, fenced=False)
    if not extracted and whole_calls(text, reader.tools):
        return [], "", text

    plain = without_lines(text, [(call.line_number + 1, call.end_line) for call in extracted])
    blocks = read_blocks(plain, reader.shown_files, reader.turn.request or None)
    pairs = zip(blocks.outcomes, blocks.lines, strict=True)
    edits_taken = [(edit, lines) for edit, lines in pairs if not _holds_call(edit, reader)]
    remaining_text = without_lines(text, [lines for _, lines in edits_taken])

    if is_question(reader.turn.request):
        return [], "", remaining_text

    edits = []

    for edit, _ in edits_taken:
        if isinstance(edit, ExtractionError):
            body = edit.line_content
        else:
            body = str(edit.args["content"])

        edits.append(ReadCall(EDIT_TOOL, body, edit))

    return edits, blocks.prose, remaining_text


def _holds_call(edit: ToolInvocation | ExtractionError, reader: Reader) -> bool:
    """Whether the new text of a file is a call, and the file's name only stands in a sentence before it."""
    if isinstance(edit, ExtractionError) or str(edit.args["path"]).endswith((".json", ".md")):
        return False
    return bool(read_written(str(edit.args["content"]), reader.tools, answered=False).calls)


def _is_heading(line: ReadCall, edits: Sequence[ToolInvocation | ExtractionError], reader: Reader) -> bool:
    """Whether a call only names the file whose new text the reply gives, or would read what is known already."""
    if not edits or not isinstance(line.outcome, ToolInvocation) or line.outcome.args.keys() != {"path"}:
        return False

    path = line.outcome.args["path"]
    is_shown = line.tool == "read_file" and (path in reader.shown_files or path in named_paths(reader.turn.request))
    return is_shown or any(isinstance(edit, ToolInvocation) and edit.args["path"] == path for edit in edits)


def _numbered(calls: Sequence[ReadCall], prefix: str, others: Sequence[ReadCall]) -> list[ReadCall]:
    ids = {call.call_id for call in others}
    free = (name for index in count() if (name := f"{prefix}_{index}") not in ids)
    return [call._replace(call_id=call_id) for call, call_id in zip(calls, free, strict=False)]


def _implied_answer(
    items: list[ToolCall | CallError], prose: str, step: int, reader: Reader, *, terminal: bool
) -> list[ToolCall]:
    """The answer that a reply implies, without a word where it has none: `stop` says what was changed.

    In the block form a reply that does nothing but change files is the whole work, and its prose the answer: a small
    model that is asked whether it is done does the same again. So is a `terminal` reply. The answer stands only if
    every call worked, and never where the user wants a value of a certain shape.
    """
    if ANSWER_TOOL not in reader.known_tools or reader.check_answer(Answer(text=prose)) or not items:
        return []
    if not all(isinstance(item, ToolCall) and item.tool != ANSWER_TOOL for item in items):
        return []

    edits = all(item.tool in reader.writing_tools for item in items)
    if not terminal and not (edits and reader.profile.edit_form is EditForm.BLOCKS):
        return []
    if not edits and _answer_error(prose, reader) is not None:
        return []

    return [_implied(ANSWER_TOOL, {"answer": prose}, f"call_{step}_answer")]


def _with_checks(items: list[ToolCall | CallError], step: int, reader: Reader) -> list[ToolCall | CallError]:
    """The calls of a reply and, where an answer is among them, the checks of what they change, after all of that."""
    tools = [item.tool if isinstance(item, ToolCall) else "" for item in items]
    paths = None
    if ANSWER_TOOL in tools:
        paths = paths_to_check(reader.turn, _changing(items, reader))

    if paths is None:
        return items

    written = [at + 1 for at, tool in enumerate(tools) if tool in reader.writing_tools]
    place = max(tools.index(ANSWER_TOOL), *written, 0)
    return [*items[:place], _implied_checks(paths, step), *items[place:]]


def _implied_checks(paths: Sequence[str], step: int) -> ToolCall:
    return _implied(CHECKS_TOOL, {"paths": list(paths)}, f"call_{step}_checks")


def _implied(tool: str, arguments: dict[str, Any], call_id: str) -> ToolCall:
    raw = ""
    if tool == CHECKS_TOOL:
        raw = json.dumps(arguments, ensure_ascii=False)

    return ToolCall(call_id=call_id, tool=tool, arguments=arguments, raw_arguments=raw, implied=True)


def _changing(items: Sequence[ToolCall | CallError], reader: Reader) -> tuple[str, ...]:
    changes = [item for item in items if isinstance(item, ToolCall) and item.tool in reader.writing_tools]
    return tuple(path for call in changes for path in [*_named(call), *reader.paths_of(call)] or ["a file"])


def _named(call: ToolCall) -> list[str]:
    return [str(call.arguments[field]) for field in ("path", "target") if field in call.arguments]


def _answer_error(answer: str, reader: Reader) -> ExtractionError | None:
    """What speaks against an answer of a reply that changes nothing itself; None where nothing does."""
    missing = reader.turn.change_required and not reader.turn.changed
    required = ExtractionError(ExtractionErrorType.UNFOUNDED_CLAIM, 0, answer[:200], NOTHING_CHANGED)
    return reader.judge_answer(answer) or (required if missing else None)


def _judged_answer(reply: ModelReply, quotes: str, step: int, reader: Reader) -> ReplyReading:
    """An answer that nothing speaks against, or with the checks that it has to wait for. It `quotes` a format."""
    answer = Answer(text=reply.text.strip(), quotes=quotes)
    problems = reader.check_answer(answer)

    if reader.profile.edit_form is EditForm.BLOCKS:
        blocks = read_blocks(answer.text, reader.shown_files)
        asked_of = (f"/{answer.text.strip('`*: ')}".endswith(f"/{path}") for path in named_paths(reader.turn.request))
        if (blocks.outcomes and not blocks.prose) or any(asked_of):
            problems = [*problems, "this shows a file instead of answering"]

    if problems:
        kind = ExtractionErrorType.INVALID_ANSWER
        return _malformed([ExtractionError(kind, 0, reply.text[:200], "; ".join(problems))])

    if error := _answer_error(answer.text, reader):
        return _malformed([error])

    paths = paths_to_check(reader.turn)
    if paths is None:
        return ReplyReading(Reading.ANSWER, [], [], answer)

    answer_call = _implied(ANSWER_TOOL, {"answer": answer.text, "value": answer.value}, f"call_{step}_answer")
    return ReplyReading(Reading.CALLS, [_implied_checks(paths, step), answer_call], [])


def _malformed(errors: list[ExtractionError]) -> ReplyReading:
    return ReplyReading(Reading.MALFORMED, [], errors)
