"""What LangGraph Studio sees: the server that `make studio` starts, without a key, a browser or the network."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from graph.context import AgentContext
from graph.routes import NODES, TRANSITIONS
from nodes.records import JsonMap, Protocol
from tests.architecture.house import ROOT
from tests.doubles.replies import Say
from tests.doubles.scripted_server import ScriptedServer
from tests.runs.playing import changed_files, write_files
from tests.runs.scenario import Use, spoken, use
from tests.runs.scenarios_of_work import CALC, DONE, EDIT, MENDED, READ, TASK

pytestmark = pytest.mark.studio

START_S = 60.0


@dataclass(frozen=True)
class Studio:
    """The running server, as its clients see it; `seen` is how much of its log was written before this test."""

    client: SyncLangGraphClient
    log: Path
    seen: int

    def run(self, thread: JsonMap, folder: Path, model: ScriptedServer, **more: Any) -> JsonMap:
        """One run on this model, without any calls but the model's; what it returns."""
        settings = {"base_url": model.base_url, "model": "m", "evidence": False, "read_ahead": False}
        context = {"workspace": str(folder), **settings, **more.pop("context", {})}
        ended: Any = self.client.runs.wait(thread["thread_id"], "mendgraph", context=context, **more)
        return dict(ended)

    def request(self, text: str) -> JsonMap:
        """The input of a turn, as a browser sends it."""
        return {"messages": [{"role": "user", "content": text}]}


Server = tuple[SyncLangGraphClient, Path]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`langgraph dev` in a folder of its own, where it may leave its `.langgraph_api`: a client of it, and its log."""
    folder = tmp_path_factory.mktemp("studio")
    shutil.copy(ROOT / "langgraph.json", folder)
    with started(folder) as url, get_sync_client(url=url) as client:
        yield client, folder / "log.txt"


@pytest.fixture
def studio(server: Server) -> Studio:
    client, log = server
    return Studio(client, log, seen=log.stat().st_size)


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """The server's address; it is ended by its process id."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "langgraph"), "dev", "--no-browser", "--no-reload"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--n-jobs-per-worker", "2"],
            cwd=folder,
            env=dict(os.environ),
            stdout=log,
            stderr=log,
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/ok", process, folder / "log.txt")
        yield f"http://127.0.0.1:{port}"
    finally:
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


def told(*replies: Use | Say) -> ScriptedServer:
    return ScriptedServer([spoken(reply, Protocol.NATIVE) for reply in replies])


def test_the_graph_is_drawn_whole(studio: Studio) -> None:
    [assistant] = studio.client.assistants.search(graph_id="mendgraph")
    drawn: Any = studio.client.assistants.get_graph(assistant["assistant_id"])
    assert {node["id"] for node in drawn["nodes"]} == {"__start__", "__end__", *NODES}
    assert {(edge["source"], edge["target"]) for edge in drawn["edges"]} == {(t.source, t.target) for t in TRANSITIONS}
    targets = {source: [t.target for t in TRANSITIONS if t.source == source] for source in NODES}
    branching = {edge["source"] for edge in drawn["edges"] if edge.get("conditional")}
    assert branching == {source for source, ways in targets.items() if len(ways) > 1}


def test_the_form_describes_and_bounds_its_fields(studio: Studio) -> None:
    [assistant] = studio.client.assistants.search(graph_id="mendgraph")
    schemas: Any = studio.client.assistants.get_schemas(assistant["assistant_id"])
    fields = schemas["context_schema"]["properties"]
    assert set(fields) == set(AgentContext.model_fields)
    assert [name for name, field in fields.items() if not field.get("description")] == []
    assert (fields["max_calls_per_turn"]["minimum"], fields["max_calls_per_turn"]["maximum"]) == (1, 1_000)
    assert fields["mode"]["enum"] == ["read-only", "ask", "auto"]
    assert set(schemas["input_schema"]["properties"]) == {"messages"}
    assert set(schemas["output_schema"]["properties"]) == {"messages", "outcome", "changes", "plan", "spending"}
    assert set(schemas["state_schema"]["properties"]) > {"messages", "outcome", "verdicts", "loop"}


def test_a_thread_is_run_and_goes_on(studio: Studio, tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    with told(use(READ), use(EDIT), DONE, Say("You are welcome.")) as model:
        first = studio.run(thread, tmp_path, model, input=studio.request(TASK))
        second = studio.run(thread, tmp_path, model, input=studio.request("Thank you."))
        assert model.remaining == 0
    assert (first["outcome"]["kind"], first["outcome"]["changed_files"]) == ("FINISHED", ["calc.py"])
    assert (second["outcome"]["answer"], second["outcome"]["usage"]["total_calls"]) == ("You are welcome.", 4)
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}
    state: Any = studio.client.threads.get_state(thread["thread_id"])
    assert state["values"]["outcome"] == second["outcome"]
    assert [message["type"] for message in state["values"]["messages"]] == [
        *("human", "ai", "tool", "ai", "tool", "ai"),
        *("human", "ai"),
    ]
    assert_no_complaints(studio)


def test_a_person_is_asked_and_answers(studio: Studio, tmp_path: Path) -> None:
    """Without the context: what the turn began with is in its state, whatever the server fills in for a resume."""
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    with told(use(EDIT), DONE) as model:
        studio.run(thread, tmp_path, model, input=studio.request(TASK), context={"mode": "ask"})
        asked: Any = studio.client.threads.get_state(thread["thread_id"])
        [question] = [each["value"] for task in asked["tasks"] for each in task["interrupts"]]
        assert (asked["next"], question["calls"][0]["path"], changed_files(tmp_path, CALC)) == (
            ["guard"],
            "calc.py",
            {},
        )
        resumed: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"resume": "approve"})
    assert (resumed["outcome"]["kind"], changed_files(tmp_path, CALC)) == ("FINISHED", {"calc.py": MENDED})
    assert_no_complaints(studio)


def test_a_run_is_watched_step_by_step(studio: Studio, tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    path: list[str] = []
    custom: list[JsonMap] = []
    with told(use(READ), Say("It subtracts.")) as model:
        context: Any = {"workspace": str(tmp_path), "base_url": model.base_url, "model": "m", "read_ahead": False}
        parts = studio.client.runs.stream(
            thread["thread_id"],
            "mendgraph",
            input=studio.request("What does calc.py do?"),
            context=context,
            stream_mode=["updates", "custom", "messages-tuple"],
        )
        for part in parts:
            data: Any = part.data
            if part.event == "updates":
                path += data
            elif part.event == "custom":
                custom.append(data)
    step = ["guard", "execute_tools", "loop_check"]
    assert path == ["begin_turn", "call_model", "parse", *step, "call_model", "parse", "FINISHED"]
    assert "".join(part["text"] for part in custom if part["type"] == "text") == "It subtracts."
    assert "tool.invoke.ok" in [part["name"] for part in custom if part["type"] == "trace"]
    assert_no_complaints(studio)


def test_a_context_that_does_not_fit_is_refused_by_name(studio: Studio, tmp_path: Path) -> None:
    thread: Any = studio.client.threads.create()
    context: Any = {"workspace": str(tmp_path), "max_calls_per_turn": 0}
    ended: Any = studio.client.runs.wait(
        thread["thread_id"], "mendgraph", input=studio.request("Hi."), context=context, raise_error=False
    )
    assert "max_calls_per_turn" in json.dumps(ended)


def assert_no_complaints(studio: Studio) -> None:
    """Nothing blocked the event loop, and nothing was raised, since the test began."""
    log = studio.log.read_bytes()[studio.seen :].decode()
    words = ("BlockingError", "Traceback", "[error", "Blocked deserialization")
    assert [line for line in log.splitlines() if any(word in line for word in words)] == []
