"""Foreign pages in a real browser, against every port that we open: they run nothing and get no key.

`FOREIGN` is a name of this machine in that browser only. A page from there has another origin than our servers; at a
server's own port it stands for a page whose name is rebound to 127.0.0.1.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.servers import ForwardingServer, LoopbackHandler, ReplayServer
from mendgraph.nodes.call_model.local_model import LocalServer, start_local_server
from mendgraph.nodes.records import JsonMap
from tests.browser.chromium import FOREIGN, Page, needs_chromium
from tests.doubles.replies import Say
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tiny_model import write_tiny_model
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.surfaces.serving.servers import Servers, token
from tests.surfaces.serving.studio import Studio, native_server

pytestmark = [slow, needs_chromium]

CANARY: tuple[str, JsonMap] = ("write_file", {"path": "canary.txt", "content": "ran\n"})
REQUEST: JsonMap = {"messages": [{"role": "user", "content": "Write the file."}]}
CHAT: JsonMap = {"model": "m", **REQUEST}

ATTACK = """
const [url, body, headers, done] = arguments;
const json = JSON.stringify(body), found = {}, origin = new URL(url).origin;
const read = async answer => answer.type === "opaque" ? "opaque" : `${answer.status} ${await answer.text()}`;
const send = (type, mode) => fetch(url, {method: "POST", mode, body: new Blob([json], {type}), headers:
  mode === "cors" ? {...headers, "content-type": type} : {}}).then(read);
const waiting = set => new Promise(resolve => { set(resolve); setTimeout(resolve, 20000, "no answer"); });
const element = (name, fields) => document.body.appendChild(Object.assign(document.createElement(name), fields));
const load = (name, fields) => waiting(told => element(name, {...fields, onload: () => told("loaded"),
  onerror: () => told("refused")}));
const ways = {
  "json": () => send("application/json", "cors"),
  "text": () => send("text/plain", "no-cors"),
  "form text": () => send("application/x-www-form-urlencoded", "no-cors"),
  "no type": () => send("", "no-cors"),
  "read": () => fetch(url).then(read),
  "beacon": async () => navigator.sendBeacon(url, json),
  "form": () => waiting(told => {
    element("iframe", {name: "into", onload: () => told("loaded")});
    const form = element("form", {method: "post", enctype: "text/plain", action: url, target: "into"});
    const input = form.appendChild(document.createElement("input"));
    [input.name, input.value] = [json.slice(0, -1) + ',"x":"', '"}'];
    form.submit();
  }),
  "opaque origin": () => waiting(told => {
    onmessage = event => told(event.data);
    const script = `const [url, json] = ${JSON.stringify([url, json])}; Promise.allSettled(["text/plain",
      "application/json"].map(type => fetch(url, {method: "POST", body: json, headers: {"content-type": type}})))
      .then(ends => parent.postMessage(ends.map(each => each.status).join(), "*"))`;
    element("iframe", {sandbox: "allow-scripts", srcdoc: `<script>${script}<` + "/script>"});
  }),
  "image": () => load("img", {src: url}),
  "script": () => load("script", {src: url}),
  "events": () => waiting(told => {
    const source = new EventSource(url);
    source.onopen = () => told("open");
    source.onerror = () => { source.close(); told("refused"); };
  }),
  "socket": () => waiting(told => {
    const thread = "/threads/6a3a1a9e-6f0f-4a44-9d7c-0d8a8c9f3c11/stream/events";
    const socket = new WebSocket(origin.replace("http", "ws") + thread);
    socket.onopen = () => { socket.close(); told("open"); };
    socket.onerror = () => told("refused");
  }),
};
(async () => {
  for (const [name, way] of Object.entries(ways)) found[name] = await way().catch(error => error.name);
  done(found);
})();
"""
"""Sends the body in all ways that a page has, and returns what it sees of each."""

BLIND = {"json": "TypeError", "read": "TypeError", "events": "refused", "socket": "refused"}
"""What a page sees of requests whose answers it may not read."""


class Blank(BaseHTTPRequestHandler):
    """The same page at every path."""

    def do_GET(self) -> None:
        page = b"<!doctype html><title>page</title><body></body>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where the page is, under any name of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """The browser; it closes its connections at the end."""
    browser.view()
    yield browser
    browser.open("about:blank")


def send_in_every_way(
    page: Page, site: str, url: str, body: JsonMap, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a page of this site gets back after it has sent the body in every way."""
    page.open(site)
    response: dict[str, Any] = page.driver.execute_async_script(ATTACK, url, body, headers or {})
    return response


def attack(page: Page, port: int, url: str, body: JsonMap) -> None:
    """Send it from another origin, and from a name that is rebound to the server."""
    blind = send_in_every_way(page, f"http://{FOREIGN}:{port}/", url, body)
    assert {name: blind[name] for name in BLIND} == BLIND
    assert blind["opaque origin"] == "rejected,rejected"
    rebound_url = urlsplit(url)._replace(netloc=f"{FOREIGN}:{urlsplit(url).port}").geturl()
    rebound = send_in_every_way(page, rebound_url, rebound_url, body)
    assert rebound["json"][:4] in {"403 ", "401 ", "404 "}, rebound
    assert (rebound["events"], rebound["socket"]) == ("refused", "refused")


@pytest.mark.studio
def test_foreign_page_cannot_use_the_studio_server(studio: Studio, page: Page, port: int, tmp_path: Path) -> None:
    url, before = f"{studio.url}/runs/wait", len(studio.client.threads.search(limit=1_000))
    with native_server(use(CANARY), Say("Written.")) as ours, ScriptedServer() as theirs:
        allowed = studio.context(tmp_path, ours)
        more = {"base_url": theirs.base_url, "allowed_programs": ["sh"], "workspace": str(tmp_path.parent.parent)}
        for context in (allowed, {**allowed, **more}):
            body = {"assistant_id": "mendgraph", "input": REQUEST, "context": context}
            attack(page, port, url, body)
        assert (ours.requests, theirs.requests, list(tmp_path.iterdir())) == ([], [], [])
        assert len(studio.client.threads.search(limit=1_000)) == before

        from_here = send_in_every_way(page, f"http://127.0.0.1:{port}/", url, body)
        refused = json.loads(from_here["json"].removeprefix("200 "))["outcome"]
        assert (refused["kind"], refused["reason"]) == ("SYSTEM_ERROR", "invalid_request")
        assert (ours.requests, theirs.requests) == ([], [])

        body["context"] = allowed
        worked = send_in_every_way(page, f"http://127.0.0.1:{port}/", url, body)
        assert json.loads(worked["json"].removeprefix("200 "))["outcome"]["answer"] == "Written."
        assert (len(ours.requests), theirs.requests) == (2, [])
    assert [path.name for path in tmp_path.iterdir()] == ["canary.txt"]
    assert studio.complaints() == []


def test_foreign_page_cannot_use_the_multi_user_server(servers: Servers, page: Page, port: int) -> None:
    folder = servers.project("ann", "paged", {})
    thread = servers.thread("ann", servers.first)
    url = f"{servers.first.url}/threads/{thread}/runs/wait"
    body = {"assistant_id": "mendgraph", "input": REQUEST, "context": {"workspace": "paged"}}
    servers.model.say(use(CANARY), Say("Written."))
    before = len(servers.model.requests)
    foreign = send_in_every_way(page, f"http://{FOREIGN}:{port}/", url, body)
    assert foreign["json"].startswith("401 ")
    rebound = url.replace("127.0.0.1", FOREIGN)
    assert send_in_every_way(page, rebound, rebound, body)["json"].startswith("401 ")
    assert (len(servers.model.requests), list(folder.iterdir())) == (before, [])
    key = {"authorization": f"Bearer {token('ann')}"}
    worked = send_in_every_way(page, f"http://127.0.0.1:{port}/", url, body, key)
    assert json.loads(worked["json"].removeprefix("200 "))["outcome"]["answer"] == "Written."
    assert [path.name for path in folder.iterdir()] == ["canary.txt"]


def test_foreign_page_cannot_use_the_cassette_servers(page: Page, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopbackHandler, "timeout", 1)  # the browser opens connections that it does not use
    with ScriptedServer([Say("Hello.")]) as upstream, ForwardingServer(upstream.base_url, "the-key") as passing:
        attack(page, port, f"{passing.base_url}/chat/completions", CHAT)
        assert upstream.requests == []
        response = httpx.post(f"{passing.base_url}/chat/completions", json=CHAT)
        assert (response.status_code, upstream.headers[0]["authorization"]) == (200, "Bearer the-key")
    fields: Any = {"method": "POST", "path": "/v1/chat/completions", "status": 200, "headers": {}, "response": b"a"}
    exchange = Exchange(request=json.dumps(CHAT).encode(), **fields)
    with ReplayServer(Player(CassetteFile(recorded_from="x", exchanges=(exchange,)), "the cassette")) as replay:
        attack(page, port, f"{replay.base_url}/chat/completions", CHAT)
        assert (len(replay.player.unplayed), replay.player.misses) == (1, [])


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the extra `local` is not installed")
def test_foreign_page_cannot_use_the_embedded_models_server(page: Page, port: int, tmp_path: Path) -> None:
    """The page knows the port, but not the path. It may see that another address does not exist."""
    server = start_local_server(str(write_tiny_model(tmp_path / "tiny.gguf")), context_tokens=512)
    assert isinstance(server, LocalServer), server
    try:
        origin, body = server.base_url.rsplit("/", 2)[0], {**CHAT, "max_tokens": 2}
        attack(page, port, f"{origin}/v1/chat/completions", body)
        assert httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=60).status_code == 200
    finally:
        server.stop()
