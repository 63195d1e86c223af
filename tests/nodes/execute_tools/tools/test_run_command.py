from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.execute_tools.processes.command_changes import Unwatched
from mendgraph.nodes.execute_tools.processes.commands import (
    LONGEST_LAST_WORDS,
    CommandResult,
    CommandRules,
    Commands,
    last_words,
    open_commands,
    output_text,
)
from mendgraph.nodes.execute_tools.processes.processes import Ends
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.run_command import run_command
from mendgraph.nodes.execute_tools.tools.write_file import write_file
from mendgraph.nodes.records import ChangeKind, FileChange, JsonMap, ToolError, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.conftest import Bench
from tests.nodes.execute_tools.files.layout import sha
from tests.nodes.execute_tools.files.recorder_doubles import BrokenJournal, MemoryJournal
from tests.sandboxes import set_sandbox_problem

RESULT = CommandResult(0, Ends(), Ends(), 0.1, 30.0)
MODULE = import_module("mendgraph.nodes.execute_tools.tools.run_command")


class Recorder:
    """Stands for the commands: remembers what it was asked, does and answers what it was told to."""

    def __init__(self, answer: CommandResult | ToolError, do: Callable[[], object] = lambda: None) -> None:
        self.answer, self.do = answer, do
        self.asked: list[tuple[object, ...]] = []

    def run(self, *asked: object) -> CommandResult | ToolError:
        self.asked.append(asked)
        self.do()
        return self.answer


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The tool's clock, which stands at the number in the list."""
    now = [0.0]
    monkeypatch.setattr(MODULE, "monotonic_s", lambda: now[0])
    return now


def ran(
    bench: Bench, answer: CommandResult | ToolError, **arguments: Any
) -> tuple[ToolResult, list[tuple[object, ...]]]:
    recorder = Recorder(answer)
    context = ToolContext(bench.workspace, commands=cast("Commands", recorder), timeout_s=20.0)
    output = run_command.s(context, **{"argv": ["make"], **arguments})
    assert (output.changes, output.files_read, output.plan) == ((), {}, None)
    return output.result, recorder.asked


def test_without_commands_it_says_how_to_allow_them(bench: Bench) -> None:
    message = "Commands are off in this run: name the programs in `allowed_programs` (`--allow-program`)."
    assert bench.error(run_command, argv=["make"]) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def test_sandbox_that_cannot_start_says_why(bench: Bench) -> None:
    reason = ToolError(code=ToolErrorCode.UNAVAILABLE, message="bubblewrap is not installed")
    output: ToolOutput = run_command.s(ToolContext(bench.workspace, commands=reason), argv=["true"])
    assert output == ToolOutput.failed(reason)


@pytest.mark.parametrize(
    ("result", "data"),
    [
        (RESULT, {"exit_code": 0, "stdout": "", "stderr": ""}),
        (
            replace(RESULT, exit_code=139, stdout=Ends(b"a", b"b", 99)),
            {
                "exit_code": 139,
                "stdout": "a\n[... 97 of 99 bytes left out ...]\nb",
                "stdout_bytes": 99,
                "stderr": "",
                "signal": 11,
            },
        ),
        (
            replace(RESULT, stderr=Ends(b"a", b"", 9)),
            {"exit_code": 0, "stdout": "", "stderr": "a\n[... 8 of 9 bytes left out ...]\n", "stderr_bytes": 9},
        ),
    ],
)
def test_what_a_model_sees(bench: Bench, result: CommandResult, data: JsonMap) -> None:
    assert ran(bench, result)[0] == ToolResult(ok=True, data=data)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            replace(RESULT, stdout=Ends(b"1 passed\n", b"", 9), stderr=Ends(b"slow", b"", 4), timed_out=True),
            "make was stopped after 30 s. The end of its output:\n1 passed\nslow",
        ),
        (replace(RESULT, timed_out=True), "make was stopped after 30 s. It had printed nothing."),
    ],
)
def test_timeout_is_a_failure_with_the_end_of_the_output(bench: Bench, result: CommandResult, message: str) -> None:
    assert ran(bench, result)[0].error == ToolError(code=ToolErrorCode.TIMEOUT, message=message)


@pytest.mark.parametrize(
    "arguments", [{}, {"argv": []}, {"argv": ["make"], "timeout_s": 0}, {"argv": ["make"], "shell": True}]
)
def test_arguments_that_are_refused(arguments: JsonMap) -> None:
    assert isinstance(run_command.validate(arguments), list)


@pytest.mark.parametrize(
    ("asked", "call", "turn", "seconds"), [(None, 20.0, 30.0, 20.0), (5.0, 20.0, 30.0, 5.0), (5.0, 20.0, 2.5, 2.5)]
)
def test_it_takes_no_longer_than_it_the_call_and_the_turn_may(
    bench: Bench, asked: float | None, call: float, turn: float, seconds: float
) -> None:
    recorder = Recorder(RESULT)
    context = ToolContext(bench.workspace, commands=cast("Commands", recorder), timeout_s=call, seconds_left=turn)
    run_command.s(context, argv=["make"], timeout_s=asked)
    assert recorder.asked == [(["make"], ".", seconds)]


# --- What it changed
def changing(
    bench: Bench,
    do: Callable[[], object],
    answer: CommandResult | ToolError = RESULT,
    journal: MemoryJournal | None = None,
) -> ToolOutput:
    commands = cast("Commands", Recorder(answer, do))
    output = run_command.s(ToolContext(bench.workspace.recorded(journal), commands=commands), argv=["make"])
    assert isinstance(output, ToolOutput)
    assert (output.files_read, output.plan) == ({}, None)
    return output


def change(path: str, kind: ChangeKind, before: bytes | None, after: bytes | None, diff: str = "") -> FileChange:
    was, now = ("" if data is None else sha(data) for data in (before, after))
    return FileChange(path=path, kind=kind, sha256_before=was, sha256_after=now, diff=diff)


def test_what_it_changed_is_told_to_the_model_and_to_the_run(bench: Bench) -> None:
    bench.put({"a.py": "a = 1\n", "src/b.py": "", "image": b"\0", "same": "x"})

    def do() -> None:
        bench.put({"a.py": "a = 2\n", "new/c.py": "c\n", "image": b"\0\0", "same": "x"})
        (bench.root / "src" / "b.py").unlink()
        (bench.root / "a.py").chmod(0o755)

    output = changing(bench, do)
    assert output.result.data == {
        "exit_code": 0,
        "stdout": "",
        "stderr": "",
        "changed_files": ["a.py (edited)", "image (edited)", "new/c.py (created)", "src/b.py (deleted)"],
    }
    assert output.changes == (
        change("a.py", ChangeKind.EDITED, b"a = 1\n", b"a = 2\n", unified_diff("a.py", "a = 1\n", "a = 2\n")),
        change("image", ChangeKind.EDITED, b"\0", b"\0\0"),
        change("new/c.py", ChangeKind.CREATED, None, b"c\n", unified_diff("new/c.py", None, "c\n")),
        change("src/b.py", ChangeKind.DELETED, b"", None),
    )


def test_denied_file_that_was_made_is_told_without_its_content(bench: Bench) -> None:
    output = changing(bench, lambda: bench.put({"a/.env": "x"}))
    assert output.result.data["changed_files"] == ["a/.env (created)"]
    assert output.changes == (
        FileChange(path="a/.env", kind=ChangeKind.CREATED, sha256_before="", sha256_after="?", diff=""),
    )


def test_file_that_a_command_rewrote_has_to_be_read_again(bench: Bench) -> None:
    bench.put({"a.py": "a=1\n"})
    bench.run(read_file, path="a.py")
    output = changing(bench, lambda: bench.put({"a.py": "a = 1\n"}))
    bench.files_read.update(output.files_read)
    assert bench.error(write_file, path="a.py", content="a = 2\n").code is ToolErrorCode.CONFLICT


def test_workspace_that_is_not_watched_is_told_as_such(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    unwatched = Unwatched("the workspace is large")
    monkeypatch.setattr(MODULE, "watched", lambda _workspace, run, _seconds: (run(), unwatched, ""))
    output = changing(bench, lambda: None)
    assert output.result.data["changed_files"] == "not tracked: the workspace is large"
    late = changing(bench, lambda: None, replace(RESULT, timed_out=True))
    assert late.result.error == ToolError(
        code=ToolErrorCode.TIMEOUT,
        message=(
            "make was stopped after 30 s. What it changed was not tracked: the workspace is large."
            " It had printed nothing."
        ),
    )
    assert (output.changes, late.changes) == ((), ())


def test_timeout_tells_what_was_changed(bench: Bench) -> None:
    answer = replace(RESULT, timed_out=True, stderr=Ends(b"slow", b"", 4))
    output = changing(bench, lambda: bench.put(dict.fromkeys("abcdefghijklmnopqrstuv", "")), answer)
    names = ", ".join(f"{name} (created)" for name in "abcdefghijklmnopqrst")
    message = f"make was stopped after 30 s. It changed: {names}, ... and 2 more. The end of its output:\nslow"
    assert output.result.error == ToolError(code=ToolErrorCode.TIMEOUT, message=message)
    assert len(output.changes) == 22


def test_changes_that_cannot_be_recorded_end_the_run(bench: Bench) -> None:
    output = changing(bench, lambda: bench.put({"a": "1"}), journal=BrokenJournal("intend"))
    message = "make has run, but what it changed could not be recorded, so it cannot be undone. The disk is full."
    assert output.result.error == ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True)
    assert [each.path for each in output.changes] == ["a"]


@pytest.fixture
def context(bench: Bench) -> Callable[..., ToolContext]:
    """The context of a run that may start `sh`, where a sandbox can be started."""

    def make(**fields: Any) -> ToolContext:
        found = open_commands(str(bench.root), CommandRules(("sh",)), lambda name: name.endswith(".env"))
        if isinstance(found, ToolError):
            pytest.skip(found.message)
        return ToolContext(bench.workspace, commands=found, **fields)

    return make


def test_what_a_real_program_changes(bench: Bench, context: Callable[..., ToolContext]) -> None:
    bench.put({"src/a": "1", "src/b": "2"})
    output = run_command.s(context(), argv=["sh", "-c", "echo x > new; mv src/a src/c; rm src/b"])
    expected = [("new", "created"), ("src/a", "deleted"), ("src/b", "deleted"), ("src/c", "created")]
    assert output.result.data["changed_files"] == [f"{path} ({kind})" for path, kind in expected]
    assert [(each.path, each.kind) for each in output.changes] == expected


def test_machine_without_a_sandbox_offers_no_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sandbox_problem(monkeypatch, "it is simulated")
    message = (
        "Commands cannot be run on this machine, as their sandbox does not start: it is simulated; in a container that"
        " programs may change as a whole, use `--sandbox container`."
    )
    found = open_commands(str(tmp_path), CommandRules(("sh",)), lambda _: False)
    assert found == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def ends_of(data: bytes, most: int) -> Ends:
    kept = Ends(most=most)
    kept.take(data)
    return kept


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (Ends(), ""),
        (Ends(b"a\r\n\x1b[31m\t\xc3", b"\xa9", 11), "a\r\n\x1b[31m\té"),
        (Ends(b"a\0b\xffc", b"", 5), "ab\ufffdc"),
        (Ends(b"head", b"tail", 10), "head\n[... 2 of 10 bytes left out ...]\ntail"),
        (Ends("a€".encode()[:3], "€b".encode()[1:], 99), "a\ufffd\n[... 93 of 99 bytes left out ...]\n\ufffd\ufffdb"),
        (Ends(b"a", b"\x80" * 4, 99), "a\n[... 94 of 99 bytes left out ...]\n\ufffd\ufffd\ufffd\ufffd"),
    ],
)
def test_text_of_an_output(ends: Ends, text: str) -> None:
    assert output_text(ends) == text


def test_last_words_are_the_ends_of_what_was_said() -> None:
    long = b"x" * 5_000
    assert last_words(Ends(), Ends(b"  \n", b"", 3)) == ""
    assert last_words(Ends(b"out\n", b"", 4), Ends(b"err", b"or\n", 6)) == "out\nerror"
    assert last_words(Ends(b"head", b"\x80tail", 100), Ends()) == "\ufffdtail"
    assert last_words(Ends(long, long, 10_000)) == "x" * LONGEST_LAST_WORDS


def test_what_a_command_changed_before_it_failed_stays_on_record(bench: Bench) -> None:
    refused = ToolError(code=ToolErrorCode.IO_ERROR, message="no")
    output = changing(bench, lambda: bench.put({"a": ""}), refused)
    assert output == ToolOutput(ToolResult(ok=False, error=refused), (change("a", ChangeKind.CREATED, None, b""),))
