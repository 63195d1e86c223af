"""What a workspace's own file may set by itself: preferences, and less than the user allows. Pure.

The file comes from whoever wrote the repository. What lets a run do more, or go elsewhere, takes effect only where the
user trusts the folder; a field that is not named here counts as such.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from graph.context import REPLY_TOKENS, AgentContext

Narrower = Callable[[Any, Any, AgentContext], bool]
"""(value of the file, value without the file, all values without it) -> whether the file's allows nothing more."""


def _any(_new: Any, _old: Any, _base: AgentContext) -> bool:
    return True


def _less(new: Any, old: Any, _base: AgentContext) -> bool:
    return bool(new is not None and (old is None or new <= old))


def _shorter(new: Any, old: Any, _base: AgentContext) -> bool:
    """Tokens of a reply; where nobody says how many, there is a limit all the same."""
    return bool(new is not None and new <= (REPLY_TOKENS if old is None else old))


def _off(new: Any, old: Any, _base: AgentContext) -> bool:
    return bool(old or not new)


def _on(new: Any, old: Any, _base: AgentContext) -> bool:
    return bool(new or not old)


def _part_of(new: Any, old: Any, _base: AgentContext) -> bool:
    return set(new) <= set(old)


def _kinds(new: Any, old: Any, _base: AgentContext) -> bool:
    """Extensions; none of them means all."""
    return bool(new) and (not old or {each.lstrip(".").lower() for each in new} <= {each.lstrip(".") for each in old})


def _limits(new: Any, old: Any, _base: AgentContext) -> bool:
    """A limit for each tool; a tool without one is not limited."""
    return all(name in new and new[name] <= most for name, most in old.items())


def _times(new: Any, old: Any, base: AgentContext) -> bool:
    """The time of each tool; one that is not named has the usual time."""
    usual = base.tool_timeout_s
    return all(new.get(name, usual) <= old.get(name, usual) for name in {*new, *old})


def _order(*strictest_first: str | None) -> Narrower:
    def narrower(new: Any, old: Any, _base: AgentContext) -> bool:
        if new not in strictest_first or old not in strictest_first:
            return bool(new == old)
        return strictest_first.index(new) <= strictest_first.index(old)

    return narrower


_LIMITS: Final = (
    *("max_calls_per_session", "max_calls_per_turn", "max_input_tokens_per_session", "max_output_tokens_per_session"),
    *("max_input_tokens_per_turn", "max_output_tokens_per_turn", "max_steps", "max_seconds"),
    *("max_cost_usd", "max_tokens_per_day", "max_cost_usd_per_day", "max_healing_attempts"),
    *("max_tokens_per_account", "max_cost_usd_per_account"),
    *("loop_override_retries", "read_max_lines"),
    *("max_schema_repairs", "max_failed_tries", "loop_repeat_threshold", "provider_retries", "request_timeout_s"),
    *("idle_timeout_s", "tool_timeout_s", "tool_retries", "http_max_bytes", "http_timeout_s", "checks_timeout_s"),
)
_PREFERENCES: Final = ("protocol", "edit_form", "temperature", "seed", "offer", "wrap_up", "read_ahead")

RULES: Final[Mapping[str, Narrower]] = {
    **dict.fromkeys(_LIMITS, _less),
    **dict.fromkeys(_PREFERENCES, _any),
    "max_output_tokens_per_call": _shorter,
    "reasoning_effort": _order("none", "minimal", "low", "medium", "high", "xhigh"),
    "mode": _order("read-only", "ask", "auto"),
    "role": _order("reader", "editor", "operator", None),
    "syntax_gate": _order("refuse", "report", "off"),
    "evidence": _off,
    "project_notes": _off,
    "account_days": _off,
    "max_steps_soft": _off,
    "audit": _on,
    "allowed_programs": _part_of,
    "readable_folders": _part_of,
    "allowed_hosts": _part_of,
    "allowed_private_hosts": _part_of,
    "allowed_extensions": _kinds,
    "tool_quotas": _limits,
    "tool_calls_per_minute": _limits,
    "tool_timeouts_s": _times,
}
"""When a field may be set by a file that nobody trusts."""


def widening(values: Mapping[str, Any], base: AgentContext) -> tuple[str, ...]:
    """Those of the file's fields that need the user's trust, in the file's order; `base` is what holds without it."""
    return tuple(name for name, value in values.items() if not _is_narrower(name, value, base))


def _is_narrower(name: str, value: Any, base: AgentContext) -> bool:
    old, rule = getattr(base, name), RULES.get(name)
    same = value == (list(old) if isinstance(old, tuple) else old)
    return same or (rule is not None and rule(value, old, base))
