"""The server that `make studio` starts, for every test that is a client of it: one for all tests of a process.

It runs in a folder of its own, without a key, a browser or the network, and is ended by its process id.
"""

import json
import os
import re
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.architecture.product import ROOT
from tests.doubles.replies import Reply
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, in_protocol
from tests.vocabulary import JsonMap, Protocol

if TYPE_CHECKING:
    from langgraph_sdk.client import SyncLangGraphClient

START_S = 90.0
COMPLAINTS = ("BlockingError", "Blocking call", "Traceback", "[error", "Blocked deserial", "Deserializing unregistered")
"""What the server writes into its log when a node held up its event loop, or raised, or met a foreign type."""


@dataclass(frozen=True)
class Studio:
    """The running server, as its clients see it; `seen` is how much of its log was written before this test."""

    url: str
    client: "SyncLangGraphClient"
    log: Path
    seen: int
    site_port: int

    def run(self, thread: JsonMap, folder: Path, model: ScriptedServer, **more: Any) -> JsonMap:
        """One run on this model, without any calls but the model's; what it returns."""
        context = self.context(folder, model, more.pop("context", {}))
        ended: Any = self.client.runs.wait(thread["thread_id"], "mendgraph", context=context, **more)
        return dict(ended)

    def context(self, folder: Path, model: ScriptedServer, more: Mapping[str, Any] | None = None) -> JsonMap:
        """The form of a run in this folder, on this model, in which nothing calls the model but the run itself."""
        settings = {"model": model_name(model), "evidence": False, "read_ahead": False, "memory": False}
        none: JsonMap = {"allowed_programs": [], "allowed_hosts": []}
        return {"workspace": str(folder), **settings, **none, **(more or {})}

    def thread(self) -> JsonMap:
        """A new thread."""
        created: Any = self.client.threads.create()
        return dict(created)

    def state(self, thread: JsonMap) -> Any:
        """What Studio shows of a thread."""
        return self.client.threads.get_state(thread["thread_id"])

    def question(self, thread: JsonMap) -> Any:
        """What the thread's interrupt asks."""
        [question] = [interrupt["value"] for task in self.state(thread)["tasks"] for interrupt in task["interrupts"]]
        return question

    def request(self, text: str) -> JsonMap:
        """The input of a turn, as a browser sends it."""
        return {"messages": [{"role": "user", "content": text}]}

    def new_log(self) -> str:
        """What the server has written into its log since the test began."""
        return self.log.read_bytes()[self.seen :].decode()

    def complaints(self) -> list[str]:
        """Blocked event loops and exceptions in the log since the test began."""
        return [line for line in self.new_log().splitlines() if any(word in line for word in COMPLAINTS)]


def model_name(model: ScriptedServer) -> str:
    """The name of this model at the operator's endpoint."""
    return f"m-{urlsplit(model.base_url).port}"


class Switchboard(socketserver.ThreadingTCPServer):
    """The operator's one endpoint: it hands each connection on to the scripted model that its request names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.base_url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        client, head = self.request, b""
        while not (match := re.search(rb"content-length: (\d+).*?\r\n\r\n", head, re.IGNORECASE | re.DOTALL)) or (
            len(head) < match.end() + int(match[1])
        ):
            if not (part := client.recv(65_536)):
                return
            head += part
        name = json.loads(head[match.end() :])["model"]
        with socket.create_connection(("127.0.0.1", int(name.rpartition("-")[2]))) as model:
            model.sendall(head)
            other = {client: model, model: client}
            with suppress(ConnectionError):
                while all(
                    self._handed_on(connection, other[connection])
                    for connection in select.select([client, model], [], [])[0]
                ):
                    pass

    def _handed_on(self, one: socket.socket, other: socket.socket) -> bool:
        """Whether there was something, and not the end."""
        part = one.recv(65_536)
        other.sendall(part)
        return bool(part)


@contextmanager
def switchboard() -> Iterator[str]:
    """Its address."""
    with Switchboard() as board:
        thread = threading.Thread(target=board.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield board.base_url
        finally:
            board.shutdown()
            thread.join()


@dataclass(frozen=True)
class Dev:
    """A running `langgraph dev`: its address, its log, and the port of the one site that it may ask."""

    url: str
    log: Path
    site_port: int


@pytest.fixture(scope="session")
def studio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """`langgraph dev` in the folder that holds all tests' own, where it may leave its `.langgraph_api`."""
    with operator_server(tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("operator") / "config.toml") as server:
        yield server


@contextmanager
def operator_server(folder: Path, settings: Path, **variables: str) -> Iterator[Dev]:
    """`langgraph dev` in this folder; its operator's settings allow one endpoint, one program and one site, and notes.

    Beside ours it has a graph that a user has built, `own`.
    """
    port = free_port()
    configuration = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8"))
    configuration["graphs"]["mendgraph"]["path"] = f"{ROOT / 'graph' / 'agent.py'}:graph"
    configuration["graphs"]["own"] = "./own.py:graph"
    (folder / "langgraph.json").write_text(json.dumps(configuration), encoding="utf-8")
    (folder / "own.py").write_text(
        "from mendgraph import build_graph\n\ngraph = build_graph(name='own')\n", encoding="utf-8"
    )
    with switchboard() as endpoint:
        site = f'["127.0.0.1:{port}"]'
        allowed = f'allowed_programs = ["true"]\nallowed_hosts = {site}\nallowed_private_hosts = {site}\n'
        settings.write_text(f'base_url = "{endpoint}"\nmemory = true\n{allowed}', encoding="utf-8")
        with start_server(folder, MENDGRAPH_CONFIG=str(settings), **variables) as url:
            yield Dev(url, folder / "log.txt", port)


@pytest.fixture
def studio(studio_server: Dev) -> Iterator[Studio]:
    """The server for one test, with a client."""
    with client_of(studio_server) as client:
        yield client


@contextmanager
def client_of(server: Dev) -> Iterator[Studio]:
    """A client that has seen the server's log so far."""
    from langgraph_sdk import get_sync_client

    with get_sync_client(url=server.url) as client:
        yield Studio(server.url, client, server.log, seen=server.log.stat().st_size, site_port=server.site_port)


@contextmanager
def start_server(folder: Path, **variables: str) -> Iterator[str]:
    """The address of `langgraph dev` in a folder with its configuration; it is ended by its process id."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "langgraph"), "dev", "--no-browser", "--no-reload"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--n-jobs-per-worker", "10"],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/ok", process, folder / "log.txt")
        yield f"http://127.0.0.1:{port}"
    finally:
        end_process(process)


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, and see that it does."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers; fail with its log when it ends or takes too long."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError(f"langgraph dev did not start:\n{log.read_text(encoding='utf-8')}")


def native_server(*replies: Use | Reply) -> ScriptedServer:
    """A model with these replies, in native calls."""
    return ScriptedServer([in_protocol(reply, Protocol.NATIVE) for reply in replies])
