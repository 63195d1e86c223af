"""Fixtures of a workspace in a temporary folder, and calls of tools in it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.workspace.files.layout import SECRET, build, no_env, tree_of


def deny_env(path: str, for_write: bool) -> ToolError | None:
    """A path judge that denies paths which end with .env."""
    if not path.endswith(".env"):
        return None
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"{path} is secret ({for_write=}).")


class Bench:
    """A workspace with the hashes of the files that were read, which each call updates as the state does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = Workspace(str(root), deny_env)
        self.files_read: dict[str, str] = {}
        self.syntax_gate: Literal["off", "report", "refuse"] = "report"

    def renewed(self, number: int) -> "Bench":
        """A new workspace beside this one, for another row of a table."""
        root = self.root.with_name(f"{self.root.name}{number}")
        root.mkdir()
        return Bench(root)

    def put(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def bytes_of(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def run(self, tool: Tool, **arguments: Any) -> ToolOutput:
        context = ToolContext(self.workspace, dict(self.files_read), syntax_gate=self.syntax_gate)
        output: ToolOutput = tool.s(context, **arguments)
        self.files_read.update(output.files_read)
        return output

    def data(self, tool: Tool, **arguments: Any) -> JsonMap:
        output = self.run(tool, **arguments)
        assert output.result.error is None
        return output.result.data

    def error(self, tool: Tool, **arguments: Any) -> ToolError:
        output = self.run(tool, **arguments)
        assert output.result.error is not None
        assert (output.changes, output.files_read, output.plan) == ((), {}, None)
        return output.result.error


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    root = tmp_path / "root"
    root.mkdir()
    return Bench(root)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The workspace of `layout.build`. The test fails if it leaves a handle open or changes a file outside."""
    root = build(tmp_path.resolve())
    before = len(os.listdir("/dev/fd"))
    yield root
    assert len(os.listdir("/dev/fd")) == before, "a handle was left open"
    assert tree_of(tmp_path / "outside") == {"secret.txt": SECRET}


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(str(root), no_env)
