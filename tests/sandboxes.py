"""The sandboxes of this machine in tests: what is skipped without one, and a machine on which none starts."""

import pytest

from mendgraph.nodes.execute_tools.processes.backends import BACKENDS, sandbox_problem

needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason="no sandbox for programs here")


def set_sandbox_problem(monkeypatch: pytest.MonkeyPatch, problem: str | None) -> None:
    """Let every backend report this problem, or none."""
    for backend in BACKENDS.values():
        monkeypatch.setattr(type(backend()), "problem", lambda _: problem)
