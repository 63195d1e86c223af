"""Which requests a server on loopback accepts: by their host, their origin and their content type."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from mendgraph.graph.fleet.serving.request_guard import HOSTS_VARIABLE, LOOPBACK_ORIGINS, STUDIO_ORIGINS, RequestGuard
from tests.architecture.product import ROOT

JSON = {"content-type": "application/json"}
STUDIO = {"origin": "https://smith.langchain.com"}
EVIL = {"origin": "http://evil.test"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TestClient]:
    """A server as `langgraph dev` builds it: the guard, then CORS for everybody, then routes."""
    for name in ("CORS_CONFIG", "LANGGRAPH_HTTP", "LANGGRAPH_API_URL", HOSTS_VARIABLE):
        monkeypatch.delenv(name, raising=False)

    async def hello(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    def make_client(**variables: str) -> TestClient:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        routes = [
            Route("/", lambda _: PlainTextResponse("ran"), methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
            WebSocketRoute("/events", hello),
        ]
        everybody = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
        app = Starlette(routes=routes, middleware=[Middleware(RequestGuard), everybody])
        return TestClient(app, base_url="http://127.0.0.1:2024")

    return make_client


Server = Callable[..., TestClient]


REQUESTS: list[tuple[int, str, dict[str, str], bytes | None]] = [
    (200, "GET", {}, None),
    (200, "POST", JSON, b"{}"),
    (200, "POST", {"content-type": "Application/JSON; charset=utf-8"}, b"{}"),
    (200, "POST", {}, None),
    (200, "DELETE", {"content-length": "0"}, None),
    (200, "POST", {**STUDIO, **JSON}, b"{}"),
    (200, "POST", {"origin": "https://eu.smith.langchain.com", **JSON}, b"{}"),
    (200, "POST", {"origin": "http://localhost:5173", "sec-fetch-site": "same-site", **JSON}, b"{}"),
    (200, "POST", {"origin": "http://[::1]:8080", **JSON}, b"{}"),
    (200, "GET", {"sec-fetch-site": "none", "sec-fetch-dest": "document"}, None),
    (200, "GET", {"sec-fetch-site": "same-origin"}, None),
    (200, "GET", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, None),
    (200, "GET", {"host": "localhost:2024"}, None),
    (200, "GET", {"host": "[::1]:2024"}, None),
    (200, "GET", {"host": "LOCALHOST"}, None),
    (403, "GET", {"host": "evil.test"}, None),
    (403, "GET", {"host": "evil.test:2024"}, None),
    (403, "GET", {"host": ""}, None),
    (403, "GET", {"host": "127.0.0.1.evil.test"}, None),
    (403, "GET", {"host": "localhost.evil.test"}, None),
    (403, "GET", {"host": "localhost@evil.test"}, None),
    (403, "GET", {"host": "127.0.0.1:2024, evil.test"}, None),
    (403, "POST", {**EVIL, **JSON}, b"{}"),
    (403, "POST", EVIL, None),
    (403, "GET", EVIL, None),
    (403, "OPTIONS", {**EVIL, "access-control-request-method": "POST"}, None),
    (403, "POST", {"origin": "null", **JSON}, b"{}"),
    (403, "POST", {"origin": "", **JSON}, b"{}"),
    (403, "POST", {"origin": "https://smith.langchain.com.evil.test", **JSON}, b"{}"),
    (403, "POST", {"origin": "https://evilsmith.langchain.com", **JSON}, b"{}"),
    (403, "POST", {"origin": "http://smith.langchain.com", **JSON}, b"{}"),
    (403, "POST", {"origin": "http://127.0.0.1.evil.test", **JSON}, b"{}"),
    (403, "POST", {"origin": "http://localhost:80@evil.test", **JSON}, b"{}"),
    (403, "POST", {"origin": "http://10.0.0.1:2024", **JSON}, b"{}"),
    (403, "GET", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, None),
    (403, "GET", {"sec-fetch-site": "same-site", "sec-fetch-dest": "iframe"}, None),
    (403, "POST", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, None),
    (415, "POST", {"content-type": "text/plain"}, b"{}"),
    (415, "POST", {"content-type": "application/x-www-form-urlencoded"}, b"a=1"),
    (415, "POST", {"content-type": "multipart/form-data; boundary=application/json"}, b"{}"),
    (415, "POST", {"content-type": "application/json-seq"}, b"{}"),
    (415, "POST", {}, b"{}"),
    (415, "PATCH", {**STUDIO, "content-type": "text/plain"}, b"{}"),
    (415, "DELETE", {"content-type": "text/plain"}, b"{}"),
]


def test_request_is_accepted_or_refused(server: Server, subtests: pytest.Subtests) -> None:
    client = server()
    for status, method, headers, body in REQUESTS:
        with subtests.test(status=status, method=method, headers=headers):
            answer = client.request(method, "/", headers=headers, content=body)
            assert (answer.status_code, answer.text == "ran") == (status, status == 200), answer.text
            if status == 403:
                assert [name for name in answer.headers if name.startswith("access-control")] == []


def test_repeated_header_is_ignored(server: Server) -> None:
    for name, right, wrong in (("host", "127.0.0.1:2024", "evil.test"), ("origin", STUDIO["origin"], EVIL["origin"])):
        assert server().get("/", headers=[(name, right), (name, wrong)]).status_code == 403


def test_unusual_requests_follow_the_same_rules(server: Server) -> None:
    client, elsewhere = server(), {"host": "10.0.0.7:2024"}
    assert client.get("/ok", headers=elsewhere).status_code != 403  # health checks need no name of the server
    assert client.post("/ok", json={}, headers=elsewhere).status_code == 403
    chunks = client.post("/", content=iter([b"{}"]), headers={"content-type": "text/plain"})
    assert chunks.status_code == 415
    preflight = {**STUDIO, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert client.options("/", headers=preflight).status_code == 200


def test_websocket_is_checked_as_well(server: Server) -> None:
    def heard(headers: dict[str, str]) -> str:
        try:
            with server().websocket_connect("ws://127.0.0.1:2024/events", headers=headers) as socket:
                return socket.receive_text()
        except WebSocketDisconnect:
            return ""

    assert [heard(headers) for headers in ({}, STUDIO)] == ["hello"] * 2
    assert [heard(headers) for headers in (EVIL, {"host": "evil.test"}, {"origin": "null"})] == [""] * 3


def test_operator_can_add_hosts_and_origins(server: Server) -> None:
    cors = {"cors": {"allow_origins": ["https://chat.example"]}}
    named = server(MENDGRAPH_HOSTS="Box.lan:2024, other.lan", LANGGRAPH_HTTP=json.dumps(cors))
    assert named.post("/", json={}, headers={"host": "box.lan:2024", "origin": "https://chat.example"}).text == "ran"
    assert named.post("/", json={}, headers=STUDIO).status_code == 403
    assert named.get("/", headers={"host": "third.lan"}).status_code == 403
    everybody = server(LANGGRAPH_HTTP=json.dumps({"cors": {"allow_origins": ["*"]}}))  # the default of the server
    assert everybody.post("/", json={}, headers=EVIL).status_code == 403
    # With `--host` or `--tunnel`, of which `langgraph dev` tells by this variable.
    tunnel = server(LANGGRAPH_API_URL="https://some-words.trycloudflare.com")
    assert tunnel.get("/", headers={"host": "some-words.trycloudflare.com"}).text == "ran"


def test_internal_requests_are_accepted(server: Server) -> None:
    """From the SDK's client in a node of a user's graph, which uses no socket."""

    async def answer_at(root_path: str) -> str:
        transport = httpx.ASGITransport(server().app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return (await client.get("/")).text

    assert asyncio.run(answer_at("/noauth")) == "ran"
    assert "not known" in asyncio.run(answer_at("/noauthentication"))


def test_default_origins_are_those_of_langgraph_json() -> None:
    """The guard runs before `langgraph dev`, and CORS allows the same origins."""
    http: Any = json.loads((ROOT / "langgraph.json").read_text("utf-8"))["http"]
    assert http["app"] == "mendgraph.graph.fleet.serving.request_guard:app"
    assert (tuple(http["cors"]["allow_origins"]), http["cors"]["allow_origin_regex"]) == (
        STUDIO_ORIGINS,
        LOOPBACK_ORIGINS,
    )
    assert "middleware_order" not in http
