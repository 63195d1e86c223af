"""What a reply means: calls in order, errors, or an answer. One verdict for text and native, whole or streamed.

The finish reason is judged before anything else: a reply that was cut, refused or filtered never runs a call, however
complete its calls look. Then each call is read, in order, and its arguments are checked against its tool's schema;
a malformed call keeps its place among the others, and so does one that is written in a form that does not run. A reply
with nothing to call is the answer, and so is one that only explains calls which were made or told before.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, count
from typing import Any, Final, NamedTuple

from mendgraph.nodes.language.blocks import EDIT_TOOL, read_blocks
from mendgraph.nodes.language.dialects import (
    NO_SINGLE,
    Rescue,
    describe_dialect,
    fenced_calls,
    holds_call,
    looks_like_call,
    passages,
    recognised,
)
from mendgraph.nodes.language.json_arguments import ReadCall, read_native_calls, unknown_tool_details
from mendgraph.nodes.language.names import is_question, named_paths
from mendgraph.nodes.language.text_protocol import BODY_ARGUMENTS, TextCall, extract_in_order, without_bodies
from mendgraph.nodes.parse.answers import TurnFacts, echoes, is_placeholder_content, paths_to_check, unfounded
from mendgraph.nodes.records import (
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
CHECKS_TOOL = "run_checks"

MOST_CALLS: Final = 64
"""Calls of one reply that are run. The results of more would not be looked at one by one, and a reply that has
thousands is a model that repeats itself: what it sees of the first ones has to come before the next ones."""

_TOO_MANY: Final = f"Not run: a reply may hold {MOST_CALLS} calls at most. Send it again."

_WORDS = re.compile(r"[\w.-]++")
_NAMELESS = frozenset({ExtractionErrorType.MISSING_OPENING_PAREN, ExtractionErrorType.UNKNOWN_TOOL_NAME})

_STRAY: Final = {
    Protocol.NATIVE: "This call stands in the text, where it does not run. Send it as a function call.",
    Protocol.TEXT: "This call has a form that does not run. Write it as one line that begins with 'tool:'.",
}

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
    for the block form, where a small model answers by their names and repeats such sentences. `turn` is what its answer
    is held against. `only_required` is the argument of each tool that needs exactly one. `offered` are the tools that
    the model is told of, None means all, and `bodies` says that a block may give what a call leaves out.

    `earlier` are the model's other replies of this turn, and `was_made` says whether a call was made since a file was
    changed last: by both, an explanation of a call is told from a call.
    """

    profile: Profile
    known_tools: frozenset[str]
    validate: Validate
    check_answer: CheckAnswer
    writing_tools: frozenset[str] = frozenset()
    shown_files: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    turn: TurnFacts = TurnFacts()
    only_required: Mapping[str, str] = NO_SINGLE
    offered: frozenset[str] | None = None
    bodies: bool = True
    body_arguments: Mapping[str, str] = BODY_ARGUMENTS
    earlier: Callable[[], Sequence[ModelReply]] = tuple
    was_made: Callable[[ToolCall], bool] = lambda _: False


class _Written(NamedTuple):
    """A call that stands in the text of a reply: in a code fence or not, `foreign` where its form does not run.

    `nameless` is a line outside of fences that names no tool and holds no JSON: it may be a program's output.
    """

    line_number: int
    tool: str
    source: str
    calls: list[ToolInvocation]
    fenced: bool
    foreign: bool
    nameless: bool = False

    @property
    def keys(self) -> set[str]:
        """What it has in common with every other writing of the same calls."""
        return {_key(call.tool_name, call.args) for call in self.calls} or {self.source}


def read_reply(reply: ModelReply, step: int, reader: Reader) -> ReplyReading:
    """Read one complete reply. Never raises; `step` makes the ids of calls that have none unique in the thread."""
    broken = _broken_reply(reply)
    if broken is not None:
        return _malformed([broken])
    if _is_explanation(reply, reader):
        return _judged_answer(reply, step, reader)
    calls, prose = _read_calls(reply, step, reader)
    items = completed([_checked(call, reader) for call in calls], prose, step, reader)
    if not items and (dialect := looks_like_call(reply.text, reader.known_tools)):
        kind = ExtractionErrorType.MISSING_TOOL_PREFIX
        return _malformed([ExtractionError(kind, 0, reply.text[:200], describe_dialect(dialect))])
    if not items:
        return _judged_answer(reply, step, reader)
    if all(isinstance(item, CallError) for item in items):
        told = items[: MOST_CALLS + 1]  # what is beyond says the same of each
        return ReplyReading(Reading.MALFORMED, items, [item.error for item in told if isinstance(item, CallError)])
    only = items[0]
    if len(items) == 1 and isinstance(only, ToolCall) and only.tool == ANSWER_TOOL:
        answer = Answer(text=str(only.arguments.get("answer", "")), value=only.arguments.get("value"))
        return ReplyReading(Reading.ANSWER, items, [], answer)
    return ReplyReading(Reading.CALLS, items, [])


def completed(items: list[ToolCall | CallError], prose: str, step: int, reader: Reader) -> list[ToolCall | CallError]:
    """The calls of a reply with those that it implies: an answer after whole edits, and checks before an answer.

    A final answer that is not borne out is malformed, unless calls beside it may still make it true. Calls beyond
    `MOST_CALLS` are malformed as well.
    """
    one_too_many = ExtractionError(ExtractionErrorType.TOO_MANY_CALLS, 0, "", _TOO_MANY)
    items = [*items[:MOST_CALLS], *(_refused(item, one_too_many) for item in items[MOST_CALLS:])]
    if not _changing(items, reader):
        for place, item in enumerate(items):
            if isinstance(item, ToolCall) and item.tool == ANSWER_TOOL:
                error = _unfounded(str(item.arguments.get("answer", "")), reader)
                items[place] = _refused(item, error) if error else item
    return _with_checks([*items, *_implied_answer(items, prose, step, reader)], step, reader)


def _refused(item: ToolCall | CallError, error: ExtractionError) -> CallError:
    return CallError(call_id=item.call_id, tool=item.tool, raw_arguments=item.raw_arguments, error=error)


def check_call(call: ToolInvocation, call_id: str, raw_arguments: str, reader: Reader) -> ToolCall | CallError:
    """Check one well-formed call against its tool's schema, and a final answer against the user's as well."""
    checked = reader.validate(call.tool_name, call.args)
    if isinstance(checked, dict) and call.tool_name == ANSWER_TOOL:
        answer = Answer(text=str(checked.get("answer", "")), value=checked.get("value"))
        problems = reader.check_answer(answer)
        kind = ExtractionErrorType.INVALID_ANSWER
    else:
        problems = checked if isinstance(checked, list) else _placeholders(call.tool_name, checked, reader)
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


def _placeholders(tool: str, arguments: dict[str, Any], reader: Reader) -> list[str]:
    """What is wrong with a call that would write a text which only stands for another."""
    content = arguments.get("content")
    if not isinstance(content, str) or tool not in reader.writing_tools or not is_placeholder_content(content):
        return []
    return [f"content {content.strip()!r} only stands for a text: write the text itself."]


def _checked(call: ReadCall, reader: Reader) -> ToolCall | CallError:
    if isinstance(call.outcome, ExtractionError):
        error = call.outcome
        if error.error_type is ExtractionErrorType.UNKNOWN_TOOL_NAME and reader.offered is not None:
            error = error._replace(details=unknown_tool_details(call.tool, reader.offered))
        return CallError(call_id=call.call_id, tool=call.tool, raw_arguments=call.raw_arguments, error=error)
    return check_call(call.outcome, call.call_id, call.raw_arguments, reader)


def _broken_reply(reply: ModelReply) -> ExtractionError | None:
    """A reply that must not be acted on, whatever it says."""

    def broken(kind: ExtractionErrorType, details: str) -> ExtractionError:
        return ExtractionError(kind, 0, reply.text[:200], details)

    said_nothing = not reply.text.strip() and not reply.calls
    if reply.finish_reason is FinishReason.LENGTH:
        when = " while it was still thinking" if said_nothing and reply.reasoning else ""
        details = f"The reply was cut at the token limit{when}. Nothing was executed."
        return broken(ExtractionErrorType.TRUNCATED_REPLY, details)
    if reply.finish_reason is FinishReason.REFUSAL:
        return broken(ExtractionErrorType.REFUSED_REPLY, f"The model refused: {reply.refusal[:300]}")
    if reply.finish_reason is FinishReason.CONTENT_FILTER:
        return broken(ExtractionErrorType.FILTERED_REPLY, "The endpoint's content filter stopped the reply.")
    if said_nothing and reply.reasoning.strip():
        return broken(ExtractionErrorType.THOUGHT_ONLY_REPLY, "The reply was only thought: no answer and no tool call.")
    if said_nothing:
        return broken(ExtractionErrorType.EMPTY_REPLY, "The reply was empty.")
    return None


def _read_calls(reply: ModelReply, step: int, reader: Reader) -> tuple[list[ReadCall], str]:
    """The calls of a reply, in order, and in the block form the prose around its blocks.

    Native calls come first or last, as the history needs them; beside calls that run, those that stand in the text in
    another form are errors. Blocks in the answer to a question are quotations: who asks wants nothing changed.
    """
    prefix = f"call_{step}"
    blocks = reader.profile.edit_form is EditForm.BLOCKS
    edits, prose, content = _edits(reply.text, reader) if blocks else ([], "", [])
    if reader.profile.protocol is Protocol.NATIVE and (reply.calls or not blocks):
        native = read_native_calls(reply.calls, reader.known_tools, prefix)
        return [*native, *_numbered(_strays(reply, native, content, reader), prefix, native)], ""
    said = _lines(reply.text, reader, content)
    if ANSWER_TOOL in {*(call.tool for call in said), *(call.tool for call in reply.calls)}:
        written, heard = _written(reply.text, reader, content), _heard(reader)
        explained = {call.line_number for call in written if _is_explained(call, heard, reader)}
        said = [call for call in said if call.line_number not in explained]
    lines = [ReadCall("", call.tool, _as_decoded(call), _outcome(call, reader)) for call in said]
    native = read_native_calls(reply.calls, reader.known_tools, f"{prefix}_native" if lines else prefix)
    if native:
        edits = []
    lines = [line for line in lines if not _is_heading(line, [edit.outcome for edit in edits], reader)]
    made = [*lines, *edits, *native]
    both = sorted([*lines, *edits, *_strays(reply, made, content, reader)], key=lambda call: call.outcome.line_number)
    return [*_numbered(both, prefix, native), *native], "" if lines else prose


def _lines(
    text: str, reader: Reader, content: Sequence[tuple[int, int]] = (), *, fenced: bool = True
) -> list[TextCall]:
    """The `tool:` lines of a text, but for those that belong to `content` or to a call in another form."""
    foreign = partial(holds_call, known_tools=reader.known_tools)
    return extract_in_order(
        text, reader.known_tools, reader.body_arguments, content=content, fenced=fenced, foreign=foreign
    )


def _edits(text: str, reader: Reader) -> tuple[list[ReadCall], str, list[tuple[int, int]]]:
    """The edits of a reply in block form, the prose around them, and where in the text their blocks stand."""
    said = _lines(text, reader, fenced=False)
    if not said and foreign_calls(text, reader):
        return [], "", []
    found = read_blocks(without_bodies(text, said), reader.shown_files, reader.turn.request or None)
    starts = list(accumulate((len(line) + 1 for line in text.split("\n")), initial=0))
    content = [(starts[first - 1], starts[min(last, len(starts) - 1)]) for first, last in found.lines]
    if is_question(reader.turn.request):
        return [], "", content
    edits = [
        ReadCall(
            "", EDIT_TOOL, str(edit.args["content"]) if isinstance(edit, ToolInvocation) else edit.line_content, edit
        )
        for edit in found.outcomes
    ]
    return edits, found.prose, content


def _strays(
    reply: ModelReply, made: Sequence[ReadCall], content: Sequence[tuple[int, int]], reader: Reader
) -> list[ReadCall]:
    """The calls of a text that do not run for their form: each as an error, unless it is made beside, or alone.

    One that the model was told of before, and repeats, is meant as it stands: it is run if it changes nothing. One that
    stands alone is left to `heal`, which may read it as it is, and one that a final answer explains is passed over.
    """
    known = {
        _key(call.outcome.tool_name, call.outcome.args) for call in made if isinstance(call.outcome, ToolInvocation)
    }
    found = [call for call in _written(reply.text, reader, content) if call.foreign and not call.keys <= known]
    heard = _heard(reader) if found else set()
    if any(call.tool == ANSWER_TOOL for call in made):
        found = [call for call in found if not _is_explained(call, heard, reader)]
    if not found or (not made and foreign_calls(reply.text, reader)):
        return []
    strays: list[ReadCall] = []
    for call in found:
        harmless = not any(each.tool_name in reader.writing_tools for each in call.calls)
        if call.calls and harmless and call.keys <= heard:
            outcomes = [each._replace(line_number=call.line_number) for each in call.calls]
            strays += [
                ReadCall("", each.tool_name, json.dumps(each.args, ensure_ascii=False), each) for each in outcomes
            ]
        else:
            kind, details = ExtractionErrorType.MISSING_TOOL_PREFIX, _STRAY[reader.profile.protocol]
            error = ExtractionError(kind, call.line_number, call.source[:200], details)
            strays.append(ReadCall("", call.tool, call.source, error))
    return strays if made or any(isinstance(call.outcome, ToolInvocation) for call in strays) else []


def _written(text: str, reader: Reader, content: Sequence[tuple[int, int]] = ()) -> list[_Written]:
    """The calls that stand in a text, but for what belongs to something else.

    In the native protocol a line `tool: x` may be any text: there those count that name a tool, and none of them runs.
    """
    native = reader.profile.protocol is Protocol.NATIVE and reader.profile.edit_form is not EditForm.BLOCKS
    said = text.splitlines()
    lines = _lines(text, reader, content)
    found = [
        _Written(
            call.line_number,
            call.tool,
            said[call.line_number - 1].strip(),
            [call.outcome] if isinstance(call.outcome, ToolInvocation) else [],
            bool(call.fences[0]),
            native,
            _is_nameless(call, reader),
        )
        for call in lines
        if not native or call.tool in reader.known_tools
    ]
    taken = [(call.line_number, call.end_line) for call in lines]
    taken += [(text.count("\n", 0, start) + 1, text.count("\n", 0, end)) for start, end in content]
    return found + [
        _Written(fence.line_number, fence.tool, fence.source, fence.calls, fenced=True, foreign=True)
        for fence in fenced_calls(without_bodies(text, lines), reader.known_tools)
        if not any(first <= fence.line_number <= last for first, last in taken)
    ]


def _is_nameless(call: TextCall, reader: Reader) -> bool:
    """Whether a line outside of fences begins like a call by chance: nothing else of it is one."""
    error = call.outcome
    if call.fences[0] or call.end_line != call.line_number or not isinstance(error, ExtractionError):
        return False
    words = {word.rstrip(".") for word in _WORDS.findall(error.line_content)}
    return error.error_type in _NAMELESS and "{" not in error.line_content and words.isdisjoint(reader.known_tools)


def _is_explanation(reply: ModelReply, reader: Reader) -> bool:
    """Whether a reply is words about calls, each of which was made or told before, after the work.

    The calls stand in code fences, or are lines that may be a program's output. A call that has run counts until a file
    is changed. An answer that what happened speaks against is none.
    """
    written = [] if reply.calls else _written(reply.text, reader)
    if not written or not all(call.fenced or (call.nameless and reader.turn.changed) for call in written):
        return False
    outside = {call.line_number for call in written if not call.fenced}
    words = "\n".join(line for number, line in enumerate(reply.text.splitlines(), 1) if number not in outside)
    if all(part.opening is not None for part in passages(words)) or _unfounded(reply.text, reader):
        return False
    if not reader.turn.changed and foreign_calls(reply.text, reader):
        return False
    heard = _heard(reader)
    return all(_is_explained(call, heard, reader) for call in written)


def _is_explained(written: _Written, heard: set[str], reader: Reader) -> bool:
    """Whether nothing new would come of a call in a fence, which the model has written or made before.

    Nor would anything of a line that may be a program's output, once the model was told of it and has changed a file.
    """
    quoted = written.fenced or (written.nameless and reader.turn.changed)
    if not quoted or written.tool == ANSWER_TOOL or not written.keys <= heard:
        return False
    for call in written.calls:
        checked = check_call(call, "", written.source, reader)
        told = written.foreign and call.tool_name in reader.writing_tools
        if isinstance(checked, ToolCall) and not told and not reader.was_made(checked):
            return False
    return True


def _heard(reader: Reader) -> set[str]:
    """The keys of all calls in the earlier replies of the turn."""
    keys: set[str] = set()
    for reply in reader.earlier():
        keys |= {key for call in _written(reply.text, reader) for key in call.keys}
        native = (call.outcome for call in read_native_calls(reply.calls, reader.known_tools))
        keys |= {_key(call.tool_name, call.args) for call in native if isinstance(call, ToolInvocation)}
    return keys


def _key(tool: str, arguments: dict[str, Any]) -> str:
    return f"{tool}({json.dumps(arguments, sort_keys=True)})"


def _outcome(call: TextCall, reader: Reader) -> ToolInvocation | ExtractionError:
    """What a line came to; a block that was not offered gives it nothing, and is no text of the reply either."""
    if call.body is None or reader.bodies or not isinstance(call.outcome, ToolInvocation):
        return call.outcome
    name = reader.body_arguments[call.tool]
    details = f"{call.tool}: the block after the call is not read. Put {name} into the JSON."
    return ExtractionError(ExtractionErrorType.INVALID_ARGUMENTS, call.line_number, call.raw_arguments[:200], details)


def foreign_calls(text: str, reader: Reader) -> Rescue | None:
    """The calls of a reply that is written in another form, and whose arguments fit."""
    return recognised(
        text,
        reader.known_tools,
        lambda tool, arguments: isinstance(reader.validate(tool, arguments), dict),
        reader.only_required,
    )


def _as_decoded(call: TextCall) -> str:
    """The arguments as text, with the body that followed the line."""
    if call.body is None or not isinstance(call.outcome, ToolInvocation):
        return call.raw_arguments
    return json.dumps(call.outcome.args, ensure_ascii=False)


def _is_heading(line: ReadCall, edits: Sequence[ToolInvocation | ExtractionError], reader: Reader) -> bool:
    """Whether a call would read what is known already, in a reply that gives a new text: then it is but a heading."""
    if not edits or not isinstance(line.outcome, ToolInvocation) or line.tool != "read_file":
        return False
    path = line.outcome.args.get("path")
    known = path in reader.shown_files or path in named_paths(reader.turn.request)
    return known or any(isinstance(edit, ToolInvocation) and edit.args["path"] == path for edit in edits)


def _numbered(calls: Sequence[ReadCall], prefix: str, others: Sequence[ReadCall]) -> list[ReadCall]:
    """Give calls of the text ids of their own, which no native call of the reply has."""
    taken = {call.call_id for call in others}
    free = (name for index in count() if (name := f"{prefix}_{index}") not in taken)
    return [call._replace(call_id=call_id) for call, call_id in zip(calls, free, strict=False)]


def _implied_answer(items: list[ToolCall | CallError], prose: str, step: int, reader: Reader) -> list[ToolCall]:
    """In the block form a reply that does nothing but change files is the whole work, and its prose the answer.

    A small model that is asked whether it is done does the same again. The answer stands only if every change worked,
    and never where the user wants a value of a certain shape.
    """
    if reader.profile.edit_form is not EditForm.BLOCKS or reader.check_answer(Answer(text=prose)):
        return []
    changes = _changing(items, reader)
    if not changes or len(changes) < len(items):
        return []
    said = prose or f"Changed {', '.join(dict.fromkeys(changes))}."
    return [_implied(ANSWER_TOOL, {"answer": said}, f"call_{step}_answer")]


def _with_checks(items: list[ToolCall | CallError], step: int, reader: Reader) -> list[ToolCall | CallError]:
    """The calls of a reply and, where an answer is among them, the checks of what they change, after all of that."""
    tools = [item.tool if isinstance(item, ToolCall) else "" for item in items]
    paths = paths_to_check(reader.turn, _changing(items, reader)) if ANSWER_TOOL in tools else None
    if paths is None:
        return items
    written = [at + 1 for at, tool in enumerate(tools) if tool in reader.writing_tools]
    place = max(tools.index(ANSWER_TOOL), *written, 0)
    return [*items[:place], _implied_checks(paths, step), *items[place:]]


def _implied_checks(paths: Sequence[str], step: int) -> ToolCall:
    return _implied(CHECKS_TOOL, {"paths": list(paths)}, f"call_{step}_checks")


def _implied(tool: str, arguments: dict[str, Any], call_id: str) -> ToolCall:
    raw = json.dumps(arguments, ensure_ascii=False) if tool == CHECKS_TOOL else ""
    return ToolCall(call_id=call_id, tool=tool, arguments=arguments, raw_arguments=raw, implied=True)


def _changing(items: Sequence[ToolCall | CallError], reader: Reader) -> tuple[str, ...]:
    """The files that calls of this reply change, once for each call."""
    changes = (item for item in items if isinstance(item, ToolCall) and item.tool in reader.writing_tools)
    return tuple(str(call.arguments.get("path", "a file")) for call in changes)


def _unfounded(answer: str, reader: Reader) -> ExtractionError | None:
    problem = unfounded(answer, reader.turn)
    return ExtractionError(ExtractionErrorType.UNFOUNDED_CLAIM, 0, answer[:200], problem) if problem else None


def _judged_answer(reply: ModelReply, step: int, reader: Reader) -> ReplyReading:
    """An answer that nothing speaks against, or with the checks that it has to wait for."""
    answer = Answer(text=reply.text.strip())
    problems = reader.check_answer(answer)
    if echoes(answer.text, reader.told):
        problems = [*problems, "this repeats what you were told instead of answering"]
    if reader.profile.edit_form is EditForm.BLOCKS:
        found = read_blocks(answer.text, reader.shown_files)
        if found.outcomes and not found.prose:
            problems = [*problems, "this shows a file instead of answering"]
    if problems:
        kind = ExtractionErrorType.INVALID_ANSWER
        return _malformed([ExtractionError(kind, 0, reply.text[:200], "; ".join(problems))])
    if error := _unfounded(answer.text, reader):
        return _malformed([error])
    paths = paths_to_check(reader.turn)
    if paths is None:
        return ReplyReading(Reading.ANSWER, [], [], answer)
    given = _implied(ANSWER_TOOL, {"answer": answer.text, "value": answer.value}, f"call_{step}_answer")
    return ReplyReading(Reading.CALLS, [_implied_checks(paths, step), given], [])


def _malformed(errors: list[ExtractionError]) -> ReplyReading:
    return ReplyReading(Reading.MALFORMED, [], errors)
