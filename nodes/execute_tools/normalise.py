"""Whatever a tool gives back becomes one shape that holds plain JSON values only."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import orjson
from pydantic import BaseModel

from nodes.execute_tools.registry import ToolOutput
from nodes.records import FileChange, Plan, ToolError, ToolResult


def plain_output(value: object) -> ToolOutput:
    """The tool's output with tuples as lists, and so on, as it would come back from JSON.

    A function that is no tool of this house may return an envelope, an error, a map, a pydantic model or a dataclass,
    or one value: None becomes "null", bytes their length. Source: spec 5's normalising.

    Raises:
        TypeError: the value has no JSON form (so have integers beyond 64 bits, and text with lone surrogates).
    """
    output = _as_output(value)
    _check_fields(output)
    if output.result.error is not None:
        return output
    data = orjson.loads(orjson.dumps(output.result.data, default=_as_json))
    return replace(output, result=ToolResult(ok=output.result.ok, data=data))


def is_usable(output: ToolOutput) -> bool:
    """Whether every field of this output is of its type, so that it may enter the state."""
    return (
        isinstance(output.result, ToolResult)
        and isinstance(output.changes, tuple)
        and all(isinstance(change, FileChange) for change in output.changes)
        and isinstance(output.files_read, Mapping)
        and all(isinstance(text, str) for entry in output.files_read.items() for text in entry)
        and isinstance(output.plan, Plan | None)
    )


def _check_fields(output: ToolOutput) -> None:
    if not is_usable(output):
        raise TypeError("a field of its ToolOutput is of the wrong type")


def _as_output(value: object) -> ToolOutput:
    if isinstance(value, ToolOutput):
        return value
    if isinstance(value, ToolResult):
        return ToolOutput(value)
    if isinstance(value, ToolError):
        return ToolOutput.failed(value)
    return ToolOutput(ToolResult(ok=True, data=_as_map(value)))


def _as_map(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if value is None:
        return {"value": "null"}
    if isinstance(value, bytes | bytearray):
        return {"value": {"type": "bytes", "len": len(value)}}
    return {"value": value}


def _as_json(value: object) -> Any:
    """What stands inside of a result and is no JSON value, but has one."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
