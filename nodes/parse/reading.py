"""What a reply means: calls in order, errors, or an answer. One verdict for text and native, whole or streamed.

The finish reason is judged before anything else: a reply that was cut, refused or filtered never runs a call, however
complete its calls look. Then each call is read, in order, and its arguments are checked against its tool's schema;
a malformed call keeps its place among the others. A reply with nothing to call is the answer.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from nodes.language.blocks import read_blocks
from nodes.language.dialects import describe_dialect, looks_like_call
from nodes.language.native_calls import read_native_calls
from nodes.language.text_protocol import extract_in_order
from nodes.records import (
    Answer,
    CallError,
    EditForm,
    ExtractionError,
    ExtractionErrorType,
    FinishReason,
    ModelReply,
    Profile,
    Protocol,
    Reading,
    ToolCall,
    ToolInvocation,
)

ANSWER_TOOL = "final_answer"

SHORTEST_ECHO = 16
"""Characters of an answer that repeats a sentence of ours; a shorter one ("2") may stand in it by chance."""

Validate = Callable[[str, dict[str, Any]], dict[str, Any] | list[str]]
"""Checks arguments against a tool's schema: the canonical arguments, or what is wrong with them."""

CheckAnswer = Callable[[Answer], list[str]]
"""Checks a final answer against the user's schema: what is wrong with it, or nothing."""


class ReplyReading(NamedTuple):
    """What `parse` found. `items` are the calls and malformed calls in order; `errors` those of a malformed reply."""

    reading: Reading
    items: list[ToolCall | CallError]
    errors: list[ExtractionError]
    answer: Answer | None = None


class Reader(NamedTuple):
    """What reading needs to know of this run.

    `shown_files` are those that the model was shown in this turn, `told` what it was told of its failures: both are
    for the block form, where a small model answers by their names and repeats such sentences.
    """

    profile: Profile
    known_tools: frozenset[str]
    validate: Validate
    check_answer: CheckAnswer
    writing_tools: frozenset[str] = frozenset()
    shown_files: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


class _ReadCall(NamedTuple):
    call_id: str
    tool: str
    raw_arguments: str
    outcome: ToolInvocation | ExtractionError


def read_reply(reply: ModelReply, step: int, reader: Reader) -> ReplyReading:
    """Read one complete reply. Never raises; `step` makes the ids of calls that have none unique in the thread."""
    broken = _broken_reply(reply)
    if broken is not None:
        return _malformed([broken])
    calls, prose = _read_calls(reply, step, reader)
    items = [_checked(call, reader) for call in calls]
    items += _implied_answer(items, prose, step, reader)
    if not items:
        return _read_answer(reply, reader)
    if all(isinstance(item, CallError) for item in items):
        return ReplyReading(Reading.MALFORMED, items, [item.error for item in items if isinstance(item, CallError)])
    only = items[0]
    if len(items) == 1 and isinstance(only, ToolCall) and only.tool == ANSWER_TOOL:
        answer = Answer(text=str(only.arguments.get("answer", "")), value=only.arguments.get("value"))
        return ReplyReading(Reading.ANSWER, items, [], answer)
    return ReplyReading(Reading.CALLS, items, [])


def check_call(call: ToolInvocation, call_id: str, raw_arguments: str, reader: Reader) -> ToolCall | CallError:
    """Check one well-formed call against its tool's schema, and a final answer against the user's as well."""
    checked = reader.validate(call.tool_name, call.args)
    if isinstance(checked, dict) and call.tool_name == ANSWER_TOOL:
        answer = Answer(text=str(checked.get("answer", "")), value=checked.get("value"))
        problems = reader.check_answer(answer)
        kind = ExtractionErrorType.INVALID_ANSWER
    else:
        problems = checked if isinstance(checked, list) else []
        kind = ExtractionErrorType.INVALID_ARGUMENTS
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


def _checked(call: _ReadCall, reader: Reader) -> ToolCall | CallError:
    if isinstance(call.outcome, ExtractionError):
        return CallError(call_id=call.call_id, tool=call.tool, raw_arguments=call.raw_arguments, error=call.outcome)
    return check_call(call.outcome, call.call_id, call.raw_arguments, reader)


def _broken_reply(reply: ModelReply) -> ExtractionError | None:
    """A reply that must not be acted on, whatever it says."""

    def broken(kind: ExtractionErrorType, details: str) -> ExtractionError:
        return ExtractionError(kind, 0, reply.text[:200], details)

    if reply.finish_reason is FinishReason.LENGTH:
        return broken(
            ExtractionErrorType.TRUNCATED_REPLY, "The reply was cut at the token limit. Nothing was executed."
        )
    if reply.finish_reason is FinishReason.REFUSAL:
        return broken(ExtractionErrorType.REFUSED_REPLY, f"The model refused: {reply.refusal[:300]}")
    if reply.finish_reason is FinishReason.CONTENT_FILTER:
        return broken(ExtractionErrorType.FILTERED_REPLY, "The endpoint's content filter stopped the reply.")
    if not reply.text.strip() and not reply.calls:
        return broken(ExtractionErrorType.EMPTY_REPLY, "The reply was empty.")
    return None


def _read_calls(reply: ModelReply, step: int, reader: Reader) -> tuple[list[_ReadCall], str]:
    """The calls of a reply, in order, and in the block form the prose around its blocks."""
    prefix = f"call_{step}"
    if reader.profile.protocol is Protocol.NATIVE:
        return _read_native(reply, prefix, reader), ""
    lines = [
        _ReadCall("", call.tool, call.raw_arguments, call.outcome)
        for call in extract_in_order(reply.text, reader.known_tools)
    ]
    native = _read_native(reply, f"{prefix}_native" if lines else prefix, reader)
    if reader.profile.edit_form is not EditForm.BLOCKS or native:
        return [*_numbered(lines, prefix, native), *native], ""
    found = read_blocks(reply.text, reader.shown_files)
    edits = [_ReadCall("", _tool_of(edit), _raw_arguments(edit), edit) for edit in found.outcomes]
    both = sorted([*lines, *edits], key=lambda call: call.outcome.line_number)
    return _numbered(both, prefix, ()), "" if lines else found.prose


def _numbered(calls: Sequence[_ReadCall], prefix: str, others: Sequence[_ReadCall]) -> list[_ReadCall]:
    """Give calls of the text ids of their own, which no native call of the reply has."""
    taken = {call.call_id for call in others}
    free = (name for index in count() if (name := f"{prefix}_{index}") not in taken)
    return [call._replace(call_id=call_id) for call, call_id in zip(calls, free, strict=False)]


def _read_native(reply: ModelReply, prefix: str, reader: Reader) -> list[_ReadCall]:
    return [_ReadCall(*call) for call in read_native_calls(reply.calls, reader.known_tools, prefix)]


def _implied_answer(items: list[ToolCall | CallError], prose: str, step: int, reader: Reader) -> list[ToolCall]:
    """In the block form a reply that does nothing but change files is the whole work, and its prose the answer.

    A small model that is asked whether it is done does the same again. The answer stands only if every change worked,
    and never where the user wants a value of a certain shape.
    """
    if reader.profile.edit_form is not EditForm.BLOCKS or reader.check_answer(Answer(text=prose)):
        return []
    changes = [item for item in items if isinstance(item, ToolCall) and item.tool in reader.writing_tools]
    if not changes or len(changes) < len(items):
        return []
    said = prose or f"Changed {', '.join(dict.fromkeys(str(c.arguments.get('path', 'a file')) for c in changes))}."
    call_id = f"call_{step}_answer"
    return [ToolCall(call_id=call_id, tool=ANSWER_TOOL, arguments={"answer": said}, raw_arguments="", implied=True)]


def _tool_of(outcome: ToolInvocation | ExtractionError) -> str:
    return outcome.tool_name if isinstance(outcome, ToolInvocation) else "edit_blocks"


def _raw_arguments(outcome: ToolInvocation | ExtractionError) -> str:
    return str(outcome.args["content"]) if isinstance(outcome, ToolInvocation) else outcome.line_content


def _read_answer(reply: ModelReply, reader: Reader) -> ReplyReading:
    dialect = looks_like_call(reply.text, reader.known_tools)
    if dialect is not None:
        kind = ExtractionErrorType.MISSING_TOOL_PREFIX
        return _malformed([ExtractionError(kind, 0, reply.text[:200], describe_dialect(dialect))])
    answer = Answer(text=reply.text.strip())
    problems = reader.check_answer(answer)
    if any(_echoes(answer.text, sentence) for sentence in reader.told):
        problems = [*problems, "this repeats what you were told instead of answering"]
    if problems:
        kind = ExtractionErrorType.INVALID_ANSWER
        return _malformed([ExtractionError(kind, 0, reply.text[:200], "; ".join(problems))])
    return ReplyReading(Reading.ANSWER, [], [], answer)


def _echoes(answer: str, sentence: str) -> bool:
    """Whether one of the two stands in the other, where both are long enough to be no chance."""
    shorter, longer = sorted((answer, sentence.strip()), key=len)
    return len(shorter) >= SHORTEST_ECHO and shorter in longer


def _malformed(errors: list[ExtractionError]) -> ReplyReading:
    return ReplyReading(Reading.MALFORMED, [], errors)
