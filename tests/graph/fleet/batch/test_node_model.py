"""One server of the embedded model for all processes of a node, started by whoever needs it first."""

from types import SimpleNamespace

import pytest

from mendgraph.nodes.call_model.embedded import local_model
from mendgraph.nodes.call_model.embedded.local_model import LocalServer, ServerSlot, shared_local_server
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

ray = pytest.importorskip("ray", reason="Ray is missing: `uv sync --extra ray` installs it")
from mendgraph.graph.fleet.batch import node_model  # noqa: E402 - it imports Ray
from mendgraph.graph.fleet.batch.node_model import ModelOfNode, NodeServer, node_server, use_node_model  # noqa: E402

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


def test_a_worker_takes_the_nodes_server_in_the_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "_SHARED", ServerSlot(lambda: pytest.fail("its own")))
    monkeypatch.setattr(node_model, "node_server", lambda _: FAILED)
    use_node_model()
    assert shared_local_server() == FAILED


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
    monkeypatch.setattr(node_model, "_PAUSE_S", 0.0)
    found = node_server()
    assert isinstance(found, NodeServer)
    assert (found.base_url, found.model, said) == ("http://h/v1", "m", [])
    said += [ray.exceptions.ActorDiedError()] * node_model._MOST_STARTS
    assert node_server() == ProviderFailure(
        kind=ProviderErrorKind.MODEL_UNAVAILABLE,
        message="the node's local model server cannot be reached (ActorDiedError)",
    )
    said.append(ray.exceptions.GetTimeoutError())
    assert isinstance(node_server(), ProviderFailure)
