"""Values as text that a person reads: JSON values in the layout of YAML, and text as an indented block."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

INDENT = "    "

LONGEST_BLOCK = 40
"""Lines of a text that a transcript shows whole. Of a longer one it shows the beginning and the end."""

SHOWN_START, SHOWN_END = 6, 3


def indented(text: str) -> str:
    """Indent each line of a text that holds something."""
    return "\n".join(f"{INDENT}{line}" if line else "" for line in text.splitlines())


def shortened(text: str) -> str:
    """Leave out the middle of a long text, and say how many lines that are."""
    lines = text.splitlines()
    if len(lines) <= LONGEST_BLOCK:
        return text

    left_out = len(lines) - SHOWN_START - SHOWN_END
    end = "\n" if text.endswith("\n") else ""
    return "\n".join([*lines[:SHOWN_START], f"({left_out} more lines)", *lines[-SHOWN_END:]]) + end


def fields(values: Mapping[str, Any]) -> str:
    """Write one field for each line, and texts of several lines as blocks."""
    return "\n".join(line for name, value in values.items() for line in _field(name, value))


def _field(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        yield f"{name}: {'|' if value.endswith(chr(10)) else '|-'}"
        yield from indented(shortened(value)).splitlines()
    elif isinstance(value, Mapping) and value:
        yield f"{name}:"
        yield from indented(fields(value)).splitlines()
    elif _is_table(value):
        yield f"{name}:"
        for row in value:
            first, *following = fields(row).splitlines()
            yield f"{INDENT}- {first}"
            yield from (f"{INDENT}  {line}" for line in following)
    else:
        yield f"{name}: {_scalar(value)}"


def _is_table(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and bool(value) and all(isinstance(row, Mapping) and row for row in value)


def _scalar(value: Any) -> str:
    """Write a value on one line. A text has quotes only where it would be read as another value without them."""
    if isinstance(value, str) and value == value.strip() and not _is_json(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return text == ""
    return True
