"""Ctrl-C and SIGTERM in whole runs: a run ends after its running step, or at once, and says how to continue."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph import Effect, Ended, ToolContext, ToolOutput, tool
from tests.doubles.replies import Reply, Say, Slow, Status
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.surfaces.runs.tool_play import scripted_model, session
from tests.surfaces.terminal.stopping import stalled_endpoint, start_command, stopping_message
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

FILES = {"a.py": "a = 1\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


def by_whom(signal_name: str) -> str:
    return {"Ctrl-C": "by you (Ctrl-C)"}.get(signal_name, f"by {signal_name}")


def outcome_line(by: str) -> str:
    return f"BUDGET_STOP (cancelled): The run was stopped {by_whom(by)}."


# --- As processes


@slow
def test_signal_during_a_model_call_ends_the_run(root: Path) -> None:
    def waiting(_: Any) -> Reply:
        running.send(signal.SIGINT)
        return Slow(60, Say("Too late."))

    with ScriptedServer([waiting]) as server, start_command(root, server.base_url, "Look here.") as running:
        assert running.end() == 3
    assert (outcome_line("Ctrl-C") in running.err, "Too late" in running.err) == (True, False)
    assert stopping_message("Ctrl-C") in running.err
    assert "How to continue: Continue with `mendgraph resume " in running.err


@slow
def test_signal_during_a_streamed_reply_ends_the_run(root: Path) -> None:
    with stalled_endpoint("I think hard") as base_url, start_command(root, base_url, "Look here.") as running:
        running.wait_for_err("I think ")
        running.send(signal.SIGTERM)
        assert running.end() == 3
    assert f"hard\n{outcome_line('SIGTERM')}" in running.err
    assert stopping_message("SIGTERM") in running.err


@slow
def test_signal_during_a_retry_wait_ends_the_run(root: Path) -> None:
    busy = Status(503, headers={"Retry-After": "30"})
    with ScriptedServer([busy]) as server, start_command(root, server.base_url, "Look here.") as running:
        running.wait_for_err("Trying again in 30 s\n")
        running.send(signal.SIGINT)
        assert running.end() == 3
        assert len(server.requests) == 1
    assert outcome_line("Ctrl-C") in running.err
    assert stopping_message("Ctrl-C") in running.err


WORK = "echo > begun; while [ ! -e go ]; do sleep 0.02; done; echo > done"
"""A command that says that it has begun, and ends when it is told to."""


def working_server() -> ScriptedServer:
    """An endpoint that has a command run, and a file written after it."""
    calls = ("run_command", {"argv": ["sh", "-c", WORK]}), ("write_file", {"path": "next.txt", "content": "x"})
    return ScriptedServer([message_of(use(*calls), Protocol.NATIVE)], then=lambda _: Say("Done."))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


@slow
@needs_sandbox
def test_signal_during_a_tool_ends_the_run_after_the_step(root: Path) -> None:
    with (
        working_server() as server,
        start_command(root, server.base_url, "--allow-program", "sh", "Work here.") as running,
    ):
        wait_for(root / "begun")
        running.send(signal.SIGTERM)
        running.wait_for_err(stopping_message("SIGTERM"))
        (root / "go").touch()
        assert running.end() == 3
        assert len(server.requests) == 1
    assert sorted(os.listdir(root)) == ["a.py", "begun", "done", "go"]
    assert outcome_line("SIGTERM") in running.err
    assert "→ write_file next.txt  cancelled: The run was stopped before this call, so it did not run.\n" in running.err


@slow
@needs_sandbox
@pytest.mark.parametrize(
    ("numbers", "code", "by"),
    [
        ((signal.SIGINT, signal.SIGINT), 130, "Ctrl-C"),
        ((signal.SIGTERM, signal.SIGINT), 143, "Ctrl-C"),
    ],
)
def test_second_signal_does_not_wait_for_the_tool(
    root: Path, numbers: tuple[signal.Signals, signal.Signals], code: int, by: str
) -> None:
    first = "SIGTERM" if numbers[0] == signal.SIGTERM else "Ctrl-C"
    with (
        working_server() as server,
        start_command(root, server.base_url, "--allow-program", "sh", "Work here.") as running,
    ):
        wait_for(root / "begun")
        running.send(numbers[0])
        running.wait_for_err(stopping_message(first))
        running.send(numbers[1])
        assert running.end() == code
    assert stopping_message(first) in running.err
    assert f"mendgraph: stopped {by_whom(by)}; continue with: mendgraph resume " in running.err
    assert sorted(os.listdir(root)) == ["a.py", "begun"]


@slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signal_at_the_prompt_ends_the_chat(root: Path, number: signal.Signals, code: int) -> None:
    with ScriptedServer([Say("Hello.")]) as server, start_command(root, server.base_url, "chat") as running:
        running.wait_for_out("You: ")
        running.say("hi\n")
        running.wait_for_out("You: ")
        running.send(number)
        assert running.end() == code
    assert "API Usage Stats:\n  Calls: 1/180" in running.err
    assert "stopp" not in running.err


# --- From Python


CLOSES: list[Callable[[], None]] = []


@tool(effect=Effect.WRITE)
def stop_and_write(context: ToolContext, name: str) -> ToolOutput:
    """Request a stop of the run, and write anyway."""
    CLOSES.pop()()
    context.workspace.write_file(name, b"done", expected_sha256="")
    return ToolOutput.ok()


WORKING = use(("stop_and_write", {"name": "a.txt"}), ("write_file", {"path": "b.txt", "content": "x"}))


@pytest.mark.parametrize("way", ["thread", "signal"])
def test_program_can_stop_its_own_run_from_anywhere(root: Path, way: str) -> None:
    model = scripted_model(Protocol.NATIVE, WORKING, Say("Hello."), Say("And now?"))
    with session(root, model, tools=(stop_and_write,)) as running:
        running.stop("while nothing runs")
        handled = threading.Event()

        def handle(*_: object) -> None:
            running.stop()
            handled.set()

        def by_signal() -> None:
            for _ in range(600):  # a signal between CPython's check for signals and a wait in C is not noticed
                os.kill(os.getpid(), signal.SIGUSR1)  # to the process, so that its main thread wakes up and handles it
                if handled.wait(0.1):
                    return
            pytest.fail("nobody handled the signal")

        def in_a_thread() -> None:
            thread = threading.Thread(target=running.stop)
            thread.start()
            thread.join()

        before = signal.signal(signal.SIGUSR1, handle)
        CLOSES.append(by_signal if way == "signal" else in_a_thread)
        try:
            *_, ended = running.stream("Work.")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert isinstance(ended, Ended)
        outcome = ended.outcome
        assert (outcome.kind, outcome.reason) == ("BUDGET_STOP", "cancelled")
        assert (outcome.message, outcome.usage["total_calls"]) == ("The run was stopped by the program.", 1)
        assert sorted(os.listdir(root)) == ["a.py", "a.txt"]
        *_, ended = running.stream("And then?")
        assert isinstance(ended, Ended)
        assert ended.outcome.kind == "FINISHED"
