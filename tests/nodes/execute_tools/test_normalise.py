from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from nodes.execute_tools.normalise import is_usable, plain_output
from nodes.execute_tools.registry import ToolOutput
from nodes.records import ToolError, ToolErrorCode, ToolResult

ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="m")


class Found(BaseModel):
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    key: SecretStr = SecretStr("s3cret")


@dataclass
class Counted:
    lines: int
    found: tuple[Found, ...] = ()


PLAIN_FOUND = {"at": "2026-01-02T00:00:00Z", "key": "**********"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ToolOutput.ok(a=(1, 2)), ToolOutput.ok(a=[1, 2])),
        (
            ToolOutput(ToolResult.success(code=ToolErrorCode.TIMEOUT), files_read={"a": "b"}),
            ToolOutput(ToolResult.success(code="timeout"), files_read={"a": "b"}),
        ),
        (ToolOutput.failed(ERROR), ToolOutput.failed(ERROR)),
        (ToolResult.success(a=1), ToolOutput.ok(a=1)),
        (ERROR, ToolOutput.failed(ERROR)),
        (OrderedDict(a=1), ToolOutput.ok(a=1)),
        (None, ToolOutput.ok(value="null")),
        (b"abc", ToolOutput.ok(value={"type": "bytes", "len": 3})),
        ("text", ToolOutput.ok(value="text")),
        ([1, None], ToolOutput.ok(value=[1, None])),
        (float("nan"), ToolOutput.ok(value=None)),
        (7, ToolOutput.ok(value=7)),
        (Found(), ToolOutput.ok(**PLAIN_FOUND)),
        ([Found()], ToolOutput.ok(value=[PLAIN_FOUND])),
        (Counted(3, (Found(),)), ToolOutput.ok(lines=3, found=[PLAIN_FOUND])),
        ({"a": Counted(3)}, ToolOutput.ok(a={"lines": 3, "found": []})),
    ],
)
def test_every_shape_becomes_one(value: object, expected: ToolOutput) -> None:
    assert plain_output(value) == expected


@pytest.mark.parametrize("value", [object(), {"a": {1: 2}}, "\ud800", 2**64, {"a": object()}, Counted])
def test_what_is_not_json_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError):
        plain_output(value)


@pytest.mark.parametrize(
    "fields",
    [
        {"result": None},
        {"changes": None},
        {"changes": ("a.py",)},
        {"files_read": None},
        {"files_read": {"a.py": object()}},
        {"plan": "junk"},
    ],
)
def test_an_output_with_a_field_of_another_type_is_refused(fields: dict[str, Any]) -> None:
    odd = replace(ToolOutput.ok(), **fields)
    assert not is_usable(odd)
    with pytest.raises(TypeError, match="a field of its ToolOutput is of the wrong type"):
        plain_output(odd)
