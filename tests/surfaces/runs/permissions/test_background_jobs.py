"""What happens in a workspace while a job of a run is running, and when the run is cancelled."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph import AgentContext, Session, ToolError, build_graph, undo_run
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, ProviderFailure
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import slow
from tests.sandboxes import sandbox_problem
from tests.workspace.processes.command_place import is_alive, unique_seconds

pytestmark = pytest.mark.skipif(bool(sandbox_problem("bubblewrap")), reason="jobs need bubblewrap")


class Model(ScriptedModel):
    """Does something before its second reply, as a person may while a job is running."""

    def __init__(self, *replies: str, meanwhile: Callable[[], object]) -> None:
        super().__init__([Say(reply) for reply in replies])
        self.meanwhile = meanwhile

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        if len(self.calls) == 1:
            self.meanwhile()
        return super().complete(call, on_text)


def call(tool: str, **arguments: object) -> str:
    return f"tool: {tool}({json.dumps(arguments)})"


def job(script: str) -> str:
    return call("run_shell", command=f"true; {script}", background=True)


def context_of(root: Path, **settings: Any) -> AgentContext:
    named = {"evidence": False, "read_ahead": False, "jobs": True, "allowed_programs": ("bash", "ls"), **settings}
    return AgentContext(workspace=str(root), protocol="text", mode="auto", **named)


def run_replies(root: Path, *replies: str, meanwhile: Callable[[], object] = lambda: None, **settings: Any) -> set[str]:
    """Run the replies in a turn, and return the changed files."""
    model = Model(*replies, "Done.", meanwhile=meanwhile)
    with Session(context_of(root, **settings), model=model, thread_id="t") as now:
        list(now.stream("Work"))
        return {change.path for change in now.result().changes}


def undo(root: Path) -> tuple[str, ...]:
    """Undo the run, and return the files that changed beside its jobs."""
    restored = undo_run("t", root)
    assert not isinstance(restored, ToolError), restored
    return restored.beside_jobs


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text("remember\n")
    return folder


def test_commands_in_other_workspaces_do_not_make_files_of_this_one_new(root: Path) -> None:
    def work_elsewhere() -> None:
        for name in ("one", "two", "three"):
            (root.parent / name).mkdir()
            run_replies(root.parent / name, call("run_command", argv=["ls"]))

    assert run_replies(root, job("sleep 100"), meanwhile=work_elsewhere) == set()
    assert undo(root) == ()
    assert (root / "note.txt").read_text() == "remember\n"


def test_persons_edit_during_a_job_is_named_by_undo(root: Path) -> None:
    changed = run_replies(root, job("sleep 100"), meanwhile=lambda: (root / "note.txt").write_text("mine\n"))
    assert changed == {"note.txt"}
    assert undo(root) == ("note.txt",)
    assert (root / "note.txt").read_text() == "remember\n"


@slow
def test_persons_edit_during_a_job_survives_failed_work(root: Path) -> None:
    edit = call("write_file", path="work.txt", content="work\n")
    model = Model(job("sleep 100"), edit, meanwhile=lambda: (root / "note.txt").write_text("mine\n"))
    with Session(context_of(root, checks=("ls missing",)), model=model, thread_id="t") as now:
        list(now.stream("Write work.txt"))
        outcome = now.result().outcome
    assert outcome.restored == ("work.txt",)
    assert "'note.txt' (Changed while a job was running)" in outcome.message
    assert ((root / "note.txt").read_text(), (root / "work.txt").exists()) == ("mine\n", False)


def test_change_between_two_calls_of_a_reply_is_recorded(root: Path) -> None:
    start = job("echo ready; while ! test -f go; do sleep 0.02; done; echo late > late.txt; echo written; sleep 100")
    reply = [
        call("write_file", path="go", content="go\n"),
        call("job_output", job="1.1", wait_s=30, pattern="written"),
        call("run_command", argv=["ls"]),
    ]
    assert run_replies(root, start, "\n".join(reply)) == {"go", "late.txt"}
    assert undo(root) == ("late.txt",)
    assert sorted(path.name for path in root.iterdir()) == ["note.txt"]


def test_file_that_a_job_changes_after_an_edit_is_restored(root: Path) -> None:
    start = job("while ! grep -q two note.txt; do sleep 0.02; done; echo three > note.txt; echo written; sleep 100")
    reply = [
        call("write_file", path="note.txt", content="two\n"),
        call("job_output", job="1.1", wait_s=30, pattern="written"),
    ]
    assert run_replies(root, start, call("read_file", path="note.txt"), "\n".join(reply)) == {"note.txt"}
    assert undo(root) == ("note.txt",)
    assert (root / "note.txt").read_text() == "remember\n"


class EndlessModel(ScriptedModel):
    """Starts a job, and never begins its second reply."""

    def __init__(self, reply: str) -> None:
        super().__init__([Say(reply), Say("Done.")])
        self.waits = asyncio.Event()

    async def wait_for_reply(self) -> None:
        if len(self.calls) == 2:
            self.waits.set()
            await asyncio.Event().wait()


@slow
@pytest.mark.parametrize("way", ["session", "graph"])
def test_cancelled_turn_ends_its_jobs(root: Path, way: str) -> None:
    mark = unique_seconds()
    model = EndlessModel(job(f"sleep {mark}"))
    session = Session(context_of(root), model=model, thread_id="t")

    async def work() -> None:
        if way == "graph":
            await build_graph(model=model).ainvoke({"messages": [HumanMessage("Work")]}, context=context_of(root))
        else:
            async for _ in session.astream("Work"):
                pass

    async def cancel() -> bool:
        task = asyncio.create_task(work())
        await asyncio.wait_for(model.waits.wait(), 30)
        began = is_alive(f"sleep {mark}")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return began and not is_alive(f"sleep {mark}")

    try:
        assert asyncio.run(cancel())
    finally:
        session.close()
