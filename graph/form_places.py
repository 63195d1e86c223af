"""Where LangGraph Studio shows the fields of its form: at the nodes of the machine that they govern. Pure.

Source: `langgraph_nodes`, an extension of JSON schema that Studio reads.
"""

from types import MappingProxyType
from typing import Any

_BEGIN, _CALL, _PARSE, _HEAL = ("begin_turn",), ("call_model",), ("parse",), ("heal",)
_GUARD, _RUN, _LOOP = ("guard",), ("execute_tools",), ("loop_check",)

PLACES = MappingProxyType(
    {
        **dict.fromkeys(("workspace", "read_ahead", "project_notes"), _BEGIN),
        **dict.fromkeys(("max_healing_attempts", "max_schema_repairs"), _HEAL),
        **dict.fromkeys(("role", "allowed_extensions"), (*_GUARD, *_RUN)),
        "mode": _GUARD,
        "max_steps_soft": _LOOP,
        "max_steps": _LOOP,
        "max_failed_tries": (*_PARSE, *_LOOP),
        "checks": (*_PARSE, *_RUN),
        "evidence": (*_PARSE, *_RUN),
        "answer_schema": _PARSE,
        "loop_override_retries": _LOOP,
        "repeat_window": (*_GUARD, *_LOOP),
        "loop_repeat_threshold": (*_GUARD, *_LOOP),
        **dict.fromkeys(
            (
                *("tool_timeout_s", "tool_timeouts_s", "tool_retries", "tool_retry_backoff_s", "tool_quotas"),
                *("tool_calls_per_minute", "allowed_programs", "readable_folders", "allowed_hosts"),
                *("allowed_private_hosts", "http_max_bytes", "http_timeout_s", "checks_timeout_s", "syntax_gate"),
                *("audit", "read_max_lines"),
            ),
            _RUN,
        ),
    }
)
"""The nodes of each field; all others are about the model, its limits and its price."""


def place_fields(schema: dict[str, Any]) -> None:
    """Say of each field in this JSON schema of an object where it is shown."""
    for name, field in schema.get("properties", {}).items():
        field["langgraph_nodes"] = list(PLACES.get(name, _CALL))
