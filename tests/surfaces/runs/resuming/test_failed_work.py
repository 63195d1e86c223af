"""Failed work is undone at the end of its run, however that was started, and kept as an attempt to apply."""

import asyncio
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from mendgraph import (
    AgentContext,
    BatchTask,
    Effect,
    FileGuardrailRule,
    Outcome,
    Restored,
    Session,
    ToolContext,
    ToolError,
    ToolOutput,
    apply_run,
    build_graph,
    default_tools,
    open_run,
    run_batch,
    run_task,
    tool,
    undo_run,
)
from mendgraph.graph.cli import main
from mendgraph.graph.machine.state import AgentState
from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change
from mendgraph.nodes.records import ToolErrorCode
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

BEFORE = {"notes.txt": "one\ntwo\nthree\n", "other.txt": "other\n"}
WORK = use(
    ("read_file", {"path": "notes.txt"}),
    ("edit_file", {"path": "notes.txt", "old_str": "two", "new_str": "TWO"}),
    ("write_file", {"path": "made/new.txt", "content": "new\n"}),
    ("read_file", {"path": "other.txt"}),
    ("delete_file", {"path": "other.txt"}),
)
AFTER = {"made/new.txt": "new\n", "notes.txt": "one\nTWO\nthree\n"}
SAID = "The files are as they were; the attempt is kept: mendgraph apply play"


@tool(effect=Effect.READ)
def judge(_: ToolContext) -> ToolError:
    """Find the work wrong."""
    return ToolError(code=ToolErrorCode.CHECK_FAILED, message="It is wrong.")


@tool(effect=Effect.EXECUTE)
def meddle(context: ToolContext) -> ToolError:
    """Change a file as somebody else would, and find the work wrong."""
    Path(context.workspace.root, "notes.txt").write_text("mine\n")
    return ToolError(code=ToolErrorCode.CHECK_FAILED, message="It is wrong.")


@tool(effect=Effect.WRITE)
def unrecorded(context: ToolContext) -> ToolOutput:
    """Change a file past the workspace."""
    Path(context.workspace.root, "past.txt").write_text("past\n")
    change = file_change("past.txt", NO_FILE, Version("1", "past\n"))
    return replace(ToolOutput.ok(), changes=(change,))


def options(end: str = "judge") -> dict[str, Any]:
    ends = [use((end, {}))] if end != "unrecorded" else [use((end, {})), use(("judge", {}))]
    lines = [message_of(reply, Protocol.NATIVE) for reply in (WORK, *ends)]
    return {"model": ScriptedModel([*lines, Say("Done.")]), "tools": (*default_tools(), judge, meddle, unrecorded)}


def context(root: Path, **more: Any) -> AgentContext:
    off: Any = {"evidence": False, "read_ahead": False}
    return AgentContext(workspace=str(root), protocol="native", offer="all", max_failed_tries=1, **off, **more)


def files(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", BEFORE)
    return tmp_path / "root"


def by_task(root: Path) -> Outcome:
    return run_task("Do it.", context(root), thread_id="play", **options()).outcome


def by_their_graph(root: Path) -> Outcome:
    async def work() -> Any:
        builder: Any = StateGraph(AgentState)
        builder.add_node("agent", build_graph(context=context(root), **options()))
        builder.add_edge(START, "agent")
        turn_input = {"messages": [HumanMessage("Do it.")], "run_id": "play"}
        return await builder.compile(checkpointer=InMemorySaver()).ainvoke(
            turn_input, {"configurable": {"thread_id": "play"}}
        )

    outcome: Outcome = asyncio.run(work())["outcome"]
    return outcome


@pytest.mark.parametrize("run", [by_task, by_their_graph])
def test_failed_work_is_restored_kept_applied_and_undone(root: Path, run: Callable[[Path], Outcome]) -> None:
    outcome = run(root)
    assert (outcome.reason, outcome.changed_files) == ("checks_failed", ())
    assert outcome.restored == ("made/new.txt", "notes.txt", "other.txt")
    assert files(root) == BEFORE
    assert not (root / "made").exists()
    name = outcome.message.rpartition(" ")[2]
    assert undo_run(name, str(root)) == Restored()
    applied = apply_run(name, str(root))
    assert not isinstance(applied, ToolError), applied
    assert [(change.path, change.kind.value) for change in applied] == [
        ("made/new.txt", "created"),
        ("notes.txt", "edited"),
        ("other.txt", "deleted"),
    ]
    assert files(root) == AFTER
    assert apply_run(name, str(root)) == ()
    assert isinstance(undo_run(name, str(root)), Restored)
    assert files(root) == BEFORE


def test_result_has_no_diff_and_the_next_turn_knows_of_the_restored_files(root: Path) -> None:
    with Session(context(root), thread_id="play", **options()) as session:
        list(session.stream("Do it."))
        result = session.result()
    assert (result.diff, result.changed_files) == ("", ())
    assert str(result).startswith(
        f"SYSTEM_ERROR (checks_failed): The work did not pass its checks after 1 tries. {SAID}"
    )
    assert SAID in result.messages[-1].text
    model = ScriptedModel([Say("Nothing.")])
    again = open_run("play", str(root), model=model)
    assert not isinstance(again, ToolError)
    with again:
        list(again.resume())
    assert "Your changes of the files were taken back since" in str(model.calls[0].prompt.messages[-1])


@slow
def test_only_the_failed_turn_is_restored(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = [message_of(use(("write_file", {"path": "first.txt", "content": "1\n"})), Protocol.NATIVE), Say("Done.")]
    parts = options()
    parts["model"] = ScriptedModel([*first, *parts["model"]._script])
    with Session(context(root), thread_id="play", **parts) as session:
        list(session.stream("Begin."))
        list(session.stream("Go on."))
        assert session.result().outcome.restored == ("made/new.txt", "notes.txt", "other.txt")
    assert files(root) == {**BEFORE, "first.txt": "1\n"}
    assert main(["--root", str(root), "apply", "play"]) == 0
    assert files(root) == {**AFTER, "first.txt": "1\n"}
    undo = capsys.readouterr().out.rpartition("undo with: mendgraph ")[2]
    assert main(shlex.split(undo)) == 0
    assert files(root) == {**BEFORE, "first.txt": "1\n"}, "what an earlier turn did stays"


def test_failed_edits_stay_if_the_setting_keeps_them(root: Path) -> None:
    outcome = run_task("Do it.", context(root, keep_failed_edits=True), thread_id="play", **options()).outcome
    assert (outcome.restored, len(outcome.changed_files), "mendgraph apply" in outcome.message) == ((), 3, False)
    assert files(root) == AFTER
    assert isinstance(apply_run("play", str(root)), ToolError)


def test_files_that_cannot_be_restored_are_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = ToolError(code=ToolErrorCode.IO_ERROR, message="The disk is full.")
    monkeypatch.setattr("mendgraph.nodes.workspace.journal.restoring.restore", lambda *_, **__: full)
    outcome = by_task(root)
    assert "The files could not be restored; `mendgraph undo` does that. The disk is full. Changed" in outcome.message
    assert outcome.message.endswith("; its checks fail: It is wrong.")
    assert (outcome.restored, outcome.changed_files) == ((), ("notes.txt", "made/new.txt", "other.txt"))
    monkeypatch.undo()
    assert isinstance(undo_run("play", str(root)), Restored)
    assert files(root) == BEFORE


def test_file_changed_by_somebody_else_is_kept_and_named(root: Path) -> None:
    """The message also says that other effects of a tool are unknown."""
    outcome = run_task("Do it.", context(root), thread_id="play", **options("meddle")).outcome
    assert outcome.message.endswith(
        "The files are as they were, but for 'notes.txt' (Changed since the run); the attempt is kept: mendgraph apply"
        " play. What meddle did elsewhere stays. Changed notes.txt; its checks fail: It is wrong."
    )
    assert (outcome.changed_files, outcome.restored) == (("notes.txt",), ("made/new.txt", "other.txt"))
    assert files(root) == {**BEFORE, "notes.txt": "mine\n"}


def test_file_changed_without_a_record_is_named(root: Path) -> None:
    outcome = run_task("Do it.", context(root), thread_id="play", **options("unrecorded")).outcome
    assert "but for 'past.txt' (Changed by a command or tool; its earlier content was not recorded)" in outcome.message
    assert outcome.changed_files == ("past.txt",)
    assert files(root) == {**BEFORE, "past.txt": "past\n"}


def test_attempt_is_applied_to_changed_files_if_it_fits(root: Path) -> None:
    by_task(root)
    (root / "notes.txt").write_text("zero\none\ntwo\nthree\n")
    assert not isinstance(apply_run("play", str(root)), ToolError)
    assert files(root) == {**AFTER, "notes.txt": "zero\none\nTWO\nthree\n"}


def test_attempt_that_does_not_fit_changes_nothing(root: Path) -> None:
    by_task(root)
    for path, text, why in (
        ("notes.txt", "one\nthree\n", "and the change at line 1 no longer fits"),
        ("notes.txt", "one\ntwo \nthree\n", "'notes.txt' has changed since, and the change no longer fits"),
        ("notes.txt", "\0", "'notes.txt' has changed since, and the change is not text"),
        ("made/new.txt", "mine\n", "it exists already"),
        ("other.txt", "mine\n", "'other.txt'"),
    ):
        write_files(root, {**BEFORE, path: text})
        refused = apply_run("play", str(root))
        assert isinstance(refused, ToolError)
        assert refused.code is ToolErrorCode.CONFLICT
        assert refused.message.startswith("Nothing was applied. ")
        assert why in refused.message
        assert files(root) == {**BEFORE, path: text}
        (root / "made/new.txt").unlink(missing_ok=True)


def test_file_rules_apply_to_an_applied_attempt(root: Path) -> None:
    by_task(root)
    rule = FileGuardrailRule("mine", "Mine", lambda path: path.name == "notes.txt")
    refused = apply_run("play", str(root), rules=(rule,))
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.PERMISSION_DENIED
    assert files(root) == BEFORE


def test_batch_keeps_the_copy_of_failed_work(root: Path, tmp_path: Path) -> None:
    tasks = [BatchTask(id="one", prompt="Do it.", workspace=str(root))]
    results: list[Any] = []
    run_batch(
        tasks,
        out=tmp_path / "out",
        context=context(root),
        workers=1,
        remove_copies=True,
        on_result=results.append,
        **options(),
    )
    (result,) = results
    assert (result.reason, result.changed, result.patch) == ("checks_failed", (), "")
    assert result.restored == ("made/new.txt", "notes.txt", "other.txt")
    assert not isinstance(apply_run(result.run_id, result.copy_path), ToolError)
    assert files(Path(result.copy_path)) == AFTER


@slow
def test_commands_show_apply_and_undo_the_attempt(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_task(root)

    def run_command(*words: str) -> tuple[Any, str]:
        code = main(["--root", str(root), *words])
        return code, capsys.readouterr().out

    code, patch = run_command("runs", "show", "play", "--patch")
    assert code == 0
    assert "-two\n+TWO\n" in patch
    assert "+++ b/made/new.txt\n" in patch
    diffs = json.loads(run_command("--json", "runs", "show", "play", "--patch")[1])["diff"]
    assert [diff["path"] for diff in diffs] == ["made/new.txt", "notes.txt", "other.txt"]
    code, applied = run_command("apply", "play")
    assert (code, applied.splitlines()[:3]) == (0, ["created made/new.txt", "edited notes.txt", "deleted other.txt"])
    assert "mendgraph undo play" in applied
    assert run_command("undo", "play")[0] == 0
    assert files(root) == BEFORE
    os.remove(root / "notes.txt")
    assert run_command("apply", "play")[0] == 4
