"""The sandboxes of this machine in tests: what is skipped without one, and a machine on which none starts."""

import pytest

from mendgraph.nodes.execute_tools.processes.backends import BACKENDS, sandbox_problem

needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason="no sandbox for programs here")


def set_sandbox_problem(monkeypatch: pytest.MonkeyPatch, problem: str | None) -> None:
    """Let every backend report this problem, or none."""
    for backend in BACKENDS.values():
        monkeypatch.setattr(type(backend()), "problem", lambda _: problem)


def without_sandbox_line(err: str) -> str:
    """What follows the first line of a run, which names the sandbox of its programs."""
    first, _, rest = err.partition("\n")
    return rest if first.startswith("mendgraph: programs run in the sandbox ") else err
