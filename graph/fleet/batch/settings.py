"""What a task may do: what the user allows, less what its workspace's settings take away, within its own limits."""

import json
import os
from typing import Any

from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import read_user_settings, read_workspace_settings, widening
from mendgraph.graph.fleet.batch.orders import WorkOrder
from mendgraph.nodes.execute_tools.store.user_files import is_one_of, trusted_hash
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

ANY_FILE = "*"
"""What `WorkOrder.trusted` is where the user trusts the folder, whatever its settings are."""

_REMEDY = (
    "a repository's own file may only narrow what you allow; read it, then trust it in the folder that the task names"
    " (`mendgraph config trust`), or leave it out with --no-workspace-config"
)


def context_of(order: WorkOrder, root: str) -> AgentContext | ToolError:
    """The context of the order's run in the copy at `root`; INVALID_ARGUMENT says what refuses the task its run."""
    try:
        allowed = AgentContext.model_validate_json(order.context)
        given: JsonMap = json.loads(order.given)
        own = _own_settings(order, root, allowed) if order.own_settings else {}
        if isinstance(own, ToolError):
            return own
        values: dict[str, Any] = {**allowed.model_dump(), **own, **given, **order.task.limits, "workspace": root}
        return AgentContext(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        said = str(first["msg"]).removeprefix("Value error, ")
        return _refused(f"The task's settings do not fit together ({field + ': ' if field else ''}{said}).")


def trusted_settings(workspace: str) -> str:
    """Which settings file of the folder may also widen what the user allows: the hash of the one that is trusted.

    `ANY_FILE` where the user trusts the folder, "" where neither is trusted.
    """
    user = read_user_settings(os.environ)
    if not isinstance(user, tuple) and is_one_of(workspace, user.trusted):
        return ANY_FILE
    return trusted_hash(workspace)


def _own_settings(order: WorkOrder, root: str, allowed: AgentContext) -> JsonMap | ToolError:
    found = read_workspace_settings(root)
    if isinstance(found, tuple):
        return _refused("\n".join(map(str, found)))
    of_environment = {"base_url"} if os.environ.get("OPENAI_BASE_URL", "").strip() else set()
    own = {name: value for name, value in found.values.items() if name not in of_environment}
    if order.trusted in {ANY_FILE, found.sha256}:
        return own
    widens = widening(own, allowed)
    if widens:
        named = ", ".join(widens)
        return _refused(f"{found.file} of the task's workspace sets {named}, which needs your trust: {_REMEDY}.")
    return own


def _refused(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
