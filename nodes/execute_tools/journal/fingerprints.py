"""What names a call for good: the same for the same arguments in any order, whoever makes it and when. Pure."""

import hashlib
import json

import orjson

from mendgraph.nodes.records import JsonMap


def idempotency_key(thread: str, step: int, index: int, tool: str, arguments: JsonMap) -> str:
    """The key of the call at place `index` of a step: the same whenever this step is run again. 64 hex digits.

    Raises:
        TypeError: something in the arguments is no JSON value.
    """
    return _digest([thread, step, index, tool, arguments])


def call_fingerprint(tool: str, arguments: JsonMap) -> str:
    """What a call does, whoever makes it and when: the same for the same arguments in any order. 64 hex digits.

    Raises:
        TypeError: something in the arguments is no JSON value.
    """
    return _digest([tool, arguments])


def _digest(value: list[object]) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _canonical(value: list[object]) -> bytes:
    """The value as JSON with sorted keys; lone surrogates and integers beyond 64 bits have a form of their own."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
