"""No code outside of `environment/` uses the name of a file in a workspace, and in there one function opens the root.

`tests/conftest.py` holds every test of the suite to this; here each tool that names files is held to it by name.
"""

import ast
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.engine import Engine
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext
from mendgraph.nodes.execute_tools.store.run_folder import Artifacts
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.apply_patch import apply_patch
from mendgraph.nodes.execute_tools.tools.edit_file import multi_edit
from mendgraph.nodes.execute_tools.tools.write_file import append_file, delete_file, move_file
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.records import Effect, ToolCall, ToolResult
from tests.architecture.product import text_of
from tests.nodes.execute_tools.files.layout import sha
from tests.workspace_watch import EXCUSED, Watch, installed, watched

TEXT = b"# one\ndef f():\n    return 'old'\n"
WORK: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "src/a.py"}),
    ("list_files", {"path": "src"}),
    ("glob_files", {"pattern": "**/*.py"}),
    ("search_files", {"pattern": "one", "glob": "*.py"}),
    ("edit_file", {"path": "src/a.py", "old_str": "one", "new_str": "two"}),
    ("write_file", {"path": "src/new/b.py", "content": "x = 1\n"}),
    ("edit_blocks", {"path": "src/a.py", "content": "def f():\n    return 'new'\n"}),
    ("append_file", {"path": "src/a.py", "content": "# the end\n"}),
    ("multi_edit", {"path": "src/a.py", "edits": [{"old_str": "one", "new_str": "two"}]}),
    ("move_file", {"path": "src/a.py", "target": "moved/a.py"}),
    ("delete_file", {"path": "src/a.py"}),
    ("apply_patch", {"patch": "*** Begin Patch\n*** Update File: src/a.py\n-# one\n+# two\n*** End Patch\n"}),
    ("run_checks", {"paths": ["src/a.py"]}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *[("read_file", {"path": path}) for path in ("nope.py", "../outside.py", ".env", "out.py", "src")],
    *[("write_file", {"path": path, "content": ""}) for path in ("../new.py", "out/new.py", ".git/hooks/x", "src")],
]
TOOLS = {each.name: each for each in (*default_tools(), append_file, apply_patch, delete_file, move_file, multi_edit)}


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    installed()
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_bytes(TEXT)
    (root / ".gitignore").write_text("*.log\n")
    (root / ".env").write_text("KEY=1\n")
    (root / "link.py").symlink_to("src/a.py")
    (root / "out.py").symlink_to(tmp_path / "outside.py")
    (root / "out").symlink_to(tmp_path)
    (tmp_path / "outside.py").write_text("secret\n")
    workspace = Workspace(str(root), partial(judge_path, rules=DEFAULT_GUARDRAIL_RULES))
    return ToolContext(workspace, {"src/a.py": sha(TEXT)}, kept=Artifacts(str(tmp_path / "kept")))


def run(name: str, context: ToolContext, arguments: dict[str, Any]) -> tuple[ToolResult, Watch]:
    engine = Engine(ActionRegistry(TOOLS.values()), TraceSink("run", "step"))
    call = ToolCall(call_id="1", tool=name, arguments=arguments, raw_arguments="")
    with watched() as watch:
        return engine.run_sync(call, context).result, watch


@pytest.mark.parametrize(("name", "arguments"), WORK)
def test_tool_reaches_files_through_the_root_and_by_handle(
    context: ToolContext, name: str, arguments: dict[str, Any]
) -> None:
    result, watch = run(name, context, arguments)
    assert result.error is None
    assert {each.path for each in watch.excused} == {context.workspace.root}


@pytest.mark.parametrize(("name", "arguments"), REFUSED)
def test_what_is_refused_is_not_looked_at_by_name(context: ToolContext, name: str, arguments: dict[str, Any]) -> None:
    result, watch = run(name, context, arguments)
    assert (result.ok, watch.culprits) == (False, [])


def test_each_tool_that_names_files_is_among_them() -> None:
    naming = {each.name for each in TOOLS.values() if each.path_fields and each.effect in {Effect.READ, Effect.WRITE}}
    assert naming - {name for name, _ in WORK} == set()


@pytest.mark.parametrize("place", EXCUSED)
def test_no_excuse_outlives_its_function(place: str) -> None:
    file, _, function = place.partition(":")
    functions = {
        node.name
        for node in ast.walk(ast.parse(text_of(f"nodes/execute_tools/{file}")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert function in functions
