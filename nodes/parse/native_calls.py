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
    reply_ids = {call.call_id for call in calls}
    read: dict[str, ReadCall] = {}
    parts = [part for call in calls for part in _unmerged(call, tools)]

    for index, call in enumerate(parts):
        call_id = call.call_id
        usable = call_id.strip() and call_id.isprintable() and len(call_id) <= LONGEST_ID

        if not usable or call_id in read:
            call_id = f"{id_prefix}_{index}"
            while call_id in reply_ids or call_id in read:
                call_id += "_"

        tool = tools.plain_name(call.tool)
        outcome = _read(call, tool, tools.names)
        read[call_id] = ReadCall(tool[:_LONGEST_NAME], call.arguments, outcome, call_id=call_id)

    return list(read.values())


def _unmerged(call: RawCall, tools: ToolSchemas) -> Iterator[RawCall]:
    """The call, or several where its arguments are several JSON objects; their names may stand in a row as well.

    An empty object is no call of a tool that requires arguments: some endpoints begin with it.
    """
    text = call.arguments
    parts, end = _json_objects(text)
    tool = tools.plain_name(call.tool)
    is_known = tool in tools.names

    if is_known and tools.schema_of(tool).get("required"):
        parts = [part for part in parts if part != "{}"] or parts

    if is_known:
        names = [[tool] * len(parts)]
    else:
        names = _in_a_row(tool, tools.names, len(parts))

    if end < len(text) or parts in ([], [text]) or len(names) != 1:
        yield call
        return

    for name, part in zip(names[0], parts, strict=True):
        yield call.model_copy(update={"tool": name, "arguments": part})


def _json_objects(text: str) -> tuple[list[str], int]:
    """The JSON objects that a text begins with, at most `_MOST_MERGED`, and the place behind them and white space."""
    parts: list[str] = []
    start = 0

    while text.startswith("{", start) and len(parts) < _MOST_MERGED:
        end = json_end(text, start)
        if end is None:
            break

        parts.append(text[start:end])
        start = end + len(text[end:]) - len(text[end:].lstrip())

    return parts, start


def _in_a_row(text: str, names: frozenset[str], count: int) -> list[list[str]]:
    """Each way to split a text into `count` names of tools; none beyond `_MOST_NAMES`."""
    if count == 0 and not text:
        return [[]]

    if count == 0 or count > _MOST_NAMES:
        return []

    splits = []
    for name in names:
        if text.startswith(name):
            splits += [[name, *others] for others in _in_a_row(text[len(name) :], names, count - 1)]

    return splits


def _read(call: RawCall, tool: str, known_tools: frozenset[str]) -> ToolInvocation | ExtractionError:
    def broken(kind: ExtractionErrorType, details: str) -> ExtractionError:
        return ExtractionError(kind, 0, excerpt(f"{call.tool}({call.arguments})"), details)

    if not tool:
        return broken(ExtractionErrorType.EMPTY_TOOL_NAME, "Tool name is empty")

    if tool not in known_tools:
        return broken(ExtractionErrorType.UNKNOWN_TOOL_NAME, unknown_tool_details(tool, known_tools))

    arguments = decode_arguments(call.arguments.strip() or "{}")
    if isinstance(arguments, ArgumentProblem):
        decoded = _decode_twice(call.arguments)
        if decoded is not None:
            arguments = decoded

    if isinstance(arguments, ArgumentProblem):
        return broken(arguments.kind, arguments.details)

    return ToolInvocation(tool, arguments, 0)


def _decode_twice(text: str) -> JsonMap | None:
    """The arguments of a JSON text that holds JSON; {} for null and an empty text, None where it holds no arguments."""
    inner = decode_strictly(text)
    if inner is None:
        inner = "{}"

    if not isinstance(inner, str):
        return None

    arguments = decode_arguments(inner or "{}")
    if isinstance(arguments, ArgumentProblem):
        return None

    return arguments


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
    for arguments in (call.args, _wrapped_arguments(call)):
        if not isinstance(arguments, dict):
            continue

        yield arguments
        tool = call.tool_name
        without_null = {
            name: value for name, value in arguments.items() if value is not None or tools.requires(tool, name)
        }
        yield without_null
        yield {name: _decoded(value, tools.types(tool, name)) for name, value in without_null.items()}


def _wrapped_arguments(call: ToolInvocation) -> Any:
    """The value of a single argument that wraps the others, decoded where it is JSON text; None where none does."""
    if len(call.args) != 1:
        return None

    [(name, value)] = call.args.items()
    if name not in _WRAPPERS:
        return None

    if isinstance(value, str):
        return decode_strictly(value)

    return value


def _decoded(value: Any, types: frozenset[str]) -> Any:
    if not isinstance(value, str) or not types or "string" in types:
        return value

    decoded = decode_strictly(value)
    if isinstance(decoded, ArgumentProblem):
        return value

    return decoded
