"""The preview of a call shows what the call would do, and has no effect itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.guard_runtime import Previewer
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.approvals import Preview
from mendgraph.nodes.records import Effect, JsonMap, ToolCall
from tests.row_tables import rows
from tests.workspace_files import write_files

TEXT = "one\ntwo\nthree\n"
FILES = {"a.txt": TEXT, "calc.py": "def add(a, b):\n    return a - b\n", ".env": "A=1\n", "data.bin": "x\0y"}
PATCH = (
    "*** Begin Patch\n*** Update File: a.txt\n@@\n-two\n+2\n*** Delete File: calc.py\n*** Add File: n.txt\n+new\n"
    "*** End Patch"
)
PATCHED = (
    "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n--- a/calc.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n"
    "-def add(a, b):\n-    return a - b\n--- /dev/null\n+++ b/n.txt\n@@ -0,0 +1 @@\n+new"
)
Show = Callable[..., list[Preview]]


@tool(effect=Effect.WRITE, path_fields=("path",))
def stamp(context: ToolContext, path: str, words: list[str]) -> ToolOutput:
    """A tool of a user's, which must not be run to be shown."""
    raise AssertionError(context, path, words)


@tool(effect=Effect.WRITE, name="edit_file", path_fields=("path",))
def own_edit(context: ToolContext, path: str) -> ToolOutput:
    """A user's tool under a name of ours."""
    raise AssertionError(context, path)


@pytest.fixture
def show(tmp_path: Path) -> Show:
    write_files(tmp_path, FILES)

    def previews(
        *calls: tuple[str, JsonMap], read: tuple[str, ...] = (), others: tuple[Tool, ...] = (stamp,)
    ) -> list[Preview]:
        replaced = {tool.name for tool in others}
        all_tools = (*others, *(tool for tool in default_tools() if tool.name not in replaced))
        machine = MachineTools({"tools": all_tools, "secrets": ("hunter2-hunter2",)})
        state = AgentState(context=AgentContext(workspace=str(tmp_path), mode="ask"), messages=[HumanMessage("Do it.")])
        tools = TurnTools(machine, state["context"])
        state["files_read"] = {name: Previewer(tools, state).known_files([read_call(name)])[name] for name in read}
        tool_calls = [
            ToolCall(call_id="1", tool=name, arguments=arguments, raw_arguments="") for name, arguments in calls
        ]
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        results = Previewer(tools, state)(dict(enumerate(tool_calls)))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        return list(results.values())

    return previews


def read_call(path: str) -> ToolCall:
    return ToolCall(call_id="1", tool="read_file", arguments={"path": path}, raw_arguments="")


EDIT = ("edit_file", {"path": "./a.txt", "old_str": "two", "new_str": "2"})
HEAD = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n"


DIFFS: list[tuple[tuple[str, JsonMap], str]] = [
    (EDIT, f"{HEAD}-two\n+2\n three"),
    (("write_file", {"path": "new/b.txt", "content": "b\n"}), "--- /dev/null\n+++ b/new/b.txt\n@@ -0,0 +1 @@\n+b"),
    (("write_file", {"path": "e.txt", "content": ""}), "--- /dev/null\n+++ b/e.txt"),
    (("delete_file", {"path": "a.txt"}), "--- a/a.txt\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-two\n-three"),
    (("move_file", {"path": "a.txt", "target": "c.txt"}), "rename from a.txt\nrename to c.txt"),
    (
        ("edit_blocks", {"path": "calc.py", "content": "def add(a, b):\n    return a + b\n"}),
        "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b",
    ),
    (("apply_patch", {"patch": PATCH}), PATCHED),
]


@rows(*DIFFS)
def test_preview_of_a_writing_tool_is_its_diff(call: tuple[str, JsonMap], text: str, show: Show) -> None:
    (preview,) = show(call, read=("a.txt", "calc.py"))
    assert preview.shown == {"kind": "diff", "text": text, "truncated": False}
    assert preview.pins


FAILING: list[tuple[str, JsonMap]] = [
    ("edit_file", {"path": "no.txt", "old_str": "a", "new_str": "b"}),
    ("write_file", {"path": "a.txt", "content": "x"}),
    ("edit_file", {"path": ".env", "old_str": "1", "new_str": "2"}),
    ("edit_file", {"path": "../x", "old_str": "", "new_str": "2"}),
    ("edit_file", {"path": "data.bin", "old_str": "x", "new_str": "2"}),
    ("edit_file", {"nonsense": 1}),
]


def test_call_that_would_fail_has_an_empty_preview_and_empty_pins(show: Show) -> None:
    previews = [show(call)[0] for call in FAILING]
    assert [(preview.shown["text"], preview.pins) for preview in previews] == [("", ())] * len(FAILING)


def test_users_tool_is_not_run_for_its_preview_and_its_files_are_pinned(show: Show) -> None:
    (preview,) = show(("stamp", {"path": "a.txt", "words": ["x\ny"] * 3, "long": "z" * 3_000}))
    lines = preview.shown["text"].split("\n")
    assert lines[:2] == ["path: a.txt", "words: ['x\\ny', 'x\\ny', 'x\\ny']"]
    assert lines[2].endswith("z... 1000 more characters")
    assert [(path, mark) for path, _, mark in preview.pins or ()] == [("a.txt", "")]
    (other,) = show(("edit_file", {"path": "a.txt"}), others=(own_edit,))
    assert other.shown["kind"] == "arguments"


COMMANDS: list[tuple[JsonMap, str]] = [
    ({"argv": ["make", "a b"]}, "make 'a b'"),
    ({"argv": ["make"], "cwd": "."}, "make"),
    ({"argv": ["rm", "-r", "x"], "cwd": "src"}, "rm -r x\nin src"),
]


def test_command_preview_is_the_shell_command_with_its_folder(show: Show) -> None:
    for arguments, text in COMMANDS:
        (preview,) = show(("run_command", arguments))
        assert preview.shown == {"kind": "argv", "text": text, "truncated": False}


def test_long_preview_is_truncated_and_marked(show: Show) -> None:
    (lines,) = show(("write_file", {"path": "b.txt", "content": "x\n" * 1_000}))
    assert lines.shown["truncated"]
    assert lines.shown["text"].endswith(" more lines of this diff]")
    (wide,) = show(("http_get", {"url": "x" * 5_000}))
    assert len(wide.shown["text"]) < 2_100
    files = "".join(f"*** Add File: {number}.txt\n" + "+x\n" * 90 for number in range(5))
    (several,) = show(("apply_patch", {"patch": f"*** Begin Patch\n{files}*** End Patch"}))
    assert several.shown["truncated"]
    assert several.shown["text"].endswith(" more lines]")
    fake = "[... 7 more lines of this diff]\n"
    (honest,) = show(("write_file", {"path": "b.txt", "content": fake}))
    assert not honest.shown["truncated"]


def test_diff_preview_escapes_control_characters_and_redacts_secrets(show: Show) -> None:
    content = "\u202egnp\u2066\x1b]0;x\x07\r \u00a0hunter2-hunter2\ttab\n"
    (preview,) = show(("write_file", {"path": "b.txt", "content": content}))
    line = preview.shown["text"].split("\n")[-1]
    assert line == "+\\u202egnp\\u2066\\x1b]0;x\\x07\\r \\xa0[redacted secret]\ttab"


def test_known_files_lists_a_link_and_its_target(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    (tmp_path / "link").symlink_to("a.txt")
    context = AgentContext(workspace=str(tmp_path))
    tools = TurnTools(MachineTools({}), context)
    files = Previewer(tools, AgentState(context=context)).known_files(
        [read_call("link"), read_call("no"), read_call("../x")]
    )
    assert set(files) == {"link", "a.txt", "no"}
    assert files["link"] == files["a.txt"] != files["no"] == ""
