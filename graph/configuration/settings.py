"""The metadata of a field of `AgentContext`, for the command line, the documents and trust."""

import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

if TYPE_CHECKING:
    from mendgraph.nodes.workspace.files.sandbox import StrPath

    class FolderName:
        """A str that a path may be assigned to (PEP 681: the argument's type is that of `__set__`)."""

        def __get__(self, of: object, kind: object = None) -> str: ...
        def __set__(self, of: object, value: StrPath) -> None: ...
else:
    FolderName = Annotated[str, BeforeValidator(lambda it: os.fspath(it) if isinstance(it, os.PathLike) else it)]

MOST = 2**53
"""The largest count of a context, which JSON and checkpoints represent exactly."""


class Setting(NamedTuple):
    """The metadata of a field beside its type, default, bounds and description.

    `trust` says when an untrusted file of a workspace may set the field: the name of a rule in `loading.py`, or the
    values in order, the strictest first; "" is never. `protects`: the user relies on the value, such as on checks, so
    that such a file may not change it. `option` is the option of the command line with its metavar; `choices` are its
    values if the field takes more. `panel` is the group of the option in the help.
    """

    trust: str | tuple[str | None, ...] = ""
    option: str = ""
    choices: tuple[str, ...] = ()
    protects: bool = False
    panel: str = "Context"


def setting(
    default: Any,
    description: str,
    *,
    trust: str | tuple[str | None, ...] = "",
    option: str = "",
    choices: tuple[str, ...] = (),
    protects: bool = False,
    panel: str = "Context",
    **bounds: Any,
) -> Any:
    """Return a field of `AgentContext` with its metadata."""
    field = Field(default, description=description, **bounds)
    field.metadata.append(Setting(trust, option, choices, protects, panel))
    return field


def limit(default: Any, description: str, **more: Any) -> Any:
    """Return a field for a limit: a count from 1, unless `more` has another bound. An untrusted file may lower it."""
    return setting(default, description, trust="less", panel="Limits", **({"ge": 1, "le": MOST} | more))
