"""Where effects live: the workspace by handle, atomic writes, processes, the network, deadlines, logs.

`Environment` and `ExecResult` are spec 4's names, found when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodes.execute_tools.environment.actions import Environment, ExecResult

__all__ = ["Environment", "ExecResult"]


def __getattr__(name: str) -> Any:
    """Import them on first use: they stand on the engine, which stands on the other files here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nodes.execute_tools.environment import actions

    return getattr(actions, name)
