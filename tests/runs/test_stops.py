"""Ctrl-C and SIGTERM in whole runs: wherever a run is, it ends with its running step, or at once, and tells how."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Ended
from mendgraph.graph.runs.run import Session
from mendgraph.graph.terminal.process_end import by_whom
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, Outcome, OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Reply, Say, Slow, Status
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.runs.stopping import mendgraph, stalled_endpoint, stopping
from tests.sandboxes import needs_sandbox, without_first_line
from tests.workspace_files import write_files

FILES = {"a.py": "a = 1\n"}
SIGNALS = pytest.mark.parametrize(("number", "by"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


def said(by: str) -> str:
    return f"BUDGET_STOP (cancelled): The run was stopped {by_whom(by)}."


# --- As processes


@SIGNALS
def test_while_the_model_is_waited_for(root: Path, number: signal.Signals, by: str) -> None:
    def waiting(_: Any) -> Reply:
        running.send(number)
        return Slow(60, Say("Too late."))

    with ScriptedServer([waiting]) as server, mendgraph(root, server.base_url, "Look here.") as running:
        assert running.end() == 3
    assert (said(by) in running.out, "Too late" in running.out) == (True, False)
    assert without_first_line(running.err).startswith(stopping(by))
    assert "How to go on: Go on from there with `mendgraph resume " in running.out


@SIGNALS
def test_while_a_reply_streams(root: Path, number: signal.Signals, by: str) -> None:
    with stalled_endpoint("I think hard") as base_url, mendgraph(root, base_url, "Look here.") as running:
        running.wait_for_out("I think ")
        running.send(number)
        assert running.end() == 3
    assert f"hard\n{said(by)}" in running.out
    assert without_first_line(running.err).startswith(stopping(by))


@SIGNALS
def test_while_an_endpoint_is_left_alone(root: Path, number: signal.Signals, by: str) -> None:
    busy = Status(503, headers={"Retry-After": "30"})
    with ScriptedServer([busy]) as server, mendgraph(root, server.base_url, "Look here.") as running:
        running.wait_for_out("Trying again in 30 s\n")
        running.send(number)
        assert running.end() == 3
        assert len(server.requests) == 1
    assert said(by) in running.out
    assert without_first_line(running.err).startswith(stopping(by))


WORK = "echo > begun; while [ ! -e go ]; do sleep 0.02; done; echo > done"
"""A command that says that it has begun, and ends when it is told to."""


def working() -> ScriptedServer:
    """An endpoint that has a command run, and a file written after it."""
    calls = ("run_command", {"argv": ["sh", "-c", WORK]}), ("write_file", {"path": "next.txt", "content": "x"})
    return ScriptedServer([message_of(use(*calls), Protocol.NATIVE)], then=lambda _: Say("Done."))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


@needs_sandbox
@SIGNALS
def test_while_a_tool_works(root: Path, number: signal.Signals, by: str) -> None:
    with working() as server, mendgraph(root, server.base_url, "--allow-program", "sh", "Work here.") as running:
        wait_for(root / "begun")
        running.send(number)
        running.wait_for_err(stopping(by))
        (root / "go").touch()
        assert running.end() == 3
        assert len(server.requests) == 1
    assert sorted(os.listdir(root)) == ["a.py", "begun", "done", "go"]
    assert said(by) in running.out
    assert "→ write_file next.txt  cancelled: The run was stopped before this call, so it did not run.\n" in running.out


@needs_sandbox
@pytest.mark.parametrize(
    ("numbers", "code", "by"),
    [
        ((signal.SIGINT, signal.SIGINT), 130, "Ctrl-C"),
        ((signal.SIGTERM, signal.SIGTERM), 143, "SIGTERM"),
        ((signal.SIGTERM, signal.SIGINT), 143, "Ctrl-C"),
    ],
)
def test_second_signal_does_not_wait_for_the_tool(
    root: Path, numbers: tuple[signal.Signals, signal.Signals], code: int, by: str
) -> None:
    first = "SIGTERM" if numbers[0] == signal.SIGTERM else "Ctrl-C"
    with working() as server, mendgraph(root, server.base_url, "--allow-program", "sh", "Work here.") as running:
        wait_for(root / "begun")
        running.send(numbers[0])
        running.wait_for_err(stopping(first))
        running.send(numbers[1])
        assert running.end() == code
    assert without_first_line(running.err).startswith(
        f"{stopping(first)}mendgraph: stopped {by_whom(by)}; go on with: mendgraph resume "
    )
    assert sorted(os.listdir(root)) == ["a.py", "begun"]


@SIGNALS
def test_at_the_prompt_of_a_chat(root: Path, number: signal.Signals, by: str) -> None:
    with ScriptedServer([Say("Hello.")]) as server, mendgraph(root, server.base_url, "chat") as running:
        running.wait_for_out("You: ")
        running.say("hi\n")
        running.wait_for_out("You: ")
        running.send(number)
        assert running.end() == {"Ctrl-C": 0, "SIGTERM": 143}[by]
    assert "API Usage Stats:\n  Calls: 1/180" in running.out
    assert "stop" not in running.err


# --- From Python


CLOSES: list[Callable[[], None]] = []


@tool(effect=Effect.WRITE)
def stopped_meanwhile(context: ToolContext, name: str) -> ToolOutput:
    """Let somebody want the run to stop, and write nevertheless."""
    CLOSES.pop()()
    context.workspace.write_file(name, b"done", expected_sha256="")
    return ToolOutput.ok()


def session(root: Path, *script: Any, **context: Any) -> Session:
    model = ScriptedModel([line if isinstance(line, Say) else message_of(line, Protocol.NATIVE) for line in script])
    tools = (*default_tools(), stopped_meanwhile)
    return Session(AgentContext(workspace=str(root), **context), model=model, tools=tools)


def outcome_of(events: Any) -> Outcome:
    *_, last = events
    assert isinstance(last, Ended)
    return last.outcome


WORKING = use(("stopped_meanwhile", {"name": "a.txt"}), ("write_file", {"path": "b.txt", "content": "x"}))


@pytest.mark.parametrize("way", ["call", "thread", "signal"])
def test_program_may_stop_its_own_run_from_anywhere(root: Path, way: str) -> None:
    with session(root, WORKING, Say("Never."), Say("And now?")) as running:
        handled = threading.Event()

        def handle(*_: object) -> None:
            running.stop()
            handled.set()

        def by_signal() -> None:
            for _ in range(600):  # one that comes between a look at signals and a wait in C wakes nobody (CPython)
                os.kill(os.getpid(), signal.SIGUSR1)  # to the process, so that its main thread wakes up and handles it
                if handled.wait(0.1):
                    return
            pytest.fail("nobody handled the signal")

        before = signal.signal(signal.SIGUSR1, handle)

        def in_a_thread() -> None:
            thread = threading.Thread(target=running.stop)
            thread.start()
            thread.join()

        stops: dict[str, Callable[[], None]] = {"call": running.stop, "thread": in_a_thread, "signal": by_signal}
        CLOSES.append(stops[way])
        try:
            outcome = outcome_of(running.stream("Work."))
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert (outcome.kind, outcome.reason) == (OutcomeKind.BUDGET_STOP, StopReason.CANCELLED)
        assert (outcome.message, outcome.usage["total_calls"]) == ("The run was stopped by the program.", 1)
        assert sorted(os.listdir(root)) == ["a.py", "a.txt"]
        assert outcome_of(running.stream("And then?")).kind is OutcomeKind.FINISHED


def test_stop_while_nothing_runs_stops_nothing(root: Path) -> None:
    with session(root, Say("Hello.")) as running:
        running.stop("by somebody")
        assert outcome_of(running.stream("Hi.")).kind is OutcomeKind.FINISHED
