"""A path is the file that it names, or it is refused with the one of the workspace that may be meant."""

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_machine
from mendgraph.graph.machine.state import serializer
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.records import CallResult, JsonMap
from tests.doubles.replies import Calls, Message, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.workspace_files import changed_files, write_files

FILES = {"notes.txt": "ours\n", "src/calc.py": "def add(a, b):\n    return a - b\n"}
FIXED = "def add(a, b):\n    return a + b\n"
PATCH = "*** Begin Patch\n*** Update File: {}\n@@\n-ours\n+mine\n*** End Patch"

CALLS: list[tuple[str, JsonMap]] = [
    ("read_file", {"path": "{}"}),
    ("list_files", {"path": "{}"}),
    ("search_files", {"pattern": "ours", "path": "{}"}),
    ("glob_files", {"pattern": "*", "path": "{}"}),
    ("run_checks", {"paths": ["notes.txt", "{}"]}),
    ("edit_file", {"path": "{}", "old_str": "ours", "new_str": "mine"}),
    ("multi_edit", {"path": "{}", "edits": [{"old_str": "ours", "new_str": "mine"}]}),
    ("edit_blocks", {"path": "{}", "content": "mine\n"}),
    ("write_file", {"path": "{}", "content": "mine\n"}),
    ("append_file", {"path": "{}", "content": "mine\n"}),
    ("delete_file", {"path": "{}"}),
    ("move_file", {"path": "{}", "target": "b.txt"}),
    ("move_file", {"path": "src/calc.py", "target": "{}"}),
    ("apply_patch", {"patch": PATCH}),
]
"""Every tool that takes a path, in every place of it."""


def lines(folder: Path, *script: Message, task: str = "Do it.", **settings: Any) -> tuple[list[CallResult], list[str]]:
    """The results of a run in `folder`, and all that its model was sent."""
    model = ScriptedModel(script)
    context = AgentContext(workspace=str(folder), evidence=False, **settings)
    machine, nodes = build_machine(
        InMemorySaver(serde=serializer()), model=model, tools=None, rules=DEFAULT_GUARDRAIL_RULES
    )
    results: list[CallResult] = []
    config: Any = {"configurable": {"thread_id": "t"}}
    request: Any = {"messages": [HumanMessage(task)]}
    try:
        for part in machine.stream(request, config, context=context, stream_mode="updates"):
            results += [each for update in part.values() for each in (update or {}).get("results", [])]
    finally:
        nodes.close()
    sent = [message for call in model.calls for message in call.prompt.messages]
    return results, [str(message.get("content") or "") for message in sent]


def calls_of(path: str) -> list[tuple[str, str]]:
    return [(tool, json.dumps(arguments).replace("{}", json.dumps(path)[1:-1])) for tool, arguments in CALLS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, {"other/notes.txt": "theirs\n"})
    workspace = tmp_path / "work"
    write_files(workspace, FILES)
    return workspace


@pytest.mark.parametrize("small", [False, True], ids=["large", "small"])
@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("OTHER/notes.txt", "notes.txt"),
        ("~/notes.txt", "notes.txt"),
        ("/workspace/src/calc.py", "src/calc.py"),
        ("file:///workspace/notes.txt", "notes.txt"),
        ("C:\\work\\src\\calc.py", "src/calc.py"),
        ("../other/notes.txt", "notes.txt"),
    ],
)
def test_no_tool_takes_a_path_elsewhere_for_one_of_the_workspace(
    folder: Path, path: str, meant: str, small: bool
) -> None:
    path = path.replace("OTHER", str(folder.parent / "other"))
    calls = calls_of(path)
    model = {"edit_form": "blocks"} if small else {}
    results, _ = lines(folder, Calls(calls), protocol="native", read_ahead=False, **model)
    assert [each.tool for each in results] == [tool for tool, _ in calls]
    errors = [each.result.error for each in results]
    assert {(error.code.value, error.suggestions) for error in errors if error} == {("permission_denied", (meant,))}
    assert {error.message.partition(" is ")[2] for error in errors if error} == {
        f"outside the workspace; did you mean {meant!r}? Use a relative path under '.'."
    }
    assert changed_files(folder, FILES) == {}
    assert (folder.parent / "other" / "notes.txt").read_text() == "theirs\n"


@pytest.mark.parametrize(
    ("tool", "path", "suggestions"),
    [
        ("read_file", "calc.py", ("src/calc.py",)),
        ("read_file", "Calc.py", ("src/calc.py",)),
        ("read_file", "/path/to/Notes.txt", ("notes.txt",)),
        ("read_file", "path/to/calc.py", ("src/calc.py",)),
        ("read_file", "/path/to/calc.py", ("src/calc.py",)),
        ("write_file", "/path/to/calc.py", ("src/calc.py", "calc.py")),
        ("read_file", "/path/to/.env", (".",)),
        ("read_file", "/path/to/none.py", (".",)),
    ],
)
def test_what_is_suggested_has_the_name_that_was_asked_for(
    folder: Path, tool: str, path: str, suggestions: tuple[str, ...]
) -> None:
    write_files(folder, {"src/.env": "", ".env": ""})
    arguments = {"path": path} if tool == "read_file" else {"path": path, "content": "x"}
    [result], _ = lines(folder, Calls([(tool, json.dumps(arguments))]), protocol="native")
    assert result.result.error is not None
    assert result.result.error.suggestions == suggestions


def test_next_call_of_a_weak_model_has_the_path_that_was_meant(folder: Path) -> None:
    block = "/home/dev/src/calc.py\n```python\n" + FIXED + "```"
    script = (Say(block), Say(block.removeprefix("/home/dev/")))
    _, sent = lines(folder, *script, task="Fix the sum.", edit_form="blocks", protocol="text")
    told = "'/home/dev/src/calc.py' is outside the workspace; did you mean 'src/calc.py'?"
    assert any(told in text for text in sent)
    assert changed_files(folder, FILES) == {"src/calc.py": FIXED}


@pytest.mark.parametrize("root", ["work", "alias"])
@pytest.mark.parametrize("protocol", ["native", "text"])
def test_absolute_path_of_the_workspace_is_that_file(folder: Path, root: str, protocol: str) -> None:
    (folder.parent / "alias").symlink_to(folder)
    path = str(folder.parent / root / "notes.txt")
    edit = {"path": path, "old_str": "ours", "new_str": "mine"}
    script: Message = Calls([("read_file", json.dumps({"path": path})), ("edit_file", json.dumps(edit))])
    if protocol == "text":
        script = Say("\n".join(f"tool: {each[0]}({each[1]})" for each in script.calls))
    results, _ = lines(folder, script, protocol=protocol)
    assert [each.result.data.get("path") for each in results] == ["notes.txt", "notes.txt"]
    assert changed_files(folder, FILES) == {"notes.txt": "mine\n"}


@pytest.mark.parametrize("form", ["replace", "blocks"])
def test_person_who_names_an_absolute_path_means_that_file(folder: Path, form: str) -> None:
    write_files(folder, {"src/AGENTS.md": "Add with care.\n"})
    task = f"Fix the sum in {folder}/src/calc.py, not in {folder.parent}/other/notes.txt."
    results, sent = lines(folder, Say("I did not."), task=task, edit_form=form, protocol="text")
    assert [(each.tool, each.result.data["path"]) for each in results] == [("read_file", "src/calc.py")]
    assert any("return a - b" in text for text in sent)
    assert any("Add with care." in text for text in sent)
    assert not any("There is no" in text for text in sent)


@pytest.mark.parametrize("path", ["src\\calc.py", ".\\src\\calc.py", "src\\new.py"])
def test_backslashes_are_no_part_of_a_new_name(folder: Path, path: str) -> None:
    arguments = json.dumps({"path": path, "content": "x\n"})
    [result], _ = lines(folder, Calls([("write_file", arguments)]), protocol="native")
    assert result.result.error is not None
    assert result.result.error.suggestions == (path.removeprefix(".\\").replace("\\", "/"),)
    assert changed_files(folder, FILES) == {}
    write_files(folder, {path: "there\n"})
    [result], _ = lines(folder, Calls([("read_file", json.dumps({"path": path}))]), protocol="native")
    assert result.result.data["content"] == "there\n"
