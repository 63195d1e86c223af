"""Which sandbox a run uses: the one that its setting names, or the first that starts on this machine."""

from collections.abc import Callable, Mapping
from typing import Final

from mendgraph.nodes.execute_tools.processes.bubblewrap import Bubblewrap
from mendgraph.nodes.execute_tools.processes.sandbox import Sandbox
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted

AUTO: Final = "auto"
CONTAINER: Final = "container"

_DECLARE_CONTAINER: Final = "in a container that programs may change as a whole, use `--sandbox container`"


def _landlock() -> Sandbox:
    """Runs in the usual sandbox do not load it."""
    from mendgraph.nodes.execute_tools.processes.landlock import Landlock

    return Landlock()


def _container() -> Sandbox:
    """The same."""
    from mendgraph.nodes.execute_tools.processes.container import Container

    return Container()


BACKENDS: Mapping[str, Callable[[], Sandbox]] = {
    "bubblewrap": Bubblewrap,
    "landlock": _landlock,
    "container": _container,
}
"""What makes each backend, by the value of the setting `sandbox`."""

AUTOMATIC: Final = ("bubblewrap", "landlock")
"""Those that `auto` tries, in this order."""


def choose_sandbox(kind: str = AUTO) -> Sandbox | ToolError:
    """The sandbox of this kind; UNAVAILABLE with each problem and its remedy where none starts."""
    names = AUTOMATIC if kind == AUTO else (kind,)
    if unknown := [name for name in names if name not in BACKENDS]:
        return invalid(f"There is no sandbox {quoted(unknown[0])}: choose one of {', '.join((AUTO, *BACKENDS))}.")

    problems = []

    for name in names:
        sandbox = BACKENDS[name]()
        problem = sandbox.problem()
        if problem is None:
            return sandbox

        problems.append(problem)

    reasons = "; ".join(dict.fromkeys(problems))
    remedy = "" if kind == CONTAINER else f"; {_DECLARE_CONTAINER}"
    message = f"Commands cannot be run on this machine, as their sandbox does not start: {reasons}{remedy}."

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def sandbox_problem(kind: str = AUTO) -> str | None:
    """Why no sandbox of this kind starts on this machine, with the remedy; None where one does."""
    sandbox = choose_sandbox(kind)
    if isinstance(sandbox, ToolError):
        return sandbox.message

    return None
