"""What a request to a server gets of what it asks for: less than its client may have, never more. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from graph.configuration.trust import RULES, widening
from graph.context import AgentContext
from nodes.call_model.endpoint import split_provider
from nodes.records import StopCause, StopReason

_SMALLER: Final = frozenset(name for name, rule in RULES.items() if rule is RULES["max_steps"])
"""Limits: of what is asked and what is allowed, the smaller one holds, None being no limit."""

_FREE: Final = frozenset({"answer_schema"})
"""What gives a run no further rights."""


class Allowance(NamedTuple):
    """The most that the runs of a client may do.

    `context` is also what holds where nothing is asked. `models` are those that may be named besides its own, None
    meaning any at its own endpoints. `refusal` says in one line, with `{}` for the fields, that they are not allowed.
    """

    context: AgentContext
    models: Collection[str] | None
    refusal: str


def narrowed(asked: Mapping[str, Any], most: Allowance, folder: str) -> AgentContext | StopCause:
    """The context of a client's run in this folder, or why there is none.

    `asked` are the fields that the request sets, its `workspace` having led to `folder`. Limits are the smaller of
    both; whatever else would be more than the client may have is refused.
    """
    wanted = {name: value for name, value in asked.items() if name != "workspace"}
    try:
        given, base = AgentContext.model_validate(wanted), most.context
        taken = {name: _plain(getattr(given, name)) for name in wanted}
        for name in _SMALLER & taken.keys():
            taken[name] = _smaller(taken[name], getattr(base, name))
        if taken.get("answer_schema") != base.answer_schema and _has_patterns(taken.get("answer_schema")):
            return refusal("answer_schema may have no `pattern` or `patternProperties` on this server: leave them out.")
        if what := ", ".join(_wider(taken, most)):
            return refusal(most.refusal.replace("{}", what))
        return AgentContext.model_validate({**base.model_dump(), **taken, "workspace": folder})
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        path = ".".join(map(str, first["loc"])) or "context"
        return refusal(f"The request's context does not fit: {path}: {first['msg'].removeprefix('Value error, ')}.")


def fields_set(asked: object) -> Mapping[str, Any]:
    """What a request has set of its context, which the server may have read already."""
    if isinstance(asked, AgentContext):
        return {name: getattr(asked, name) for name in asked.model_fields_set}
    return asked if isinstance(asked, Mapping) else {}


def too_wide(stored: AgentContext, most: Allowance) -> tuple[str, ...]:
    """The fields of a context with which its client may do more than it is allowed now."""
    fields = AgentContext.model_fields.keys() - {"workspace"}
    return _wider({name: _plain(getattr(stored, name)) for name in sorted(fields)}, most)


def refusal(message: str, reason: StopReason = StopReason.INVALID_REQUEST) -> StopCause:
    """Why a run does not begin."""
    return StopCause(reason=reason, message=message)


def _wider(values: Mapping[str, Any], most: Allowance) -> tuple[str, ...]:
    unlisted = {name: value for name, value in values.items() if not _is_allowed(name, value, most)}
    return widening(unlisted, most.context)


def _smaller(asked: Any, most: Any) -> Any:
    return min((each for each in (asked, most) if each is not None), default=None)


def _is_allowed(name: str, value: Any, most: Allowance) -> bool:
    """Whether this is a value that the client may choose."""
    if name == "model":
        return _may_name(value, most)
    if name == "fallback_models":
        return all(_may_name(each, most) or each in most.context.fallback_models for each in value)
    return name in _FREE


def _may_name(model: str | None, most: Allowance) -> bool:
    """Whether the client may choose this model.

    Where any may be chosen, none that names an address, and none whose provider's key is not for the address given.
    """
    if most.models is not None or model is None:
        return model in (most.models or ())
    asked, own = (split_provider(each or "")[0] or "openai" for each in (model, most.context.model))
    return "://" not in model and (most.context.base_url is None or asked == own)


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
