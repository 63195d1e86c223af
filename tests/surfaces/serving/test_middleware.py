"""The middleware: which requests reach the engine behind it, and which are answered by itself."""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.middleware import (
    MOST_BYTES,
    MOST_OPEN,
    ServerRequest,
    TenantMiddleware,
    hide_errors,
    read_body,
    read_route,
)
from mendgraph.graph.fleet.serving.request_guard import Refused
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants, token_hash
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from tests.row_tables import rows
from tests.surfaces.serving.memory_locks import MemoryLocks

TOKEN = "a-token-that-ann-alone-knows-0123456789"  # noqa: S105
ANN = (b"Authorization", f"Bearer {TOKEN}".encode())
PREFLIGHT = (b"access-control-request-method", b"GET")
TENANTS = Tenants({"ann": Tenant("ann", (token_hash(TOKEN),), AgentContext())}, root="/")
RUN = ServerRequest("t1", begins_run=True, has_body=True)
OTHER = ServerRequest("t1", begins_run=False, has_body=True)
DISCONNECT = {"type": "http.disconnect"}


class Client:
    """One request to the middleware, and its result; the threads "mine" and "busy" exist."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.sent: list[Any] = []
        self.forgotten: list[str] = []
        self.last_message: dict[str, Any] = {}
        """What the engine receives after the body."""

    async def engine(self, scope: Any, receive: Any, send: Any) -> None:
        """Behind the middleware: takes the whole body."""
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["type"] == "http":
            self.seen.append((scope["method"], scope["path"], body))
            self.last_message = await receive() if scope["method"] == "PATCH" else {}
        status = 404 if scope.get("path") == "/threads/theirs" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def ask(self, method: str, path: str, *bodies: bytes, headers: tuple[tuple[bytes, bytes], ...] = (ANN,)) -> int:
        """The status of the answer."""
        parts = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        self.call(scope, [*parts, {"type": "http.request", "body": b"", "more_body": False}])
        return int(self.sent[0]["status"])

    def call(self, scope: MutableMapping[str, Any], messages: list[dict[str, Any]]) -> None:
        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else DISCONNECT

        async def send(message: Any) -> None:
            self.sent.append(message)

        async def forget(thread: str) -> None:
            self.forgotten.append(thread)

        asyncio.run(TenantMiddleware(self.engine, TENANTS, MemoryLocks("thread busy"), forget)(scope, receive, send))


ROUTES: list[tuple[str, str, Any, int]] = [
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
]


@rows(*ROUTES)
def test_request_is_passed_on_or_refused(method: str, path: str, body: Any, status: int) -> None:
    bodies = [] if body is None else [json.dumps(body).encode()]
    assert Client().ask(method, path, *bodies) == status
    refused = isinstance(read_route(method, path), Refused)
    assert refused == (status in {403, 404} and "theirs" not in path)


def test_request_without_a_token_is_refused() -> None:
    wrong: list[tuple[tuple[bytes, bytes], ...]] = [
        (),
        ((b"authorization", b"Bearer x"),),
        ((b"authorization", b"Basic eA=="),),
        (ANN, ANN),
    ]
    words = "Send the header Authorization: Bearer <token>."
    for headers in wrong:
        client = Client()
        assert (client.ask("GET", "/threads", headers=headers), client.seen) == (401, [])
        start, body = client.sent
        assert {(b"www-authenticate", b"Bearer"), (b"access-control-allow-origin", b"*")} <= {*start["headers"]}
        assert json.loads(body["body"]) == {"error": "refused", "message": words, "detail": words}
    assert Client().ask("GET", "/health", headers=()) == 200
    assert Client().ask("OPTIONS", "/threads", headers=(PREFLIGHT,)) == 200
    assert Client().ask("OPTIONS", "/threads", headers=()) == 401


def test_checkpoints_of_a_deleted_thread_are_deleted() -> None:
    for thread, forgotten in (("theirs", []), ("mine", ["mine"])):
        client = Client()
        client.ask("DELETE", f"/threads/{thread}")
        assert client.forgotten == forgotten


def test_engine_reads_the_body_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-server")
    client = Client()
    client.ask("POST", "/threads/mine/runs", b'{"input": {"messages": ["It is a-key-', b'of-the-server."]}}')
    looked, started = client.seen
    assert looked == ("GET", "/threads/mine", b"")
    assert b"a-key" not in started[2]
    assert len(json.loads(started[2])["input"]["messages"]) == 1


HANDED_ON: list[tuple[str, Any, tuple[str, str]]] = [
    ("/threads/mine/state/checkpoint", {"checkpoint": {"checkpoint_id": "c"}}, ("POST", "state/checkpoint")),
    ("/threads/mine/state/checkpoint", {"checkpoint": {"thread_id": "mine"}}, ("GET", "state")),
    ("/threads/mine/state/checkpoint", {"checkpoint": None, "subgraphs": True}, ("GET", "state")),
]


def test_request_without_input_or_checkpoint_uses_the_newest_state() -> None:
    for path, body, (method, end) in HANDED_ON:
        client = Client()
        client.ask("POST", path, json.dumps(body).encode())
        assert client.seen[0][:2] == (method, f"/threads/mine/{end}")
    client = Client()
    client.ask("POST", "/threads/mine/runs", b'{"assistant_id": "mendgraph"}')
    assert json.loads(client.seen[-1][2]) == {"assistant_id": "mendgraph", "input": {}}


def test_engine_receives_the_disconnect() -> None:
    client = Client()
    client.ask("PATCH", "/threads/mine", b"{}")
    assert client.last_message == DISCONNECT


def test_body_is_bounded_and_empty_after_a_disconnect() -> None:
    half = b" " * (MOST_BYTES // 2 + 1)
    assert Client().ask("PATCH", "/threads/mine", half, half) == 413
    client = Client()
    client.call({"type": "http", "method": "PATCH", "path": "/threads/mine", "headers": (ANN,)}, [DISCONNECT])
    assert [body for *_, body in client.seen] == [b"{}"]


def test_open_requests_of_a_user_are_limited() -> None:
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

        async def nothing(_: str = "") -> Any:
            raise AssertionError

        middleware = TenantMiddleware(engine, TENANTS, MemoryLocks(), nothing)
        async with asyncio.TaskGroup() as group:
            for _ in range(MOST_OPEN):
                group.create_task(middleware(scope, nothing, send))
            while len(statuses) < MOST_OPEN:  # noqa: ASYNC110 - they begin one after another
                await asyncio.sleep(0)
            await middleware(scope, nothing, send)
            over.set()
        await middleware(scope, nothing, send)

    asyncio.run(play())
    assert statuses == [*[0] * MOST_OPEN, 429, 0]


def test_lifespan_is_passed_on_and_websockets_are_closed() -> None:
    client = Client()
    client.call({"type": "lifespan"}, [])
    assert [event["type"] for event in client.sent] == ["http.response.start", "http.response.body"]
    client = Client()
    client.call({"type": "websocket"}, [])
    assert client.sent == [{"type": "websocket.close", "code": 1008}]


FAILED = "The server could not do this. Try again in a moment; the people who run it find the reason in its log."


def test_server_error_hides_the_database() -> None:
    async def play(status: int) -> Any:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return DISCONNECT

        masked = hide_errors({"type": "http"}, receive, send)
        await masked({"type": "http.response.start", "status": status, "headers": []})
        for part in (b'{"message": ', b'"no such"}'):
            await masked({"type": "http.response.body", "body": part, "more_body": True})
        return sent[0]["status"], json.loads(b"".join(event["body"] for event in sent[1:]))["message"]

    answers = [asyncio.run(play(status)) for status in (503, 404, 200)]
    assert answers == [(503, FAILED), (404, "no such"), (200, "no such")]


# --- What a body may hold


def read(server_request: ServerRequest, body: Any) -> Any:
    return read_body(server_request, json.dumps(body).encode(), "ann")


USUAL: list[tuple[ServerRequest, Any]] = [
    (RUN, {}),
    (RUN, {"assistant_id": "m", "input": {"messages": []}, "context": {"workspace": "website"}, "webhook": None}),
    (RUN, {"input": None, "command": {"resume": "approve"}, "config": {"configurable": {}, "tags": ["a"]}}),
    (RUN, {"checkpoint": {"thread_id": "t1", "checkpoint_id": "c", "checkpoint_ns": "", "checkpoint_map": {}}}),
    (RUN, {"metadata": {"owner": "ann", "a": 1}, "command": {"update": None, "goto": [], "resume": 1}}),
    (RUN, {"stream_mode": ["values", "updates"], "stream_subgraphs": True, "durability": "exit"}),
    (OTHER, {"limit": 3, "before": {"configurable": {"checkpoint_id": "c"}}}),
    (OTHER, {"before": "c"}),
]


@rows(*USUAL)
def test_usual_body_is_accepted(server_request: ServerRequest, body: Any) -> None:
    assert read(server_request, body) == body


FOREIGN: list[tuple[ServerRequest, Any, str]] = [
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
    (RUN, {"input": {"messages": 7}}, "input.messages: "),
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
]


@rows(*FOREIGN)
def test_body_that_names_something_else_is_refused(server_request: ServerRequest, body: Any, words: str) -> None:
    refused = read(server_request, body)
    assert isinstance(refused, Refused), refused
    assert (refused.status, words in refused.detail) == (422, True), refused


PERSON: list[Any] = [
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


def test_messages_of_a_request_are_human_messages(subtests: pytest.Subtests) -> None:
    for messages in (PERSON, "Hi.", []):
        body = {"input": {"messages": messages}}
        assert read(RUN, body) == body
    for message in OTHERS:
        with subtests.test(message=message):
            refused = read(RUN, {"input": {"messages": ["Hi.", message]}})
            assert isinstance(refused, Refused)
            assert "they should be a person's" in refused.detail


def test_body_that_is_not_an_object_is_refused() -> None:
    for data in (b"{", b"[" * 100_000, b"\xff", b"7", b'"a"'):
        refused = read_body(RUN, data, "ann")
        assert isinstance(refused, Refused)
        assert refused.status == 400
    assert isinstance(read_body(RUN, b"{}", "ann", lambda _: MARK), Refused)


def test_secrets_are_removed_from_bodies() -> None:
    body = {"input": {"messages": ["It is hunter2."]}, "metadata": {"password": {"value": 12345678}}}
    clean = read_body(RUN, json.dumps(body).encode(), "ann", Redactor(["hunter2"]).content)
    assert clean == {"input": {"messages": [f"It is {MARK}."]}, "metadata": {"password": {"value": MARK}}}
