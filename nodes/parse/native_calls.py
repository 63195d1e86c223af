"""The native calls of a reply, and arguments that fit a tool only after a harmless change of their shape."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.text_protocol import (
    ArgumentProblem,
    ReadCall,
    decode_arguments,
    decode_strictly,
    excerpt,
    json_end,
    unknown_tool_details,
)
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, JsonMap, RawCall, ToolInvocation

LONGEST_ID: Final = 20_000
"""Characters of an id that go back to its endpoint. Some proxies keep a signature of some kilobytes in it."""

_LONGEST_NAME: Final = 200
"""Characters that are kept of a name that no tool has."""

_WRAPPERS: Final = frozenset({"arguments", "parameters", "args", "input", "kwargs"})
_MOST_MERGED: Final = 64
"""Calls that are told apart in the arguments of one."""
_MOST_NAMES: Final = 8
"""Names that are told apart in one."""


def read_native_calls(calls: Sequence[RawCall], tools: ToolSchemas, id_prefix: str = "call") -> list[ReadCall]:
    """One entry for each call, in order, none dropped; never raises.

    Missing, unprintable, repeated and endless ids become `<id_prefix>_<index>`, so `id_prefix` should name the step.
    The history must carry these ids, not those of the reply. Blank arguments mean {}. Line numbers are 0. Calls that an
    endpoint has merged into one, as `{..}{..}`, are several.
    """
    written = {call.call_id for call in calls}
    read: dict[str, ReadCall] = {}
    parts = (part for call in calls for part in _unmerged(call, tools))

    for index, call in enumerate(parts):
        call_id = call.call_id
        usable = call_id.strip() and call_id.isprintable() and len(call_id) <= LONGEST_ID

        if not usable or call_id in read:
            call_id = f"{id_prefix}_{index}"
            while call_id in written or call_id in read:
                call_id += "_"

        tool = tools.plain_name(call.tool)
        read[call_id] = ReadCall(tool[:_LONGEST_NAME], call.arguments, _read(call, tool, tools.names), call_id=call_id)

    return list(read.values())


def _unmerged(call: RawCall, tools: ToolSchemas) -> Iterator[RawCall]:
    """The call, or each one where its arguments are several JSON objects; their names may stand in a row as well.

    An empty object is no call of a tool that requires arguments: some endpoints begin with it.
    """
    text = call.arguments
    at = 0
    parts: list[str] = []

    while text.startswith("{", at) and len(parts) < _MOST_MERGED and (end := json_end(text, at)) is not None:
        parts.append(text[at:end])
        at = end + len(text[end:]) - len(text[end:].lstrip())

    tool = tools.plain_name(call.tool)
    if tool in tools.names and tools.schema_of(tool).get("required"):
        parts = [part for part in parts if part != "{}"] or parts

    if tool in tools.names:
        names = [[tool] * len(parts)]
    else:
        names = _in_a_row(tool, tools.names, len(parts))

    if at < len(text) or parts in ([], [text]) or len(names) != 1:
        yield call
        return

    for name, part in zip(names[0], parts, strict=True):
        yield call.model_copy(update={"tool": name, "arguments": part})


def _in_a_row(text: str, names: frozenset[str], count: int) -> list[list[str]]:
    """Each way in which a text is so many names of tools, one behind the other; none is looked for beyond eight."""
    if count == 0 or count > _MOST_NAMES:
        return [] if text or count else [[]]

    starts = (name for name in names if text.startswith(name))
    return [[name, *others] for name in starts for others in _in_a_row(text[len(name) :], names, count - 1)]


def _read(call: RawCall, tool: str, known_tools: frozenset[str]) -> ToolInvocation | ExtractionError:
    def broken(kind: ExtractionErrorType, details: str) -> ExtractionError:
        return ExtractionError(kind, 0, excerpt(f"{call.tool}({call.arguments})"), details)

    if not tool:
        return broken(ExtractionErrorType.EMPTY_TOOL_NAME, "Tool name is empty")
    if tool not in known_tools:
        return broken(ExtractionErrorType.UNKNOWN_TOOL_NAME, unknown_tool_details(tool, known_tools))

    arguments = decode_arguments(call.arguments.strip() or "{}")
    if isinstance(arguments, ArgumentProblem):
        text = decode_strictly(call.arguments)
        if text is None or isinstance(text, str):
            again = decode_arguments(text or "{}")
            arguments = arguments if isinstance(again, ArgumentProblem) else again

    if isinstance(arguments, ArgumentProblem):
        return broken(arguments.kind, arguments.details)

    return ToolInvocation(tool, arguments, 0)


def fitting(
    call: ToolInvocation, tools: ToolSchemas, validate: Callable[[str, JsonMap], JsonMap | list[str]]
) -> tuple[JsonMap, str] | None:
    """The arguments in the one shape that fits, checked and as JSON; None where none fits, or more than one.

    Tried are the arguments without the object that wraps them, without null for optional ones, and with lists, objects,
    numbers and booleans for their JSON text.
    """
    fits: list[tuple[JsonMap, str]] = []

    for shape in _shapes(call, tools):
        checked = validate(call.tool_name, shape)
        if isinstance(checked, dict) and all(checked != other for other, _ in fits):
            fits.append((checked, json.dumps(shape, ensure_ascii=False)))

    return fits[0] if len(fits) == 1 else None


def _shapes(call: ToolInvocation, tools: ToolSchemas) -> Iterator[JsonMap]:
    wrapped: Any = None

    if len(call.args) == 1:
        [(key, value)] = call.args.items()
        if isinstance(value, str) and key in _WRAPPERS:
            wrapped = decode_strictly(value)
        else:
            wrapped = value

        wrapped = wrapped if key in _WRAPPERS else None

    for shape in (call.args, wrapped):
        if not isinstance(shape, dict):
            continue

        yield shape
        tool = call.tool_name
        some = {key: value for key, value in shape.items() if value is not None or tools.requires(tool, key)}
        yield some
        yield {key: _decoded(value, tools.types(tool, key)) for key, value in some.items()}


def _decoded(value: Any, types: frozenset[str]) -> Any:
    if not isinstance(value, str) or not types or "string" in types:
        return value

    decoded = decode_strictly(value)
    if isinstance(decoded, ArgumentProblem):
        return value

    return decoded
