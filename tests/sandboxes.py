"""Skip tests without a sandbox, and simulate a machine on which no sandbox starts."""

import os
import re
from contextlib import suppress

import pytest

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.sandboxes.backends import AUTO, BACKENDS, choose_sandbox


def sandbox_problem(kind: str = AUTO) -> str | None:
    """The reason why no sandbox of this kind starts on this machine, with the remedy; None if one starts."""
    sandbox = choose_sandbox(kind)
    return sandbox.message if isinstance(sandbox, ToolError) else None


__all__ = ["AUTO", "needs_sandbox", "open_handles", "sandbox_problem", "set_sandbox_problem", "without_first_line"]

needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason="no sandbox starts on this machine")


def set_sandbox_problem(monkeypatch: pytest.MonkeyPatch, problem: str | None) -> None:
    """Let every sandbox backend report this problem; None means that it starts."""
    for backend in BACKENDS.values():
        monkeypatch.setattr(type(backend()), "problem", lambda _: problem)


def without_first_line(err: str) -> str:
    """Standard error without its first line, if that names the model, the mode, the sandbox and the limits."""
    first, _, remainder = err.partition("\n")
    return remainder if re.match("mendgraph: (?!resumes)(.*, )?mode (auto|ask|read-only)", first) else err


def open_handles() -> frozenset[str]:
    """The open file handles of this process and what they open, without folders that sandboxes use during a run.

    A test compares sets: an earlier test may release a handle late, which must not hide one that is left open.
    """
    handles = []
    for handle in os.listdir("/dev/fd"):
        with suppress(OSError):  # the handle of the listing itself
            handles.append(f"{handle} {os.readlink(f'/dev/fd/{handle}')}")
    return frozenset(handle for handle in handles if "/mendgraph-sandbox-" not in handle)
