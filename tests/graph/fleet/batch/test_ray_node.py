"""What a node does with an order: its own folders and keys, a run that another node began, and a stop."""

import os
import pickle
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from mendgraph.graph.fleet.batch import ray_node, work as working
from mendgraph.graph.fleet.batch.orders import TaskResult, Worked, WorkOrder
from mendgraph.graph.fleet.batch.ray_node import (
    BATCH_DIR_VARIABLE,
    ModelOfNode,
    NodeLook,
    NodeServer,
    batch_dir,
    do,
    look,
    node_server,
    work_here,
)
from mendgraph.graph.machine.stop_request import StopRequest
from mendgraph.nodes.call_model.embedded import local_model
from mendgraph.nodes.call_model.embedded.local_model import LocalServer, shared_local_server
from mendgraph.nodes.execute_tools.copies.copy_sources import pack_source
from mendgraph.nodes.execute_tools.journal import rebuilding
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import JsonMap, OutcomeKind, ProviderErrorKind, ProviderFailure, ToolError, ToolErrorCode
from tests.crash import batch_play
from tests.doubles.replies import Reply
from tests.doubles.scripted_server import ScriptedServer
from tests.runs.batching import repository, some


@pytest.fixture(autouse=True)
def own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setattr(local_model, "_SHARED", local_model.ServerSlot(shared_local_server))
    on_node(monkeypatch, tmp_path / "first")


def on_node(monkeypatch: pytest.MonkeyPatch, disk: Path) -> None:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(disk / "data"))
    monkeypatch.setenv(BATCH_DIR_VARIABLE, str(disk / "copies"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "repository")


def order(project: Path, base_url: str) -> tuple[bytes, bytes]:
    """The first task as it is sent, and its source."""
    (task,) = some(project, 1)
    packed = pack_source(task.workspace, task.revision)
    assert not isinstance(packed, ToolError)
    context = batch_play.context(base_url)
    return pickle.dumps(WorkOrder("abcdef12", task, context.model_dump_json(), "/elsewhere")), packed.data


def test_the_folder_of_a_node_is_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert batch_dir() == str(tmp_path / "first" / "copies")
    monkeypatch.delenv(BATCH_DIR_VARIABLE)
    assert batch_dir().endswith("mendgraph/batch")


def test_a_node_says_which_variables_it_has_and_never_what_is_in_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    said = look(("OPENAI_API_KEY", "NOT_THERE"))
    assert "sk-of-nobody" not in repr(said)
    found = NodeLook.model_validate(said)
    records = tmp_path / "first" / "data"
    status = records.stat()
    assert found == NodeLook(
        host=os.uname().nodename,
        shared=False,
        has=("OPENAI_API_KEY",),
        records=(str(records), status.st_dev, status.st_ino),
        copies=str(tmp_path / "first" / "copies"),
    )


def test_a_node_that_cannot_make_its_folders_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(BATCH_DIR_VARIABLE, str(tmp_path / "file" / "copies"))
    assert "make the node's folders" in NodeLook.model_validate(look(())).problem

    def homeless() -> str:
        raise RuntimeError("there is no home")

    monkeypatch.setattr(ray_node, "data_folder", homeless)
    monkeypatch.setenv(BATCH_DIR_VARIABLE, str(tmp_path / "copies"))
    assert NodeLook.model_validate(look(())).problem == "there is no home"


def test_an_order_is_done_from_its_packed_source_in_the_nodes_folder(project: Path, tmp_path: Path) -> None:
    with ScriptedServer(then=batch_play.answer) as server:
        data, packed = order(project, server.base_url)
        shutil.rmtree(project)
        worked = do(data, packed, ("OPENAI_API_KEY",))
    assert (worked.result.kind, worked.result.resumed) == (OutcomeKind.FINISHED, False)
    assert worked.result.copy_path.startswith(str(tmp_path / "first" / "copies" / "abcdef12" / "t0"))
    assert os.path.isdir(worked.result.copy_path)
    assert b"two, two" in worked.patch


def test_a_node_without_a_key_names_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    data, packed = order(project, "http://127.0.0.1:1/v1")
    result = do(data, packed, ("OPENAI_API_KEY",)).result
    assert result.error is not None
    assert (result.reason, result.error.code) == ("worker_failed", ToolErrorCode.PERMISSION_DENIED)
    assert result.message == (
        f"The node {os.uname().nodename} has no OPENAI_API_KEY: set it in the environment of `ray start` there."
        " Secrets are never sent to a node."
    )


def test_a_cancel_of_ray_stops_the_session(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    reasons: list[str] = []
    result = TaskResult(id="t0", kind=OutcomeKind.BUDGET_STOP, reason="cancelled")

    def work(_: WorkOrder, __: tuple[str, ...], stop: StopRequest) -> Worked:
        with stop.told(lambda: reasons.append(stop.reason)):
            stop.wait(0.3)  # until it is waited for
            os.kill(os.getpid(), signal.SIGINT)
            while len(reasons) < 2:  # a wish that came too early is repeated
                stop.wait(0.01)
        return Worked(result)

    monkeypatch.setattr(ray_node, "work_here", work)
    assert do(*order(project, "http://127.0.0.1:1/v1"), ()) == Worked(result)
    assert {*reasons} == {"by whoever runs the batch"}


@pytest.mark.usefixtures("shared_store")
def test_a_run_of_a_lost_node_goes_on_where_it_was(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def answer(request: JsonMap) -> Reply:
        if any(message["role"] == "tool" for message in request["messages"]):
            asked.set()
            goes_on.wait(60.0)
        return batch_play.answer(request)

    ended: list[Worked] = []
    with ScriptedServer(then=answer) as server:
        data, packed = order(project, server.base_url)
        stop = StopRequest()
        worker = threading.Thread(target=lambda: ended.append(work_on_node(data, packed, stop)))
        worker.start()
        assert asked.wait(60.0)
        stop.ask("by the test")  # which drops the model call at work
        worker.join()
        goes_on.set()
        assert (ended[0].result.reason, len(server.requests)) == ("cancelled", 2)
        shutil.rmtree(tmp_path / "first")
        on_node(monkeypatch, tmp_path / "second")
        again = do(data, packed, ())
    assert (again.result.kind, again.result.resumed, len(server.requests)) == (OutcomeKind.FINISHED, True, 4)
    assert again.result.changed == ("new0.txt", "old0.txt")  # the step that was stopped had ended whole
    assert [*(tmp_path / "second" / "copies").glob("*/*")] == []


def work_on_node(data: bytes, packed: bytes, stop: StopRequest) -> Worked:
    one: WorkOrder = pickle.loads(data)  # noqa: S301 - our own
    return work_here(one._replace(packed=packed, folder=f"{batch_dir()}/abcdef12/t0"), (), stop)


@pytest.mark.usefixtures("shared_store")
@pytest.mark.parametrize(
    ("code", "reason"),
    [(ToolErrorCode.UNAVAILABLE, "workspace_busy"), (ToolErrorCode.IO_ERROR, "store_failed")],
)
def test_a_run_that_cannot_be_taken_over_is_a_typed_result(
    project: Path, monkeypatch: pytest.MonkeyPatch, code: ToolErrorCode, reason: str
) -> None:
    held = ToolError(code=code, message="Somebody has it.")
    monkeypatch.setattr(working, "LONGEST_BUSY_S", 0.5)
    monkeypatch.setattr(rebuilding, "rebuild_workspace", lambda *_: held)
    with ScriptedServer(then=batch_play.answer) as server:
        data, packed = order(project, server.base_url)
        assert do(data, packed, ()).result.kind is OutcomeKind.FINISHED
        result = do(data, packed, ()).result
    assert (result.reason, result.error) == (reason, held)


@pytest.mark.usefixtures("shared_store")
def test_what_cannot_be_made_again_is_begun_anew_and_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ToolError(code=ToolErrorCode.CONFLICT, message="Its bytes were not kept.")
    monkeypatch.setattr(rebuilding, "rebuild_workspace", lambda *_: lost)
    with ScriptedServer(then=batch_play.answer) as server:
        data, packed = order(project, server.base_url)
        first, second = do(data, packed, ()), do(data, packed, ())
        assert len(server.requests) == 6
    assert (second.result.kind, second.result.resumed) == (OutcomeKind.FINISHED, False)
    assert second.patch == first.patch
    assert second.result.message.endswith(
        "(The run was begun anew, as its files could not be made again on this node: Its bytes were not kept.)"
    )


@pytest.mark.usefixtures("shared_store")
def test_what_is_no_workspace_is_the_tasks_result(project: Path) -> None:
    data, _ = order(project, "http://127.0.0.1:1/v1")
    result = do(data, b"nothing of ours", ()).result
    assert (result.kind, result.reason) == (OutcomeKind.SYSTEM_ERROR, "workspace_failed")


@pytest.mark.usefixtures("shared_store")
def test_a_store_that_refuses_is_a_typed_result(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ToolError(code=ToolErrorCode.IO_ERROR, message="No.")
    data, packed = order(project, "http://127.0.0.1:1/v1")
    monkeypatch.setattr(working, "get_run", lambda *_: refused)
    assert do(data, packed, ()).result.error == refused
    monkeypatch.setattr(working, "give_workspace_name", lambda *_: refused)
    assert do(data, packed, ()).result.error == refused


ray = pytest.importorskip("ray", reason="Ray is missing: `uv sync --extra ray` installs it")

FAILED = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no weights")


class Server(LocalServer):
    def __init__(self) -> None:
        self.base_url, self.model = "http://127.0.0.1:1/v1", "m"


def test_the_actor_tells_where_the_server_is_or_why_there_is_none() -> None:
    assert ModelOfNode(Server).serve() == ("http://127.0.0.1:1/v1", "m")
    assert ModelOfNode(lambda: FAILED).serve() == FAILED


def test_a_server_of_another_process_is_alive_while_it_answers_there(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = SimpleNamespace(serve=SimpleNamespace(remote=lambda: "asked"))
    said: list[object] = [("http://127.0.0.1:1/v1", "m"), ("http://127.0.0.1:2/v1", "m"), FAILED]
    monkeypatch.setattr(ray, "get", lambda *_, **__: said.pop(0))
    server = NodeServer(actor, "http://127.0.0.1:1/v1", "m")
    assert [server.alive, server.alive, server.alive] == [True, False, False]
    server.stop()

    def lost(*_: object, **__: object) -> None:
        raise ray.exceptions.RayError

    monkeypatch.setattr(ray, "get", lost)
    assert not server.alive


def test_an_actor_that_has_just_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = [ray.exceptions.ActorDiedError(), ray.exceptions.ActorDiedError(), ("http://h/v1", "m")]

    def get(*_: object, **__: object) -> object:
        found = said.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    actor = SimpleNamespace(serve=SimpleNamespace(remote=lambda: "asked"))
    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _: actor))
    context = SimpleNamespace(get_node_id=lambda: f"{7:056x}")
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "remote", lambda _: made)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray_node, "_PAUSE_S", 0.0)
    found = node_server()
    assert isinstance(found, NodeServer)
    assert (found.base_url, found.model, said) == ("http://h/v1", "m", [])
    said += [ray.exceptions.ActorDiedError()] * ray_node._MOST_STARTS
    assert node_server() == ProviderFailure(
        kind=ProviderErrorKind.MODEL_UNAVAILABLE,
        message="the node's local model server cannot be reached (ActorDiedError)",
    )
    said.append(ray.exceptions.GetTimeoutError())
    assert isinstance(node_server(), ProviderFailure)
