"""Which tools a run may use, by the role that it was given. Source: spec 4, policy guardrails."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode, ToolSpec

_LOOKING = frozenset({Effect.NONE, Effect.READ})
_EDITING = _LOOKING | {Effect.WRITE}


def _reads(spec: ToolSpec) -> bool:
    return spec.effect in _LOOKING


def _edits(spec: ToolSpec) -> bool:
    return spec.effect in _EDITING


def _anything(_: ToolSpec) -> bool:
    return True


BUILT_IN_ROLES: Final[Mapping[str, Callable[[ToolSpec], bool]]] = MappingProxyType(
    {"reader": _reads, "editor": _edits, "operator": _anything}
)
"""A reader looks, an editor changes files too, an operator also runs programs and goes out."""


def allowed_tools(
    role: str | None, custom: Mapping[str, Collection[str]], specs: Iterable[ToolSpec]
) -> frozenset[str] | ToolError:
    """The names of the tools in `specs` that this role may use, or what is wrong with the role.

    `custom` are the user's own roles: lists of tool names. No role allows everything. Tools that end the run are
    always allowed, since a run that cannot answer cannot end well.
    """
    specs = tuple(specs)
    ending = {spec.name for spec in specs if spec.terminal}
    if role is None:
        return frozenset(spec.name for spec in specs)
    if role in BUILT_IN_ROLES and role in custom:
        message = f"The role {role!r} is built in and cannot be redefined: give yours another name."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    if role in BUILT_IN_ROLES:
        may = BUILT_IN_ROLES[role]
        return frozenset({spec.name for spec in specs if may(spec)} | ending)
    if role not in custom:
        return _unknown(ToolErrorCode.INVALID_ARGUMENT, f"There is no role {role!r}.", role, [*BUILT_IN_ROLES, *custom])
    known = {spec.name for spec in specs}
    for name in sorted(set(custom[role]) - known):
        return _unknown(ToolErrorCode.UNKNOWN_TOOL, f"The role {role!r} names an unknown tool, {name!r}.", name, known)
    return frozenset(set(custom[role]) | ending)


def _unknown(code: ToolErrorCode, problem: str, name: str, known: Iterable[str]) -> ToolError:
    known = sorted(known)
    meant = closest_names(name, known)
    remedy = f"Did you mean {' or '.join(meant)}?" if meant else f"There are: {', '.join(known) or 'none'}."
    return ToolError(code=code, message=f"{problem} {remedy}", suggestions=meant or tuple(known))
