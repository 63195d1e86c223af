"""Native tool calls, read from their raw argument text into the same outcomes as text calls (spec 2, section 1)."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nodes.language.json_arguments import ArgumentProblem, excerpt
from nodes.language.repeated_edits import decode_call
from nodes.language.text_protocol import ExtractionResult, unknown_tool_details
from nodes.records import ExtractionError, ExtractionErrorType, RawCall, ToolInvocation

LONGEST_ID: Final = 20_000
"""Characters of an id that go back to its endpoint. Some proxies keep a signature of some kilobytes in it."""

_LONGEST_NAME: Final = 200
"""Characters that are kept of a name that no tool has."""


class NativeCall(NamedTuple):
    """One native call at its place in the reply, under an id that no other call of the reply has.

    `tool` is the tool that will run: `multi_edit` where several edits were sent as one.
    """

    call_id: str
    tool: str
    raw_arguments: str
    outcome: ExtractionResult


def read_native_calls(
    calls: Sequence[RawCall], known_tools: frozenset[str], id_prefix: str = "call"
) -> list[NativeCall]:
    """One entry for each call, in order, none dropped; never raises.

    Missing, unprintable, repeated and endless ids become `<id_prefix>_<index>`, so `id_prefix` should name the step.
    The history must carry these ids, not those of the reply. Blank arguments mean {}. Line numbers are 0.
    """
    return [
        _native_call(call_id, call, known_tools)
        for call_id, call in zip(_unique_ids(calls, id_prefix), calls, strict=True)
    ]


def _native_call(call_id: str, call: RawCall, known_tools: frozenset[str]) -> NativeCall:
    outcome = _read_call(call, known_tools)
    tool = outcome.tool_name if isinstance(outcome, ToolInvocation) else call.tool.strip()[:_LONGEST_NAME]
    return NativeCall(call_id, tool, call.arguments, outcome)


def _read_call(call: RawCall, known_tools: frozenset[str]) -> ExtractionResult:
    def broken(kind: ExtractionErrorType, details: str) -> ExtractionError:
        return ExtractionError(kind, 0, excerpt(f"{call.tool}({call.arguments})"), details)

    tool = call.tool.strip()
    if not tool:
        return broken(ExtractionErrorType.EMPTY_TOOL_NAME, "Tool name is empty")
    if tool not in known_tools:
        return broken(ExtractionErrorType.UNKNOWN_TOOL_NAME, unknown_tool_details(tool, known_tools))
    decoded = decode_call(tool, call.arguments.strip() or "{}", known_tools)
    if isinstance(decoded, ArgumentProblem):
        return broken(decoded.kind, decoded.details)
    return ToolInvocation(decoded.tool, decoded.arguments, 0)


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
