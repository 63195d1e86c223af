"""The choice of a sandbox: the backend that the setting names, or the first that starts on this machine."""

from collections.abc import Callable, Mapping
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.sandboxes.bubblewrap import Bubblewrap
from mendgraph.nodes.workspace.sandboxes.sandbox import Sandbox

AUTO: Final = "auto"
CONTAINER: Final = "container"
_DECLARE_CONTAINER: Final = "in a container that programs may change as a whole, use `--sandbox container`"


def _landlock() -> Sandbox:  # its modules are loaded only where it is used
    from mendgraph.nodes.workspace.sandboxes.landlock import Landlock

    return Landlock()


def _container() -> Sandbox:
    from mendgraph.nodes.workspace.sandboxes.container import Container

    return Container()


BACKENDS: Mapping[str, Callable[[], Sandbox]] = {
    "bubblewrap": Bubblewrap,
    "landlock": _landlock,
    CONTAINER: _container,
}
"""The constructor of each backend, by the value of the setting `sandbox`."""

AUTOMATIC: Final = ("bubblewrap", "landlock")
"""The backends that `auto` tries, in this order."""


def choose_sandbox(kind: str = AUTO) -> Sandbox | ToolError:
    """Return the sandbox of this kind; UNAVAILABLE with each problem and its remedy if none starts."""
    if kind != AUTO and kind not in BACKENDS:
        return invalid(f"There is no sandbox {quoted(kind)}: choose one of {', '.join((AUTO, *BACKENDS))}.")

    problems = []

    for name in AUTOMATIC if kind == AUTO else (kind,):
        sandbox = BACKENDS[name]()
        problem = sandbox.problem()
        if problem is None:
            return sandbox

        problems.append(problem)

    reasons = "; ".join(dict.fromkeys(problems))
    remedy = "" if kind == CONTAINER else f"; {_DECLARE_CONTAINER}"
    message = f"Commands cannot run on this machine, because no sandbox starts: {reasons}{remedy}."

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
