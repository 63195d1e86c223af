"""Native calls of a reply, and the safe corrections of arguments in the wrong shape."""

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
"""Characters of an id that are sent back. Some proxies store a signature of several kilobytes in it."""

_LONGEST_NAME: Final = 200
"""Characters that are kept of an unknown tool's name."""

_WRAPPERS: Final = frozenset({"arguments", "parameters", "args", "input", "kwargs"})
_MOST_MERGED: Final = 64
"""The maximum number of calls that are split from the arguments of one."""
_MOST_NAMES: Final = 8
"""The maximum number of names that are split from one."""


def read_native_calls(calls: Sequence[RawCall], tools: ToolSchemas, id_prefix: str = "call") -> list[ReadCall]:
    """Return one entry for each call, in order; never raises.

    Missing, unprintable, repeated and very long ids become `<id_prefix>_<index>`, so `id_prefix` should name the step.
    The history must use these ids. Blank arguments mean {}. Line numbers are 0. Calls that an endpoint merged into one,
    as `{..}{..}`, are split.
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
    """Yield the call, or several if its arguments are several JSON objects; their names may be concatenated too.

    An empty object is not a call of a tool with required arguments: some endpoints start with one.
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
    """Return the JSON objects at the start of a text, at most `_MOST_MERGED`, and the position after them."""
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
    """Return each way to split a text into `count` tool names; none beyond `_MOST_NAMES`."""
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
    """Decode JSON text inside of a JSON string; {} for null and an empty text, None if it holds no arguments."""
    inner = decode_strictly(text)
    if inner is None:
        inner = "{}"

    if not isinstance(inner, str):
        return None

    arguments = decode_arguments(inner or "{}")
    if isinstance(arguments, ArgumentProblem):
        return None

    return arguments


def repaired_arguments(
    call: ToolInvocation, tools: ToolSchemas, validate: Callable[[str, JsonMap], JsonMap | list[str]]
) -> tuple[JsonMap, str] | None:
    """Return the arguments in the only shape that is valid, and as JSON; None if no shape is valid, or several are.

    The shapes are: without a wrapping object, without null for optional arguments, and with lists, objects, numbers and
    booleans decoded from JSON text.
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
    """Return the value of a single argument that wraps the others; None if there is none."""
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
