"""One task of a batch: started, resumed, or refused with a reason. Whole batches: `test_whole_batches.py`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch import task_run
from mendgraph.graph.fleet.batch.batch_folder import CompletedTask
from mendgraph.graph.fleet.batch.task_run import context_of, run_order
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskOutput, WorkOrder
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.registry import tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, JsonMap, OutcomeKind, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.copies.workspace_copies import Copy, make_copy
from mendgraph.nodes.workspace.store.run_folder import known_workspace_name, workspace_folder_path
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock
from tests.doubles.replies import Calls, Reply, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.workspace.processes.git_places import git, repository

WRITE = Calls([("write_file", '{"path": "new.txt", "content": "made\\n"}')])


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "old.txt").write_text("old\n")


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    def answer(request: JsonMap) -> Reply:
        return Say("Done.") if request["messages"][-1]["role"] == "tool" else WRITE

    with ScriptedServer(then=answer) as server:
        yield server


def order(tmp_path: Path, model: ScriptedServer, batch: str = "0a", **settings: Any) -> WorkOrder:
    task = BatchTask(id="a", prompt="Write it.", workspace=str(tmp_path / "w"))
    usual = {"model": "m", "base_url": model.base_url, "offer": "all", "evidence": False}
    context = AgentContext(**{**usual, **settings}).model_dump_json()
    return WorkOrder(batch, task, context, str(tmp_path / "out" / batch))


def order_with_limit(tmp_path: Path, model: ScriptedServer, most: int, batch: str = "0a") -> WorkOrder:
    """An order of a batch that may use so many tokens."""
    limits: dict[str, Any] = {"account": "batch/0a", "max_tokens_per_account": most, "max_output_tokens_per_call": 16}
    return order(tmp_path, model, batch, **limits)


@slow
def test_task_runs_in_its_copy_and_keeps_its_result(tmp_path: Path, model: ScriptedServer) -> None:
    result, patch = run_order(order(tmp_path, model))
    assert (result.kind, result.answer, result.changed) == (OutcomeKind.FINISHED, "Done.", ("new.txt",))
    assert (result.run_id, result.error, result.resumed) == ("0a-a", None, False)
    assert result.usage.calls == len(model.requests) == 2
    assert b"+made" in patch
    assert (Path(result.copy_path) / "new.txt").read_text() == "made\n"
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["old.txt"]

    again = run_order(order(tmp_path, model))
    same = {"seconds": again.result.seconds, "resumed": True}
    assert again == TaskOutput(result.model_copy(update=same), patch)
    assert len(model.requests) == 2


@slow
def test_ignored_file_is_listed_and_its_copy_kept(tmp_path: Path, model: ScriptedServer) -> None:
    inner = repository(tmp_path / "inner", {"lib.py": "x = 1\n"})
    main = repository(tmp_path / "main", {"a.txt": "a", ".gitignore": "new.txt\n"})
    git(main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    git(main, "commit", "-qm", "sub")
    task = BatchTask(id="a", prompt="Write it.", workspace=str(main))
    result, patch = run_order(order(tmp_path, model)._replace(task=task))
    assert (result.changed, result.left_out) == (("new.txt",), ("new.txt: git ignores it",))
    assert (patch, CompletedTask.of(result).needs_copy) == (b"", True)
    assert (Path(result.copy_path) / "new.txt").read_text() == "made\n"


def test_run_that_was_killed_before_its_first_checkpoint_is_resumed(tmp_path: Path, model: ScriptedServer) -> None:
    work_order = order(tmp_path, model)
    copy = make_copy(work_order.task.workspace, "", work_order.folder)
    assert isinstance(copy, Copy)
    store = Store(copy.root)
    store.begin_turn(
        work_order.run_id, work_order.task.prompt, AgentContext.model_validate_json(work_order.context), "sync"
    )
    store.close()
    result = run_order(work_order).result
    assert (result.answer, result.resumed, len(model.requests)) == ("Done.", True, 2)


def test_stopped_order_does_not_start(tmp_path: Path, model: ScriptedServer) -> None:
    stop = StopRequest()
    stop.ask("by the test")
    result = run_order(order(tmp_path, model), stop).result
    assert (result.reason, result.is_final, model.requests) == ("cancelled", False, [])
    assert not (tmp_path / "out").exists()


def test_task_that_cannot_start_has_a_reason(
    tmp_path: Path, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_order = order(tmp_path, model)
    for change, reason in (
        ({"workspace": str(tmp_path / "none")}, "workspace_failed"),
        ({"limits": {"max_calls_per_turn": -1}}, "invalid_request"),
    ):
        assert run_order(work_order._replace(task=work_order.task.model_copy(update=change))).result.reason == reason

    surprise: list[ToolError | Exception] = [
        ToolError(code=ToolErrorCode.IO_ERROR, message="The store is broken."),
        ValueError("sk-0123456789abcdef is wrong"),
    ]

    def get_run(*_: object) -> ToolError:
        answer = surprise.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(task_run, "get_run", get_run)
    broken, surprised = run_order(work_order).result, run_order(work_order).result
    assert (broken.reason, broken.message) == ("store_failed", "The store is broken.")
    assert surprised.reason == "worker_failed"
    assert "an unexpected error (ValueError:" in surprised.message
    assert "sk-0123456789abcdef" not in surprised.message


class Waiting(StopRequest):
    """Does not wait, and calls `then` before the second time."""

    def __init__(self, then: Any = lambda: None) -> None:
        super().__init__()
        self.times, self.then = 0, then

    def wait(self, seconds: float) -> None:  # noqa: ARG002 - by this name
        self.times += 1
        if self.times == 2:
            self.then()


@slow
def test_locked_copy_is_waited_for(tmp_path: Path, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_order(order(tmp_path, model, mode="read-only")).result.copy_path
    lock = RunLock(workspace_folder_path(root))
    assert lock.acquire(Owner("somebody")) is None
    free = Waiting(lock.release)
    copy = str(tmp_path / "out" / "0a")
    assert run_order(order(tmp_path, model, "0b")._replace(folder=copy), free).result.answer == "Done."
    assert free.times == 2
    monkeypatch.setattr(task_run, "LONGEST_BUSY_S", 0.5)
    with lock:
        assert lock.acquire(Owner("somebody")) is None
        last = run_order(order(tmp_path, model, "0c")._replace(folder=copy), Waiting())
        assert last.result.reason == "workspace_busy"


def test_call_that_needs_an_approval_is_refused(tmp_path: Path, model: ScriptedServer) -> None:
    assert run_order(order(tmp_path, model, mode="ask")).result.changed == ()
    assert "approval_required" in json.dumps([request["messages"] for request in model.requests])


@slow
def test_run_continues_under_a_higher_limit(tmp_path: Path, model: ScriptedServer) -> None:
    first = run_order(order_with_limit(tmp_path, model, 20)).result
    assert (first.reason, first.is_final, len(model.requests)) == ("account_limit", False, 0)
    assert run_order(order_with_limit(tmp_path, model, 1_000_000)).result.answer == "Done."


def test_copy_has_its_name_in_the_shared_store(
    tmp_path: Path, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_run, "uses_postgres", lambda: True)
    root = run_order(order(tmp_path, model)).result.copy_path
    assert known_workspace_name(workspace_folder_path(root)) == "batch/0a/a"
    other = run_order(order(tmp_path, model)._replace(batch="0b")).result
    assert (other.reason, other.error and other.error.code) == ("store_failed", ToolErrorCode.CONFLICT)


@slow
def test_stopped_run_completes_its_step(tmp_path: Path) -> None:
    stop = StopRequest()

    @tool(effect=Effect.READ)
    def stop_it() -> str:
        """Stop the batch."""
        stop.ask("by the test")
        return "asked"

    def answer(request: JsonMap) -> Reply:
        return Say("Done.") if request["messages"][-1]["role"] == "tool" else calls

    calls = Calls([("stop_it", "{}"), *WRITE.calls])
    tools: SessionOptions = {"tools": (*default_tools(), stop_it)}
    with ScriptedServer(then=answer) as model:
        first = run_order(order(tmp_path, model), stop, tools).result
        assert (first.reason, first.is_final, len(model.requests)) == ("cancelled", False, 1)
        second = run_order(order(tmp_path, model), None, tools)
    assert (second.result.reason, second.result.resumed, len(model.requests)) == ("answered", True, 2)
    assert (Path(first.copy_path) / "new.txt").read_text() == "made\n"
    assert b"+made" in second.patch


@slow
def test_stopped_run_continues_under_the_new_limit(tmp_path: Path) -> None:
    stop = StopRequest()

    def answer(request: JsonMap) -> Reply:
        if request["messages"][-1]["role"] != "tool":
            stop.ask("by the test")  # takes effect after this reply
            return WRITE
        return Say("Done.", usage=(20_000, 1))

    with ScriptedServer(then=answer) as server:
        first = run_order(order_with_limit(tmp_path, server, 10_000), stop).result
        run_order(order_with_limit(tmp_path, server, 1_000_000, "0b"))
        last = run_order(order_with_limit(tmp_path, server, 1_000_000)).result
    assert (first.reason, first.is_final) == ("cancelled", False)
    assert (last.kind, last.resumed, last.changed) == (OutcomeKind.FINISHED, True, ("new.txt",))


def test_context_of_a_task_has_its_own_limits_and_ignores_workspace_settings(tmp_path: Path) -> None:
    (tmp_path / ".mendgraph.toml").write_text("max_steps = 3\n")
    copy = Copy(str(tmp_path), "", str(tmp_path), installed={".venv": "/installed"})

    def limited(limits: dict[str, Any]) -> AgentContext | ToolError:
        task = BatchTask(id="a", prompt="p", workspace="/w").model_copy(update={"limits": limits})
        context = AgentContext(max_steps=9, model="m", hooks="sandbox").model_dump_json()
        return context_of(WorkOrder("0a", task, context, "/out/a"), copy)

    fixed: Any = {"workspace": copy.root, "request_permits": False, "hooks": "off"}
    fixed["readable_folders"] = ("/installed",)
    contexts = [limited({}), limited({"max_steps": 5})]
    assert contexts == [AgentContext(max_steps=most, model="m", **fixed) for most in (9, 5)]
    wrong = limited({"max_steps": 0})
    assert isinstance(wrong, ToolError)
    assert "do not fit together" in wrong.message
