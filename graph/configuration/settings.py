"""What there is to know of a field of `AgentContext` beside its type: the command line, documents and trust use it."""

import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.files.sandbox import StrPath

    class FolderName:
        """A text, for which a path may be given (PEP 681: the type of a descriptor's `__set__` is the argument's)."""

        def __get__(self, of: object, kind: object = None) -> str: ...
        def __set__(self, of: object, value: StrPath) -> None: ...
else:
    FolderName = Annotated[str, BeforeValidator(lambda it: os.fspath(it) if isinstance(it, os.PathLike) else it)]

MOST = 2**53
"""The largest count that a context may hold: JSON and the checkpoints hold it exactly."""


class Setting(NamedTuple):
    """What else there is to know of a field, beside its type, default, bounds and description.

    `trust` says when a workspace's own file may set it although the user does not trust the file: the name of a rule
    in `mendgraph.graph.configuration.loading`, or the values in order, the strictest one first; "" is never. `protects`
    says that the user relies on the value, such as on checks: that file may then make it neither more nor less.
    `option` is the option of the command line, with its metavar, "" where there is none; `choices` are its values where
    the field takes more.
    """

    trust: str | tuple[str | None, ...] = ""
    option: str = ""
    choices: tuple[str, ...] = ()
    protects: bool = False


def setting(
    default: Any,
    description: str,
    *,
    trust: str | tuple[str | None, ...] = "",
    option: str = "",
    choices: tuple[str, ...] = (),
    protects: bool = False,
    **bounds: Any,
) -> Any:
    """A field of `AgentContext`: all that there is to know of it."""
    field = Field(default, description=description, **bounds)
    field.metadata.append(Setting(trust, option, choices, protects))
    return field


def limit(default: Any, description: str, **more: Any) -> Any:
    """The same of a limit: a count from 1 on, unless `more` has another bound; a workspace's own file may lower it."""
    return setting(default, description, trust="less", **({"ge": 1, "le": MOST} | more))
