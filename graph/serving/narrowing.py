"""What a request gets of what it asks for: less than its user may have, never more. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from graph.configuration.trust import RULES, widening
from graph.context import AgentContext
from graph.serving.tenants import Tenant
from nodes.records import StopCause, StopReason

_SMALLER: Final = frozenset(name for name, rule in RULES.items() if rule is RULES["max_steps"])
"""Limits: of what is asked and what is allowed, the smaller one holds, None being no limit."""

_FREE: Final = frozenset({"answer_schema"})
"""What gives a run no further rights."""


def narrowed(asked: Mapping[str, Any], tenant: Tenant, folder: str) -> AgentContext | StopCause:
    """The context of a run of this user in this folder, or why there is none.

    `asked` are the fields that the request sets, its `workspace` being a project's name, which led to `folder`. Limits
    are the smaller of both; whatever else would be more than the user may have is refused.
    """
    wanted = {name: value for name, value in asked.items() if name != "workspace"}
    try:
        given, base = AgentContext.model_validate(wanted), tenant.context
        taken = {name: _plain(getattr(given, name)) for name in wanted}
        for name in _SMALLER & taken.keys():
            taken[name] = _smaller(taken[name], getattr(base, name))
        if taken.get("answer_schema") != base.answer_schema and _has_patterns(taken.get("answer_schema")):
            return refusal("answer_schema may have no `pattern` or `patternProperties` on this server: leave them out.")
        if what := ", ".join(_wider(taken, tenant)):
            return refusal(f"This server does not allow {tenant.name} what the request sets: {what}. Leave it out.")
        return AgentContext.model_validate({**base.model_dump(), **taken, "workspace": folder})
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        path = ".".join(map(str, first["loc"])) or "context"
        return refusal(f"The request's context does not fit: {path}: {first['msg'].removeprefix('Value error, ')}.")


def too_wide(stored: AgentContext, tenant: Tenant) -> tuple[str, ...]:
    """The fields of a context with which its user may do more than the file says now."""
    fields = AgentContext.model_fields.keys() - {"workspace"}
    return _wider({name: _plain(getattr(stored, name)) for name in sorted(fields)}, tenant)


def refusal(message: str, reason: StopReason = StopReason.INVALID_REQUEST) -> StopCause:
    """Why a run does not begin."""
    return StopCause(reason=reason, message=message)


def _wider(values: Mapping[str, Any], tenant: Tenant) -> tuple[str, ...]:
    unlisted = {name: value for name, value in values.items() if not _is_allowed(name, value, tenant)}
    return widening(unlisted, tenant.context)


def _smaller(asked: Any, most: Any) -> Any:
    return min((each for each in (asked, most) if each is not None), default=None)


def _is_allowed(name: str, value: Any, tenant: Tenant) -> bool:
    """Whether the file names this very value as one to choose."""
    if name == "model":
        return value in tenant.models
    return name in _FREE or (name == "fallback_models" and set(value) <= set(tenant.models))


def _has_patterns(schema: Any) -> bool:
    """Whether a JSON schema brings regular expressions: one can keep a whole server busy for years."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str) or "patternProperties" in value:
                return True
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return False


def _plain(value: Any) -> Any:
    """As a file would have it."""
    return list(value) if isinstance(value, tuple) else value
