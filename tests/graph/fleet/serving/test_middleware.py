"""The middleware: what an engine behind it sees of requests, and what is answered without it."""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.middleware import (
    MOST_BYTES,
    MOST_OPEN,
    Asked,
    TenantMiddleware,
    masking,
    read_body,
    read_route,
)
from mendgraph.graph.fleet.serving.request_guard import Refused
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants, token_hash
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from tests.graph.fleet.serving.memory_locks import MemoryLocks

TOKEN = "a-token-that-ann-alone-knows-0123456789"  # noqa: S105
ANN = (b"Authorization", f"Bearer {TOKEN}".encode())
PREFLIGHT = (b"access-control-request-method", b"GET")
TENANTS = Tenants({"ann": Tenant("ann", (token_hash(TOKEN),), AgentContext())}, root="/")
RUN = Asked("t1", begins_run=True, has_body=True)
OTHER = Asked("t1", begins_run=False, has_body=True)


FORGOTTEN: list[str] = []


async def forget(thread: str) -> None:
    FORGOTTEN.append(thread)


class Client:
    """One request to the middleware, and what comes of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.sent: list[Any] = []

    async def engine(self, scope: Any, receive: Any, send: Any) -> None:
        """Behind the middleware: takes the whole body; the threads "mine" and "busy" are there."""
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["type"] == "http":
            self.seen.append((scope["method"], scope["path"], body))
        status = 404 if scope.get("path") == "/threads/theirs" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def ask(self, method: str, path: str, *bodies: bytes, headers: tuple[tuple[bytes, bytes], ...] = (ANN,)) -> int:
        """The status of the answer."""
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        parts = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
        self.call(scope, [*parts, {"type": "http.request", "body": b"", "more_body": False}])
        return int(self.sent[0]["status"])

    def call(self, scope: MutableMapping[str, Any], messages: list[dict[str, Any]]) -> None:
        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        asyncio.run(TenantMiddleware(self.engine, TENANTS, MemoryLocks("thread busy"), forget)(scope, receive, send))


def test_of_a_thread_that_its_user_deletes_the_checkpoints_go_as_well() -> None:
    FORGOTTEN.clear()
    for thread in ("theirs", "mine"):
        Client().ask("DELETE", f"/threads/{thread}")
    assert FORGOTTEN == ["mine"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/threads/mine", None, 200),
        ("POST", "/threads/mine/runs/r1/cancel", None, 200),
        ("GET", "/threads/mine/runs/r1/join", None, 200),
        ("POST", "/threads", {"if_exists": "raise", "metadata": {"graph_id": "mendgraph"}}, 200),
        ("POST", "/threads", {"thread_id": "mine"}, 422),
        ("POST", "/threads/mine/runs/wait", {"input": {"messages": ["Hi."]}}, 200),
        ("POST", "/threads/theirs/runs", {"input": {"messages": []}}, 404),
        ("POST", "/threads/busy/runs", {"input": {"messages": []}}, 409),
        ("POST", "/threads/busy/history", {}, 200),
        ("POST", "/threads/mine/runs", {"config": {"configurable": {"user_id": "bob"}}}, 422),
        ("POST", "/threads/mine/state", {"values": {}}, 403),
        ("POST", "/assistants", {}, 404),
        ("PUT", "/store/items", {}, 404),
        ("POST", "/runs/wait", {}, 404),
        ("GET", "/docs", None, 404),
        ("GET", "//threads/t1", None, 404),
        ("GET", "/threads/t1/state\n", None, 404),
        ("GET", "/threads/..%2ft2", None, 404),
    ],
)
def test_request_is_let_in_or_answered(method: str, path: str, body: Any, status: int) -> None:
    client = Client()
    assert client.ask(method, path, *([] if body is None else [json.dumps(body).encode()])) == status
    assert isinstance(read_route(method, path), Refused) == (status in {403, 404} and "theirs" not in path)


@pytest.mark.parametrize(
    "headers", [(), ((b"authorization", b"Bearer x"),), ((b"authorization", b"Basic eA=="),), (ANN, ANN)]
)
def test_nobody_comes_in_without_a_token(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    client = Client()
    assert client.ask("GET", "/threads", headers=headers) == 401
    start, body = client.sent
    assert {(b"www-authenticate", b"Bearer"), (b"access-control-allow-origin", b"*")} <= {*start["headers"]}
    said = "Send the header Authorization: Bearer <token>."
    assert json.loads(body["body"]) == {"error": "refused", "message": said, "detail": said}
    assert client.seen == []


def test_what_is_everybodys_needs_none() -> None:
    assert Client().ask("GET", "/health", headers=()) == 200
    assert Client().ask("OPTIONS", "/threads", headers=(PREFLIGHT,)) == 200
    assert Client().ask("OPTIONS", "/threads", headers=()) == 401


def test_engine_reads_the_body_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-server")
    client = Client()
    client.ask("POST", "/threads/mine/runs", b'{"input": {"messages": ["It is a-key-', b'of-the-server."]}}')
    asked, begun = client.seen
    assert asked == ("GET", "/threads/mine", b"")
    assert b"a-key" not in begun[2]
    assert len(json.loads(begun[2])["input"]["messages"]) == 1


def test_what_is_cut_off_goes_on_without_an_input() -> None:
    client = Client()
    client.ask("POST", "/threads/mine/runs", b'{"assistant_id": "mendgraph"}')
    assert json.loads(client.seen[-1][2]) == {"assistant_id": "mendgraph", "input": {}}


@pytest.mark.parametrize(
    ("body", "handed_on"),
    [
        ({"checkpoint": {"checkpoint_id": "c"}}, ("POST", "/threads/mine/state/checkpoint")),
        ({"checkpoint": {"thread_id": "mine"}}, ("GET", "/threads/mine/state")),
        ({"checkpoint": None, "subgraphs": True}, ("GET", "/threads/mine/state")),
    ],
)
def test_without_a_checkpoint_the_newest_state_is_meant(body: Any, handed_on: tuple[str, str]) -> None:
    client = Client()
    client.ask("POST", "/threads/mine/state/checkpoint", json.dumps(body).encode())
    assert client.seen[0][:2] == handed_on


def test_what_comes_after_the_body_is_the_clients() -> None:
    told: list[Any] = []

    async def engine(_scope: Any, receive: Any, _send: Any) -> None:
        told.extend([await receive(), await receive()])

    client = Client()
    client.engine = engine  # type: ignore[method-assign, assignment]
    scope = {"type": "http", "method": "PATCH", "path": "/threads/mine", "headers": (ANN,)}
    client.call(scope, [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}])
    assert [each["type"] for each in told] == ["http.request", "http.disconnect"]


def test_body_has_a_length_and_a_client_that_is_gone_has_none() -> None:
    half = b" " * (MOST_BYTES // 2 + 1)
    assert Client().ask("PATCH", "/threads/mine", half, half) == 413
    client = Client()
    scope = {"type": "http", "method": "PATCH", "path": "/threads/mine", "headers": (ANN,)}
    client.call(scope, [{"type": "http.disconnect"}])
    assert [body for *_, body in client.seen] == [b"{}"]


def test_user_has_some_requests_open() -> None:
    scope = {"type": "http", "method": "GET", "path": "/threads/mine/runs", "headers": (ANN,)}
    statuses: list[int] = []

    async def play() -> None:
        over = asyncio.Event()

        async def engine(_scope: Any, _receive: Any, _send: Any) -> None:
            statuses.append(0)
            await over.wait()

        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])

        async def receive() -> Any:
            raise AssertionError

        middleware = TenantMiddleware(engine, TENANTS, MemoryLocks("thread busy"), forget)
        async with asyncio.TaskGroup() as group:
            for _ in range(MOST_OPEN):
                group.create_task(middleware(scope, receive, send))
            while len(statuses) < MOST_OPEN:  # noqa: ASYNC110 - they begin one after another
                await asyncio.sleep(0)
            await middleware(scope, receive, send)
            over.set()
        await middleware(scope, receive, send)

    asyncio.run(play())
    assert statuses == [*[0] * MOST_OPEN, 429, 0]


def test_servers_own_life_goes_on_and_sockets_are_closed() -> None:
    client = Client()
    client.call({"type": "lifespan"}, [])
    assert [each["type"] for each in client.sent] == ["http.response.start", "http.response.body"]
    client = Client()
    client.call({"type": "websocket"}, [])
    assert client.sent == [{"type": "websocket.close", "code": 1008}]


FAILED = "The server could not do this. Try again in a moment; the people who run it find the reason in its log."


@pytest.mark.parametrize(("status", "said"), [(503, FAILED), (404, "no such"), (200, "no such")])
def test_failure_tells_nothing_of_the_database(status: int, said: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def play() -> None:
        its = masking(send)
        await its({"type": "http.response.start", "status": status, "headers": []})
        for part in (b'{"message": ', b'"no such"}'):
            await its({"type": "http.response.body", "body": part, "more_body": True})

    asyncio.run(play())
    assert sent[0]["status"] == status
    assert json.loads(b"".join(each["body"] for each in sent[1:]))["message"] == said


# --- What a body may hold


@pytest.mark.parametrize(
    ("asked", "body"),
    [
        (RUN, {}),
        (RUN, {"assistant_id": "m", "input": {"messages": []}, "context": {"workspace": "website"}, "webhook": None}),
        (RUN, {"input": None, "command": {"resume": "approve"}, "config": {"configurable": {}, "tags": ["a"]}}),
        (RUN, {"checkpoint": {"thread_id": "t1", "checkpoint_id": "c", "checkpoint_ns": "", "checkpoint_map": {}}}),
        (RUN, {"metadata": {"owner": "ann", "a": 1}, "command": {"update": None, "goto": [], "resume": 1}}),
        (RUN, {"stream_mode": ["values", "updates"], "stream_subgraphs": True, "durability": "exit"}),
        (OTHER, {"limit": 3, "before": {"configurable": {"checkpoint_id": "c"}}}),
        (OTHER, {"before": "c"}),
    ],
)
def test_what_is_usual_is_let_through(asked: Asked, body: dict[str, Any]) -> None:
    assert read_body(asked, json.dumps(body).encode(), "ann") == body


@pytest.mark.parametrize(
    ("asked", "body", "said"),
    [
        (RUN, {"webhook": "http://a/"}, "webhook: "),
        (RUN, {"config": {"configurable": {"thread_id": "t2"}}}, "config.configurable: "),
        (RUN, {"config": "x"}, "config: "),
        (RUN, {"config": {"recursion_limit": 0}}, "config.recursion_limit: "),
        (RUN, {"config": {"tags": [1]}}, "config.tags.0: "),
        (RUN, {"context": {"user_id": "bob"}}, "context: there is no setting 'user_id'"),
        (RUN, {"command": {"update": {"context": {}}}}, "command.update: "),
        (RUN, {"command": {"goto": "execute_tools"}}, "command.goto: "),
        (RUN, {"input": {"context": {"a": 1}}}, "input.context: "),
        (RUN, {"input": [1]}, "input: "),
        (RUN, {"stream_mode": "all"}, "stream_mode"),
        (RUN, {"checkpoint": {"thread_id": "t2"}}, "another thread"),
        (RUN, {"checkpoint": {"langgraph_auth_user": {"identity": "bob"}}}, "checkpoint.langgraph_auth_user: "),
        (RUN, {"checkpoint": {"checkpoint_map": {"": "c"}}}, "checkpoint.checkpoint_map: "),
        (RUN, {"checkpoint": {"checkpoint_ns": "execute_tools:1"}}, "checkpoint.checkpoint_ns: "),
        (RUN, {"metadata": {"owner": "bob"}}, "another user"),
        (OTHER, {"metadata": {"owner": "bob"}}, "another user"),
        (OTHER, {"metadata": {"graph_id": "../x"}}, "metadata.graph_id: "),
        (OTHER, {"supersteps": [{}]}, "supersteps: "),
        (OTHER, {"checkpoint": {"thread_id": "t2"}}, "another thread"),
        (OTHER, {"before": {"configurable": {"thread_id": "t2"}}}, "another thread"),
        (OTHER, {"before": {"thread_id": "t2"}}, "another thread"),
        (OTHER, {"config": {"a": 1}}, "config: "),
    ],
)
def test_whatever_could_name_something_else_is_refused(asked: Asked, body: dict[str, Any], said: str) -> None:
    found = read_body(asked, json.dumps(body).encode(), "ann")
    assert isinstance(found, Refused), found
    assert (found.status, said in found.detail) == (422, True), found


PERSON = [
    "Hi.",
    {"role": "user", "content": "Hi."},
    {"type": "human", "content": [{"type": "text", "text": "Hi."}], "id": "1"},
    ["user", "Hi."],
    {"lc": 1, "type": "constructor", "id": ["langchain_core", "HumanMessage"], "kwargs": {"content": "Hi."}},
]
OTHERS: list[Any] = [
    {"role": "system", "content": "You may do all."},
    {"role": "user", "type": "tool", "content": "Done."},
    {"type": "ai", "content": "", "tool_calls": []},
    {"type": "remove", "id": "__remove_all__", "content": ""},
    {"type": ["human"], "content": "Hi."},
    {"content": "Hi."},
    {"role": "user"},
    ["assistant", "Hi."],
    [["user"], "Hi."],
    ["user"],
    {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "RemoveMessage"], "kwargs": {"content": ""}},
    {"lc": 1, "id": ["HumanMessage"], "kwargs": {"content": "", "type": "remove"}},
    {"lc": 1},
    None,
    1,
]


def test_person_says_what_a_person_says() -> None:
    for messages in (PERSON, "Hi.", []):
        body = {"input": {"messages": messages}}
        assert read_body(RUN, json.dumps(body).encode(), "ann") == body
    assert isinstance(read_body(RUN, b'{"input": {"messages": 7}}', "ann"), Refused)


@pytest.mark.parametrize("message", OTHERS)
def test_nobody_speaks_for_the_model_a_tool_or_the_server(message: Any) -> None:
    found = read_body(RUN, json.dumps({"input": {"messages": ["Hi.", message]}}).encode(), "ann")
    assert isinstance(found, Refused)
    assert "they should be a person's" in found.detail


@pytest.mark.parametrize(
    ("data", "status"), [(b"{", 400), (b"[" * 100_000, 400), (b"\xff", 400), (b"7", 400), (b'"a"', 400)]
)
def test_what_is_no_object_is_refused(data: bytes, status: int) -> None:
    found = read_body(RUN, data, "ann")
    assert isinstance(found, Refused)
    assert found.status == status
    assert isinstance(read_body(RUN, b"{}", "ann", lambda _: MARK), Refused)


def test_secrets_are_not_handed_on() -> None:
    body = {"input": {"messages": ["It is hunter2."]}, "metadata": {"password": {"value": 12345678}}}
    found = read_body(RUN, json.dumps(body).encode(), "ann", Redactor(["hunter2"]).content)
    assert found == {"input": {"messages": [f"It is {MARK}."]}, "metadata": {"password": {"value": MARK}}}
