"""What a client of a server may have of the context that it sends: what the server's operator allows, or less.

Whoever can send requests to a server is not yet whoever started it. The operator says what runs may do in the user's
own `config.toml`, or where the graph is built; the folder of the server is the one that workspaces lie in.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from graph.configuration.loading import CONFIG_VARIABLE, FILE_NAME, load_context
from graph.configuration.narrowing import Allowance, fields_set, narrowed, refusal
from graph.configuration.trust import widening
from graph.context import AgentContext
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.user_files import configuration_file
from nodes.records import StopCause, ToolError

_BUILT: Final = "in build_graph(context=AgentContext(...))"

ROOT_VARIABLE: Final = "MENDGRAPH_ROOT"
"""Names the folder that workspaces of a server's runs lie in, instead of the one that it was started in."""


def client_context(given: object, bound: AgentContext | None) -> object:
    """The context that a client gets for the one that it has sent, a StopCause that says why it gets none.

    `bound` is what the graph was built with; without it the operator's settings are the most that is allowed. What is
    no context of ours comes back as it is: it belongs to a graph around this one.
    """
    if not isinstance(given, AgentContext) and (bound is not None or not isinstance(given, Mapping | None)):
        return given
    most = operator_allowance() if bound is None else _allowance(bound, _BUILT)
    if isinstance(most, StopCause):
        return most
    asked = {name: value for name, value in fields_set(given).items() if not _is_left_as_it_is(name, value, most)}
    folder = _folder(asked.get("workspace", "."), most.context.workspace)
    return folder if isinstance(folder, StopCause) else narrowed(asked, most, folder)


@lru_cache(1)
def operator_allowance() -> Allowance | StopCause:
    """The most that clients of this process may ask for, which is read once; why nothing is allowed."""
    found = load_context(os.environ.get(ROOT_VARIABLE) or ".", workspace_file=False)
    if isinstance(found, ToolError):
        return refusal(f"This server's settings are wrong: {found.message}")
    path = os.environ.get(CONFIG_VARIABLE, configuration_file(FILE_NAME))
    where = f"in {quoted(path)}" if path and isinstance(path, str) else f"in a file that {CONFIG_VARIABLE} names"
    return _allowance(found, f"{where} and start the server again, or {_BUILT}")


def _allowance(context: AgentContext, where: str) -> Allowance:
    folder = os.path.realpath(context.workspace)
    refused = f"This server does not allow its clients what the request sets: {{}}. Leave it out, or allow it {where}."
    return Allowance(context.model_copy(update={"workspace": folder}), None, refused)


def _is_left_as_it_is(name: str, value: object, most: Allowance) -> bool:
    """Whether a form was sent with this field as it shows it, although the operator allows less or other things.

    The address of the environment is the operator's own as well.
    """
    if name == "base_url" and value == "":
        return True
    if name == "base_url" and most.context.base_url is None and isinstance(value, str):
        return value.rstrip("/") == os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")
    field = AgentContext.model_fields.get(name)
    plain = list(value) if isinstance(value, tuple) else value
    return field is not None and value == field.default and bool(widening({name: plain}, most.context))


def _folder(workspace: object, root: str) -> str | StopCause:
    """The real name of a folder at or below `root`; whether there is one is seen when the turn begins."""
    try:
        real = os.path.realpath(os.path.join(root, str(workspace)))
    except ValueError as error:
        return refusal(f"The workspace {quoted(str(workspace))} is no folder's name: {error}.")
    if os.path.commonpath((root, real)) == root:
        return real
    return refusal(
        f"The workspace {quoted(str(workspace))} is outside {quoted(root)}, the folder of this server: choose one in "
        f"it, or start the server with {ROOT_VARIABLE} set to a folder that holds both."
    )
