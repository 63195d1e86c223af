"""The middleware: what an engine behind it sees of requests, and what is answered without it."""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.middleware import MOST_OPEN, TenantMiddleware, Why, masking
from mendgraph.graph.fleet.serving.request_rules import MOST_BYTES
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants, token_hash

TOKEN = "a-token-that-ann-alone-knows-0123456789"  # noqa: S105
ANN = (b"Authorization", f"Bearer {TOKEN}".encode())
PREFLIGHT = (b"access-control-request-method", b"GET")
TENANTS = Tenants({"ann": Tenant("ann", (token_hash(TOKEN),), AgentContext())}, root="/")


class Threads:
    """`mine` is ann's and idle, `busy` hers and at work, `theirs` somebody else's, `gone` nobody's any more."""

    async def owner(self, thread: str) -> str | None:
        return {"mine": "ann", "busy": "ann", "theirs": "bob", "gone": ""}.get(thread)

    async def is_busy(self, thread: str) -> bool:
        return thread == "busy"

    async def is_elsewhere(self, thread: str, run: str) -> bool:
        self.looks = getattr(self, "looks", 0) + 1
        return thread == "mine" and (run == "away" or (run == "leaving" and self.looks < 4))

    async def failure(self, thread: str, run: str) -> dict[str, str] | None:
        return {"error": thread, "message": run}


class Client:
    """One request to the middleware, and what comes of it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.sent: list[Any] = []

    async def engine(self, scope: Any, receive: Any, send: Any) -> None:
        """Behind the middleware: takes the whole body."""
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        self.seen.append(body)
        await send({"type": "engine"})

    def ask(self, method: str, path: str, *bodies: bytes, headers: tuple[tuple[bytes, bytes], ...] = (ANN,)) -> int:
        """The status of the answer, 0 where the engine gave it."""
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        parts = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
        self.call(scope, [*parts, {"type": "http.request", "body": b"", "more_body": False}])
        return int(self.sent[-2]["status"]) if len(self.sent) > 1 else 0

    def call(self, scope: MutableMapping[str, Any], messages: list[dict[str, Any]]) -> None:
        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            self.sent.append(message)

        asyncio.run(TenantMiddleware(self.engine, TENANTS, Threads())(scope, receive, send))


def asked(method: str, path: str, body: Any = None, *, headers: tuple[tuple[bytes, bytes], ...] = (ANN,)) -> int:
    return Client().ask(method, path, *([] if body is None else [json.dumps(body).encode()]), headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/threads/mine", None, 0),
        ("GET", "/threads/new", None, 0),
        ("GET", "/threads/theirs", None, 404),
        ("DELETE", "/threads/theirs", None, 404),
        ("GET", "/threads/gone/state", None, 404),
        ("POST", "/threads/gone/runs", {"input": {"messages": []}}, 404),
        ("POST", "/threads", {"thread_id": "gone"}, 409),
        ("POST", "/threads/search", {"limit": -1}, 422),
        ("POST", "/threads", {"thread_id": "theirs"}, 409),
        ("POST", "/threads", {"thread_id": "new"}, 0),
        ("POST", "/threads/mine/runs", {"input": {"messages": []}}, 0),
        ("POST", "/threads/busy/runs", {"input": {"messages": []}}, 409),
        ("POST", "/threads/busy/history", {}, 0),
        ("POST", "/threads/mine/runs", {"config": {"configurable": {"user_id": "bob"}}}, 422),
        ("POST", "/threads/mine/state", {"values": {}}, 403),
        ("GET", "/nowhere", None, 404),
    ],
)
def test_a_request_is_let_in_or_answered(method: str, path: str, body: Any, status: int) -> None:
    assert asked(method, path, body) == status


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
    assert asked("GET", "/health", headers=()) == 0
    assert asked("OPTIONS", "/threads", headers=(PREFLIGHT,)) == 0
    assert asked("OPTIONS", "/threads", headers=()) == 401


def test_the_engine_reads_the_body_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-server")
    client = Client()
    client.ask("POST", "/threads/mine/runs", b'{"input": {"messages": ["It is a-key-of-the-server."]}}')
    [seen] = client.seen
    assert b"a-key" not in seen
    assert len(json.loads(seen)["input"]["messages"]) == 1


def test_the_engine_reads_the_body_as_it_came() -> None:
    client = Client()
    client.ask("POST", "/threads/mine/runs", b'{"input": {"messages"', b": []}}")
    assert client.seen == [b'{"input": {"messages": []}}']


def test_what_is_cut_off_goes_on_without_an_input() -> None:
    client = Client()
    client.ask("POST", "/threads/mine/runs", b'{"assistant_id": "mendgraph"}')
    assert json.loads(client.seen[0]) == {"assistant_id": "mendgraph", "input": {}}


@pytest.mark.parametrize(
    ("body", "handed_on"),
    [
        ({"checkpoint": {"checkpoint_id": "c"}}, ("POST", "/threads/mine/state/checkpoint", b"")),
        ({"checkpoint": {"thread_id": "mine"}}, ("GET", "/threads/mine/state", b"")),
        ({"checkpoint": None, "subgraphs": True}, ("GET", "/threads/mine/state", b"subgraphs=true")),
    ],
)
def test_without_a_checkpoint_the_newest_state_is_meant(body: Any, handed_on: tuple[str, str, bytes]) -> None:
    asked: list[Any] = []

    async def engine(scope: Any, _receive: Any, _send: Any) -> None:
        asked.append((scope["method"], scope["path"], scope["query_string"]))

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    path = "/threads/mine/state/checkpoint"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": (ANN,)}
    asyncio.run(TenantMiddleware(engine, TENANTS, Threads())(scope, receive, lambda _: asyncio.sleep(0)))
    assert asked == [handed_on]


def test_what_comes_after_the_body_is_the_clients() -> None:
    told: list[Any] = []

    async def engine(_scope: Any, receive: Any, _send: Any) -> None:
        told.extend([await receive(), await receive()])

    async def ask() -> None:
        messages = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]
        scope = {"type": "http", "method": "PATCH", "path": "/threads/mine", "headers": (ANN,)}

        async def receive() -> Any:
            return messages.pop(0)

        await TenantMiddleware(engine, TENANTS, Threads())(scope, receive, lambda _: asyncio.sleep(0))

    asyncio.run(ask())
    assert [each["type"] for each in told] == ["http.request", "http.disconnect"]


def test_a_body_has_a_length() -> None:
    half = b" " * (MOST_BYTES // 2 + 1)
    assert Client().ask("PATCH", "/threads/mine", half, half) == 413
    assert Client().ask("POST", "/threads/search", half, half) == 413


def test_a_user_has_some_requests_open() -> None:
    scope = {"type": "http", "method": "GET", "path": "/threads/mine/runs/r1/stream", "headers": (ANN,)}
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

        middleware = TenantMiddleware(engine, TENANTS, Threads())
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


@pytest.mark.parametrize(("run", "stays", "seen"), [("here", True, 1), ("leaving", True, 1), ("away", False, 0)])
def test_a_run_of_another_server_is_awaited(run: str, stays: bool, seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.fleet.serving.middleware.LOOK_EVERY_S", 0.001)
    messages = [{"type": "http.request", "body": b"", "more_body": False}]
    bodies: list[Any] = []

    async def receive() -> Any:
        if not messages and stays:
            await asyncio.Event().wait()
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def engine(_scope: Any, its: Any, _send: Any) -> None:
        bodies.append(await its())

    scope = {"type": "http", "method": "GET", "path": f"/threads/mine/runs/{run}/stream", "headers": (ANN,)}
    asyncio.run(TenantMiddleware(engine, TENANTS, Threads())(scope, receive, lambda _: asyncio.sleep(0)))
    assert bodies == [{"type": "http.request", "body": b"", "more_body": False}] * seen


def test_a_result_that_is_missing_is_explained() -> None:
    async def engine(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    for path, said in (("mine/runs/r1/join", {"__error__": {"error": "mine", "message": "r1"}}), ("mine/runs/r1", {})):
        client = Client()
        client.engine = engine  # type: ignore[method-assign, assignment]
        client.ask("GET", f"/threads/{path}")
        assert json.loads(client.sent[-1]["body"]) == said


def test_a_client_that_is_gone_has_no_body() -> None:
    client = Client()
    client.call(
        {"type": "http", "method": "PATCH", "path": "/threads/mine", "headers": (ANN,)}, [{"type": "http.disconnect"}]
    )
    assert client.seen == [b"{}"]


def test_the_servers_own_life_goes_on_and_sockets_are_closed() -> None:
    client = Client()
    client.call({"type": "lifespan"}, [])
    assert client.sent == [{"type": "engine"}]
    client = Client()
    client.call({"type": "websocket"}, [])
    assert client.sent == [{"type": "websocket.close", "code": 1008}]


LEAK = b'{"message": "connection to db.internal failed [SQL: INSERT INTO runs]"}'
FAILED = "The server could not do this. Try again in a moment; the people who run it find the reason in its log."
PLAIN = [(b"content-type", b"text/plain"), (b"content-length", b"70"), (b"x-request-id", b"1")]


def told(status: int, *bodies: bytes, why: Why | None = None) -> list[Any]:
    """What reaches the client of this answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def play() -> None:
        its = masking(send, why)
        await its({"type": "http.response.start", "status": status, "headers": PLAIN})
        for body in bodies:
            await its({"type": "http.response.body", "body": body, "more_body": body is not bodies[-1]})

    asyncio.run(play())
    return sent


async def lost() -> dict[str, str] | None:
    return {"error": "run_error", "message": "The server is gone."}


async def nothing() -> dict[str, str] | None:
    return None


@pytest.mark.parametrize("status", [500, 503])
def test_a_failure_tells_nothing_of_the_database(status: int) -> None:
    start, body = told(status, LEAK[:20], LEAK[20:])
    assert (start["status"], json.loads(body["body"])["message"]) == (status, FAILED)
    assert (b"x-request-id", b"1") in start["headers"]
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert dict(start["headers"])[b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    ("status", "bodies", "why"),
    [
        (200, (b"a", b"b"), None),
        (404, (LEAK,), lost),
        (200, (b"{}",), None),
        (200, (b"{}",), nothing),
        (200, (b'{"a": 1}',), lost),
        (200, (b"{}", b" "), lost),
    ],
)
def test_other_answers_are_handed_on(status: int, bodies: tuple[bytes, ...], why: Why | None) -> None:
    start, *rest = told(status, *bodies, why=why)
    assert start == {"type": "http.response.start", "status": status, "headers": PLAIN}
    assert [each["body"] for each in rest] == [*bodies]


def test_a_run_without_a_result_says_why() -> None:
    start, body = told(200, b"{}", why=lost)
    assert start["status"] == 200
    assert json.loads(body["body"]) == {"__error__": {"error": "run_error", "message": "The server is gone."}}
