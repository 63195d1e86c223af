"""The name of an action: two calls that would do the same thing have the same signature."""

import json
import posixpath
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from mendgraph.nodes.records import ToolCall, ToolSpec

SIGNATURE_CHARS = 16
"""64 bits: a chance meeting of two actions in one run is out of the question, and a person can still read it."""

_NOT_JSON = "not JSON"


def action_signature(action_type: str, tool: str, arguments: Mapping[str, Any], target: str) -> str:
    """16 hexadecimal digits over the action's type, tool, arguments and workspace-relative target.

    The order of keys makes no difference; `1` and `1.0` do. Arguments that are no JSON (NaN, foreign objects, nesting
    without end) all count as the same: `parse` lets none through. Source: spec 3, "Loop detection".
    """
    action = json.dumps([action_type, tool, _canonical(arguments), target])
    return sha256(action.encode()).hexdigest()[:SIGNATURE_CHARS]


def signature_of(call: ToolCall, spec: ToolSpec, root: str = "") -> str:
    """The call's signature. Its paths count as what they mean: `./a.py` is `a.py`, and so is `{root}/a.py`."""
    plain = {key: _plain(value, root) if key in spec.path_fields else value for key, value in call.arguments.items()}
    return action_signature(spec.effect.value, spec.name, plain, target_of(call, spec, root))


def target_of(call: ToolCall, spec: ToolSpec, root: str = "") -> str:
    """The workspace paths that the call names, in the order of the tool's path fields; "" where it names none."""
    values = [_plain(call.arguments[field], root) for field in spec.path_fields if field in call.arguments]
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return ", ".join(name for name in names if isinstance(name, str))


def _plain(value: Any, root: str) -> Any:
    if isinstance(value, list):
        return [_plain(part, root) for part in value]
    return _workspace_relative(value, root) if isinstance(value, str) else value


def _workspace_relative(path: str, root: str) -> str:
    full = posixpath.normpath(posixpath.join(root, path))
    base = posixpath.normpath(root) if root else "."
    return "." if full == base else full.removeprefix(base.rstrip("/") + "/") if root else full


def _canonical(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(arguments), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return _NOT_JSON
