"""Values of document 1's own records and of ours, so that they can be compared."""

from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """A record as the name of its class and its fields, an enum's member as its name; lists and tuples stay apart."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return type(value).__name__, {name: plain(each) for name, each in value._asdict().items()}
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value))
    return value
