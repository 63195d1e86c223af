"""Where the project that a request names lies: never a path from a request."""

import os
import stat
from collections.abc import Callable
from importlib import import_module
from typing import Any

from mendgraph.graph.configuration.narrowing import refusal
from mendgraph.graph.fleet.serving.tenants import Tenants, is_name
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.store.postgres_url import give_workspace_name, uses_postgres
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder
from mendgraph.nodes.records import StopCause, ToolError

Resolver = Callable[[str, str], str | None]
"""(user, project) -> the absolute folder of that project, None where the user has none of this name."""


def load_resolver(tenants: Tenants) -> Resolver:
    """The function that the tenants file names, or the one that looks below `root`.

    Raises:
        ValueError: there is no such function, or no such folder; the message says so in one line.
    """
    if not tenants.resolver:
        root = os.path.realpath(tenants.root)
        if not os.path.isdir(root):
            raise ValueError(f"root: there is no folder {quoted(tenants.root)}: make it, or name another one")
        return lambda user, project: _below(root, user, project)
    module, _, name = tenants.resolver.partition(":")
    try:
        found: Any = getattr(import_module(module), name)
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(f"resolver: {tenants.resolver} cannot be loaded ({type(error).__name__}: {said})") from error
    if not callable(found):
        raise ValueError(f"resolver: {tenants.resolver} is no function of a user and a project")  # noqa: TRY004 - it is the file that is wrong
    resolver: Resolver = found
    return resolver


def project_folder(resolver: Resolver, user: str, project: object) -> str | StopCause:
    """The real folder of a user's project, which has its name in the shared store; or why there is none."""
    if not isinstance(project, str) or project in {"", "."}:
        return refusal('The request names no project: set workspace in its context to one\'s name, such as "website".')
    if not is_name(project):
        shown = quoted(project[:80])
        return refusal(f"{shown} is no project's name: workspace is one name of A-Z a-z 0-9 . _ -, and no path.")
    try:
        found = resolver(user, project)
    except Exception as error:  # noqa: BLE001 - an operator's function may fail in any way, and none of them opens a door
        return refusal(f"The server's resolver failed for the project {project} ({type(error).__name__}).")
    if found is None:
        return refusal(f"There is no project {project}. Ask the people who run this server for it.")
    if not isinstance(found, str) or not os.path.isabs(found) or not os.path.isdir(found):
        return refusal(f"The server's resolver gave no folder for the project {project}.")
    real = os.path.realpath(found)
    named = _name_in_store(real, f"{user}/{project}") if uses_postgres() else None
    return real if named is None else refusal(named.message)


def _name_in_store(folder: str, name: str) -> ToolError | None:
    records = workspace_folder(folder)
    return records if isinstance(records, ToolError) else give_workspace_name(records, name)


def _below(root: str, user: str, project: str) -> str | None:
    """The folder `<root>/<user>/<project>`, where both are folders themselves and no links to others."""
    folder = root
    for name in (user, project):
        folder = os.path.join(folder, name)
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                return None
        except OSError:
            return None
    return folder
