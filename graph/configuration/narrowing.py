"""The context of a request to a server: what the client asks for, within what it may have. Pure."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from langgraph.runtime import Runtime
from pydantic import ValidationError

from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.loading import (
    CONFIG_VARIABLE,
    FILE_NAME,
    first_error,
    load_context,
    overlay,
    widening,
)
from mendgraph.nodes.call_model.endpoint import split_provider
from mendgraph.nodes.records import StopCause, StopReason, ToolError, quoted
from mendgraph.nodes.workspace.store.user_files import configuration_file

_SMALLER: Final = frozenset(name for name, setting in SETTINGS.items() if setting.trust == "less")
"""Limits: the smaller of the requested and the allowed value holds; None is no limit."""

_FREE: Final = frozenset({"response_format", "system_prompt"})
"""Fields that give a run no further rights. The operator's system prompt stays."""


class Allowance(NamedTuple):
    """The limits of a client's runs.

    `context` has also the defaults. `models` may be named beside its own, None means any at its own endpoints.
    `refusal` is the message, with `{}` for the fields that are not allowed.
    """

    context: AgentContext
    models: Collection[str] | None
    refusal: str


def narrowed(requested: Mapping[str, Any], most: Allowance, folder: str) -> AgentContext | StopCause:
    """Return the context of a client's run in this folder, or why it is refused.

    `requested` are the fields of the request. The smaller limit holds; any other field that exceeds what the client may
    have is refused.
    """
    fields = {name: value for name, value in requested.items() if name != "workspace"}
    try:
        context = AgentContext.model_validate(fields)
        base = most.context
        values = {name: _plain(getattr(context, name)) for name in fields}

        for name in _SMALLER & values.keys():
            pair = (values[name], getattr(base, name))
            values[name] = min((limit for limit in pair if limit is not None), default=None)

        merged = overlay(base.model_dump(), values)
        values = {name: merged[name] for name in values}
        form = values.get("response_format")
        patterns = "`pattern` or `patternProperties`"

        if form != base.response_format and _has_patterns(form):
            return refusal(f"response_format may have no {patterns} on this server: leave them out.")
        if wider := _wider(values, most):
            return refusal(most.refusal.replace("{}", ", ".join(wider)))

        return AgentContext.model_validate({**merged, "workspace": folder})
    except ValidationError as error:
        path, message = first_error(error)
        return refusal(f"The request's context does not fit: {path or 'context'}: {message}.")


def fields_set(context: object) -> Mapping[str, Any]:
    """Return the fields that a request sets in its context, a mapping or an `AgentContext`."""
    if isinstance(context, AgentContext):
        return {name: getattr(context, name) for name in context.model_fields_set}
    if isinstance(context, Mapping):
        return context

    return {}


def too_wide(stored: AgentContext, most: Allowance) -> tuple[str, ...]:
    """Return the fields of a context that allow its client more than it may have now."""
    fields = AgentContext.model_fields.keys() - {"workspace", "system_prompt"}  # which is stored beside it
    return _wider({name: _plain(getattr(stored, name)) for name in sorted(fields)}, most)


def refusal(message: str, reason: StopReason = StopReason.INVALID_REQUEST) -> StopCause:
    """Return why a run does not begin."""
    return StopCause(reason=reason, message=message)


def _wider(values: Mapping[str, Any], most: Allowance) -> tuple[str, ...]:
    unlisted = {name: value for name, value in values.items() if not _is_allowed(name, value, most)}
    return widening(unlisted, most.context)


def _is_allowed(name: str, value: Any, most: Allowance) -> bool:
    if name == "model":
        return _may_name(value, most)
    if name == "fallback_models":
        return all(_may_name(model, most) or model in most.context.fallback_models for model in value)
    return name in _FREE and not (name == "system_prompt" and most.context.system_prompt)


def _may_name(model: str | None, most: Allowance) -> bool:
    """Return whether the client may choose this model.

    If any may be chosen, it may not name an address, nor a provider whose key is not for the configured address.
    """
    if most.models is not None or model is None:
        return model in (most.models or ())

    provider, own_provider = (split_provider(name or "")[0] or "openai" for name in (model, most.context.model))
    return "://" not in model and (most.context.base_url is None or provider == own_provider)


def _has_patterns(schema: Any) -> bool:
    """Return whether a JSON schema has regular expressions: one can block a server for years."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str) or "patternProperties" in value:
                return True

            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)

    return False


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)

    return value


_BUILT: Final = "in build_graph(context=AgentContext(...))"

ROOT_VARIABLE: Final = "MENDGRAPH_ROOT"
"""Names the folder of the workspaces of a server, by default the one that it was started in."""


def configurable_settings(configurable: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a context in a run's `configurable`, where harbor's `--agent langgraph` names its model.

    It passes the endpoint's address among the arguments of the chat model.
    """
    settings = {name: value for name, value in configurable.items() if name in AgentContext.model_fields}
    arguments = settings.get("model_kwargs")
    if not isinstance(arguments, Mapping) or "base_url" not in arguments:
        return settings

    others = {name: value for name, value in arguments.items() if name != "base_url"}
    return {**settings, "model_kwargs": others, "base_url": arguments["base_url"]}


def client_context(context: object, bound: AgentContext | None) -> object:
    """Return the context that a client gets for the one that it sent, or why it gets none.

    `bound` is the context that the graph was built with; without it the operator's settings are the limit. A context of
    another type is returned unchanged: it belongs to a surrounding graph.
    """
    if not isinstance(context, AgentContext) and (bound is not None or not isinstance(context, Mapping | None)):
        return context

    if bound is None:
        most = operator_allowance()
    else:
        most = _allowance(bound, _BUILT)

    if isinstance(most, StopCause):
        return most

    requested = {name: value for name, value in fields_set(context).items() if not _is_left_as_it_is(name, value, most)}
    folder = _folder(requested.get("workspace", "."), most.context.workspace)
    if isinstance(folder, StopCause):
        return folder

    return narrowed(requested, most, folder)


@lru_cache(1)
def operator_allowance() -> Allowance | StopCause:
    """Return the limits of the clients of this process, which are read once, or why nothing is allowed."""
    context = load_context(os.environ.get(ROOT_VARIABLE) or ".", workspace_file=False)
    if isinstance(context, ToolError):
        return refusal(f"This server's settings are wrong: {context.message}")

    path = os.environ.get(CONFIG_VARIABLE, configuration_file(FILE_NAME))
    if path and isinstance(path, str):
        where = f"in {quoted(path)}"
    else:
        where = f"in a file that {CONFIG_VARIABLE} names"

    return _allowance(context, f"{where} and start the server again, or {_BUILT}")


def _allowance(context: AgentContext, where: str) -> Allowance:
    folder = os.path.realpath(context.workspace)
    refused = f"This server does not allow its clients what the request sets: {{}}. Leave it out, or allow it {where}."
    return Allowance(context.model_copy(update={"workspace": folder}), None, refused)


def _is_left_as_it_is(name: str, value: object, most: Allowance) -> bool:
    """Return whether a form was sent with the default of this field, although the operator allows less.

    The address of the environment is the operator's own as well.
    """
    if name == "base_url" and most.context.base_url is None and isinstance(value, str):
        return value.rstrip("/") == os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")

    field = AgentContext.model_fields.get(name)
    return field is not None and value == field.default and bool(widening({name: _plain(value)}, most.context))


def _folder(workspace: object, root: str) -> str | StopCause:
    """Return the real path of a folder at or below `root`; whether it exists is checked when the turn begins."""
    try:
        real = os.path.realpath(os.path.join(root, str(workspace)))
    except ValueError as error:
        return refusal(f"The workspace {quoted(str(workspace))} is not the name of a folder: {error}.")

    if os.path.commonpath((root, real)) == root:
        return real

    return refusal(
        f"The workspace {quoted(str(workspace))} is outside {quoted(root)}, the folder of this server: choose one in "
        f"it, or start the server with {ROOT_VARIABLE} set to a folder that holds both."
    )


# --- The context of a turn

_OF_SERVERS: Final = re.compile(r"__|x-|langgraph|langsmith|checkpoint_|(thread|run|assistant|graph|user|cron)_id$")
"""Keys of LangGraph's servers and clients in `configurable`, which a server uses as the context of a run."""

_REMEDY = "set what this agent may do when you build it: build_graph(context=AgentContext(...))"


@dataclass(frozen=True)
class Admission:
    """A server's decision about a turn: its context, or why it is refused; `owner` is the user."""

    context: AgentContext | StopCause
    owner: str

    def run_id(self, thread: str) -> str:
        """Return the run's id in our records, which differs for threads of two owners."""
        return f"{self.owner}/{thread}"


def read_context(context: object) -> object:
    """Return the context that a mapping has, or an `Admission` with its error; other values unchanged."""
    if not isinstance(context, Mapping):
        return context

    fields = {str(name): value for name, value in context.items() if not _OF_SERVERS.match(str(name))}
    try:
        return AgentContext(**fields)
    except ValidationError as error:
        path, message = first_error(error)
        return Admission(refusal(f"The run's context does not fit: {path or 'context'}: {message}."), "")


def given_context(context: object, bound: AgentContext | None, stored: AgentContext | None) -> AgentContext | StopCause:
    """Return the context of a turn, or why there is none.

    `context` is that of the run. Inside another graph it is that graph's context, of any type; the agent's is then
    `bound`, with which its graph was built. `stored` is that of the thread's last turn.
    """
    if isinstance(context, AgentContext):
        return context
    if isinstance(context, Admission):
        return context.context
    if context is None:
        return bound or stored or AgentContext()
    if bound is not None:
        return bound
    if not isinstance(context, Mapping):
        kind = type(context).__name__
        return refusal(f"The context of the run has the type {kind}, which is not an AgentContext: {_REMEDY}.")

    try:
        return AgentContext.model_validate(dict(context))
    except ValidationError as error:
        path, message = first_error(error)
        where = path or "context"
        return refusal(f"The context of the run is not an AgentContext ({where}: {message}): {_REMEDY}.")


def run_id_of(runtime: Runtime[AgentContext]) -> str:
    """Return the id of the thread, on a server for several users with its owner; "" without a thread.

    In a surrounding graph the id has the checkpoint namespace: its agents share a thread, but no records.
    """
    info = runtime.execution_info
    if info is None or info.thread_id is None:
        return ""

    place = info.checkpoint_ns.rpartition("|")[0]
    thread = str(info.thread_id)
    if place:
        thread = f"{thread}|{place}"

    admitted = cast("object", runtime.context)

    if isinstance(admitted, Admission):
        return admitted.run_id(thread)

    return thread
