"""What a workspace's own file may set by itself: preferences, and less than the user allows. Pure.

The file comes from whoever wrote the repository. What lets a run do more, or go elsewhere, takes effect only where the
user trusts the folder; a field of `AgentContext` whose setting names no rule counts as such.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mendgraph.graph.configuration.context import REPLY_TOKENS, SETTINGS, AgentContext


def _shorter(new: Any, old: Any) -> bool:
    """Tokens of a reply; where nobody says how many, there is a limit all the same."""
    return bool(new is not None and new <= (REPLY_TOKENS if old is None else old))


def _extensions(new: Any, old: Any) -> bool:
    """Extensions; none of them means all."""
    return bool(new) and (not old or {each.lstrip(".").lower() for each in new} <= {each.lstrip(".") for each in old})


_RULES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "any": lambda _new, _old: True,
    "less": lambda new, old: bool(new is not None and (old is None or new <= old)),
    "shorter": _shorter,
    "off": lambda new, old: bool(old or not new),
    "on": lambda new, old: bool(new or not old),
    "part": lambda new, old: set(new) <= set(old),
    "extensions": _extensions,
    "limits": lambda new, old: all(name in new and new[name] <= most for name, most in old.items()),
}
"""(value of the file, value without the file) -> whether the file's allows nothing more."""


def widening(values: Mapping[str, Any], base: AgentContext) -> tuple[str, ...]:
    """Those of the file's fields that need the user's trust, in the file's order; `base` is what holds without it."""
    return tuple(name for name, value in values.items() if not _is_narrower(name, value, base))


def _is_narrower(name: str, value: Any, base: AgentContext) -> bool:
    old, rule = getattr(base, name), SETTINGS[name].trust
    if value == (list(old) if isinstance(old, tuple) else old):
        return True
    if isinstance(rule, tuple):
        return value in rule and old in rule and rule.index(value) <= rule.index(old)
    if rule == "times":  # a tool that is not named has the usual time
        usual = base.tool_timeout_s
        return all(value.get(tool, usual) <= old.get(tool, usual) for tool in {*value, *old})
    return bool(rule) and _RULES[rule](value, old)
