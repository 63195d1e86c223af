"""Permanent permissions of workspaces, in a file of the user's configuration that no run can read or change.

Only a person's answer at the user's own terminal or editor adds one.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.store.user_files import configuration_file, exchange, read_bytes

PERMISSIONS_FILE: Final = "permissions.json"


def list_permissions(workspace: str = "") -> tuple[Permission, ...] | ToolError:
    """Return the permissions of the workspace with this real path, or all of them, in the order of addition."""
    path = configuration_file(PERMISSIONS_FILE)
    data = path if isinstance(path, ToolError) else read_bytes(path)
    if isinstance(data, ToolError):
        return () if data.code is ToolErrorCode.NOT_FOUND else data

    permissions = _read(data, str(path))
    if isinstance(permissions, ToolError):
        return permissions

    return tuple(permission for permission in permissions if workspace in ("", permission.place))


def keep_permission(permission: Permission) -> ToolError | None:
    """Add a permission for later runs in its workspace."""
    return _exchange(lambda permissions: list(dict.fromkeys([*permissions, permission])))


def remove_permissions(ids: Sequence[str]) -> ToolError | None:
    """Remove the permissions with these ids."""
    return _exchange(lambda permissions: [permission for permission in permissions if permission.id not in ids])


def _exchange(change: Callable[[Sequence[Permission]], list[Permission]]) -> ToolError | None:
    path = configuration_file(PERMISSIONS_FILE)
    if isinstance(path, ToolError):
        return path

    def changed(data: bytes) -> bytes | ToolError:
        stored = _read(data, path)
        if isinstance(stored, ToolError):
            return stored

        permissions = [permission.model_dump(mode="json") for permission in change(stored)]
        return f"{json.dumps({'permissions': permissions}, indent=2)}\n".encode()

    return exchange(path, changed)


def _read(data: bytes, path: str) -> list[Permission] | ToolError:
    try:
        document = json.loads(data or b'{"permissions": []}')
        return TypeAdapter(list[Permission]).validate_python(document["permissions"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        return invalid(f"{quoted(path)} is not a list of permissions: fix it, or move it away.")
