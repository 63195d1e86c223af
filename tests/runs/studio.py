"""The server that `make studio` starts, for every test that is a client of it: one for all tests of a process.

It runs in a folder of its own, without a key, a browser or the network, and is ended by its process id.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodes.records import JsonMap, Protocol
from tests.architecture.house import ROOT
from tests.doubles.replies import Reply
from tests.doubles.scripted_server import ScriptedServer
from tests.runs.scenario import Use, spoken

if TYPE_CHECKING:
    from langgraph_sdk.client import SyncLangGraphClient

START_S = 90.0
COMPLAINTS = ("BlockingError", "Blocking call", "Traceback", "[error", "Blocked deserialization")
"""What the server writes into its log when a node held up its event loop, or raised, or met a foreign type."""


@dataclass(frozen=True)
class Studio:
    """The running server, as its clients see it; `seen` is how much of its log was written before this test."""

    url: str
    client: "SyncLangGraphClient"
    log: Path
    seen: int

    def run(self, thread: JsonMap, folder: Path, model: ScriptedServer, **more: Any) -> JsonMap:
        """One run on this model, without any calls but the model's; what it returns."""
        context = self.context(folder, model, more.pop("context", {}))
        ended: Any = self.client.runs.wait(thread["thread_id"], "mendgraph", context=context, **more)
        return dict(ended)

    def context(self, folder: Path, model: ScriptedServer, more: Mapping[str, Any] | None = None) -> JsonMap:
        """The form of a run in this folder, on this model, in which nothing calls the model but the run itself."""
        settings = {"base_url": model.base_url, "model": "m", "evidence": False, "read_ahead": False}
        return {"workspace": str(folder), **settings, **(more or {})}

    def thread(self) -> JsonMap:
        """A new thread."""
        created: Any = self.client.threads.create()
        return dict(created)

    def state(self, thread: JsonMap) -> Any:
        """What Studio shows of a thread."""
        return self.client.threads.get_state(thread["thread_id"])

    def question(self, thread: JsonMap) -> Any:
        """What the thread's interrupt asks."""
        [question] = [each["value"] for task in self.state(thread)["tasks"] for each in task["interrupts"]]
        return question

    def request(self, text: str) -> JsonMap:
        """The input of a turn, as a browser sends it."""
        return {"messages": [{"role": "user", "content": text}]}

    def said(self) -> str:
        """What the server has written into its log since the test began."""
        return self.log.read_bytes()[self.seen :].decode()

    def complaints(self) -> list[str]:
        """Where something blocked the event loop, or was raised, since the test began."""
        return [line for line in self.said().splitlines() if any(word in line for word in COMPLAINTS)]


@pytest.fixture(scope="session")
def studio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """`langgraph dev` in a folder of its own, where it may leave its `.langgraph_api`: its address, and its log."""
    folder = tmp_path_factory.mktemp("studio")
    shutil.copy(ROOT / "langgraph.json", folder)
    with started(folder) as url:
        yield url, folder / "log.txt"


@pytest.fixture
def studio(studio_server: tuple[str, Path]) -> Iterator[Studio]:
    """The server for one test, with a client."""
    from langgraph_sdk import get_sync_client

    url, log = studio_server
    with get_sync_client(url=url) as client:
        yield Studio(url, client, log, seen=log.stat().st_size)


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """The server's address; it is ended by its process id."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "langgraph"), "dev", "--no-browser", "--no-reload"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--n-jobs-per-worker", "10"],
            cwd=folder,
            env=dict(os.environ),
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


def told(*replies: Use | Reply) -> ScriptedServer:
    """A model that says this, with native calls."""
    return ScriptedServer([spoken(reply, Protocol.NATIVE) for reply in replies])
