"""The sandboxes of this machine in tests: what is skipped without one, and a machine on which none starts."""

import os
import re
from contextlib import suppress

import pytest

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.sandboxes.backends import AUTO, BACKENDS, choose_sandbox


def sandbox_problem(kind: str = AUTO) -> str | None:
    """Why no sandbox of this kind starts on this machine, with the remedy; None where one does."""
    sandbox = choose_sandbox(kind)
    return sandbox.message if isinstance(sandbox, ToolError) else None


__all__ = ["AUTO", "needs_sandbox", "open_handles", "sandbox_problem", "set_sandbox_problem", "without_first_line"]

needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason="no sandbox for programs here")


def set_sandbox_problem(monkeypatch: pytest.MonkeyPatch, problem: str | None) -> None:
    """Let every backend report this problem, or none."""
    for backend in BACKENDS.values():
        monkeypatch.setattr(type(backend()), "problem", lambda _: problem)


def without_first_line(err: str) -> str:
    """What follows the first line of a run, which names the model, the mode, the sandbox and the limits."""
    first, _, remainder = err.partition("\n")
    return remainder if re.match("mendgraph: (?!resumes)(.*, )?mode (auto|ask|read-only)", first) else err


def open_handles() -> int:
    """How many handles this process has open, without those of the folders that sandboxes keep for a run."""
    names = []
    for handle in os.listdir("/dev/fd"):
        with suppress(OSError):  # that of the listing
            names.append(os.readlink(f"/dev/fd/{handle}"))
    return sum("/mendgraph-sandbox-" not in name for name in names)
