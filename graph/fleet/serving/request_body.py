"""What stands in a request's body, as every engine and every database can take it. Pure."""

import json
import re
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, NamedTuple

from mendgraph.nodes.records import JsonMap

MOST_BYTES: Final = 4_000_000
"""Of one request's body: more text than any model's window holds."""

_DEEPEST: Final = 64
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that JSON can name, and PostgreSQL's jsonb and UTF-8 cannot hold."""


class Refused(NamedTuple):
    """The answer to a request that the engine does not see."""

    status: int
    detail: str


def read_json(data: bytes, scrub: Callable[[JsonMap], Any] = dict) -> JsonMap | Refused:
    """The object in `data`, without what cannot be stored; `scrub` takes out secrets, also by the names they are under.

    Engines keep what they are sent in tables of their own, as it came.
    """
    try:
        body = json.loads(data or b"{}", parse_constant=_no_number, parse_float=_finite)
        if not isinstance(body, dict):
            return Refused(422, "The request's body should be a JSON object.")
        cleaned = scrub(_cleaned(body, _DEEPEST))
    except _TooDeepError:
        return Refused(422, f"The request's body is nested deeper than {_DEEPEST}.")
    except (ValueError, RecursionError):
        return Refused(400, "The request's body is no JSON.")
    return cleaned if isinstance(cleaned, dict) else Refused(422, "The request's body cannot be looked through.")


class _TooDeepError(Exception):
    """There are lists in lists, or objects, beyond what anybody needs."""


def _cleaned(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise _TooDeepError
    if isinstance(value, list):
        return [_cleaned(each, depth - 1) for each in value]
    return {_cleaned(name, depth): _cleaned(each, depth - 1) for name, each in value.items()}


def _no_number(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)
