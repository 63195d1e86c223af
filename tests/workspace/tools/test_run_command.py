from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mendgraph.nodes.execute_tools.commands.command_outputs import LONGEST_LAST_WORDS, last_words, output_text
from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands, open_commands
from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.run_command import job_kill, job_output, run_command, run_shell
from mendgraph.nodes.execute_tools.tools.write_file import write_file
from mendgraph.nodes.records import ChangeKind, FileChange, JsonMap, ToolError, ToolErrorCode, ToolResult
from mendgraph.nodes.workspace.processes.processes import CapturedOutput
from tests.row_tables import rows
from tests.sandboxes import set_sandbox_problem
from tests.workspace.conftest import Bench
from tests.workspace.files.layout import sha
from tests.workspace.files.recorder_doubles import BrokenJournal, MemoryJournal

RESULT = CommandResult(0, CapturedOutput(), CapturedOutput(), 0.1, 30.0)
QUIET: JsonMap = {"exit_code": 0, "stdout": "", "stderr": ""}


class Recorder:
    """Stands for the commands: records calls, and does and returns what the test says."""

    def __init__(self, answer: CommandResult | ToolError, do: Callable[[], object] = lambda: None) -> None:
        self.answer, self.do = answer, do
        self.asked: list[tuple[object, ...]] = []

    def run(self, *arguments: object) -> CommandResult | ToolError:
        self.asked.append(arguments)
        self.do()
        return self.answer


def run(
    bench: Bench,
    do: Callable[[], object] = lambda: None,
    answer: CommandResult | ToolError = RESULT,
    journal: MemoryJournal | None = None,
    timeout_s: float = 20.0,
) -> ToolOutput:
    """The result of `make`, which does this."""
    commands = cast("Commands", Recorder(answer, do))
    context = ToolContext(bench.workspace.recorded(journal), commands=commands, timeout_s=timeout_s)
    output: ToolOutput = run_command.s(context, argv=["make"])
    return output


def timeout(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.TIMEOUT, message=f"make was stopped after 30 s. {message}")


def test_error_says_why_commands_are_unavailable(bench: Bench) -> None:
    message = "Commands are off in this run: name the programs in `allowed_programs` (`--allow-program`)."
    assert bench.error(run_command, argv=["make"]) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
    reason = ToolError(code=ToolErrorCode.UNAVAILABLE, message="bubblewrap is not installed")
    output = run_command.s(ToolContext(bench.workspace, commands=reason), argv=["true"])
    assert output == ToolOutput.failed(reason)


def test_command_that_may_not_run_in_the_background_is_not_started(bench: Bench) -> None:
    commands = Recorder(RESULT)
    context = ToolContext(bench.workspace, commands=cast("Commands", commands))
    landlock = ToolError(code=ToolErrorCode.UNAVAILABLE, message="only in bubblewrap")
    off = ToolError(
        code=ToolErrorCode.UNAVAILABLE,
        message="Commands cannot run in the background in this run: set `jobs` (`--jobs`).",
    )
    for tool, arguments in ((run_command, {"argv": ["make"]}), (run_shell, {"command": "make && make"})):
        assert tool.s(context, **arguments, background=True) == ToolOutput.failed(off)
        assert tool.s(replace(context, jobs=landlock), **arguments, background=True) == ToolOutput.failed(landlock)

    assert commands.asked == []
    assert run_command.s(replace(context, jobs=landlock), argv=["make"]).result.ok
    assert job_output.s(context, job="1.1") == ToolOutput.failed(off)
    assert job_kill.s(replace(context, jobs=landlock), job="1.1") == ToolOutput.failed(landlock)


OUT = "a\n[... 97 of 99 bytes left out ...]\nb"
ERR = "a\n[... 8 of 9 bytes left out ...]\n"


@rows(
    (RESULT, QUIET),
    (
        replace(RESULT, exit_code=139, stdout=CapturedOutput(b"a", b"b", 99)),
        {**QUIET, "exit_code": 139, "stdout": OUT, "stdout_bytes": 99, "signal": 11},
    ),
    (replace(RESULT, stderr=CapturedOutput(b"a", b"", 9)), {**QUIET, "stderr": ERR, "stderr_bytes": 9}),
)
def test_result_has_exit_code_and_ends_of_the_output(result: CommandResult, data: JsonMap, bench: Bench) -> None:
    assert run(bench, answer=result) == ToolOutput(ToolResult(ok=True, data=data))


@rows(
    (b"1 passed\n", b"slow", "The end of its output:\n1 passed\nslow"),
    (b"", b"", "It had printed nothing."),
)
def test_timeout_is_a_failure_with_the_end_of_the_output(
    stdout: bytes, stderr: bytes, message: str, bench: Bench
) -> None:
    ends = CapturedOutput(stdout, b"", len(stdout)), CapturedOutput(stderr, b"", len(stderr))
    late = replace(RESULT, stdout=ends[0], stderr=ends[1], timed_out=True)
    assert run(bench, answer=late) == ToolOutput.failed(timeout(message))


@rows({}, {"argv": []}, {"argv": ["make"], "timeout_s": 0}, {"argv": ["make"], "shell": True})
def test_invalid_arguments_are_refused(wrong: JsonMap) -> None:
    assert isinstance(run_command.validate(wrong), list)


@rows((None, 20.0, 30.0, 20.0), (5.0, 20.0, 30.0, 5.0), (5.0, 20.0, 2.5, 2.5))
def test_command_timeout_is_the_least_of_argument_call_and_turn(
    wish: float | None, call: float, turn: float, seconds: float, bench: Bench
) -> None:
    recorder = Recorder(RESULT)
    context = ToolContext(bench.workspace, commands=cast("Commands", recorder), timeout_s=call, seconds_left=turn)
    run_command.s(context, argv=["make"], timeout_s=wish)
    [(argv, cwd, timeout_s)] = recorder.asked
    assert (argv, cwd, timeout_s) == (["make"], ".", pytest.approx(seconds, abs=0.5))


# --- What a command changed


def change(path: str, kind: ChangeKind, before: bytes | None, after: bytes | None, diff: str = "") -> FileChange:
    was, now = ("" if data is None else sha(data) for data in (before, after))
    return FileChange(path=path, kind=kind, sha256_before=was, sha256_after=now, diff=diff)


def test_changes_are_reported_to_the_model_and_the_run(bench: Bench) -> None:
    bench.put({"a.py": "a = 1\n", "src/b.py": "", "image": b"\0", "same": "x"})

    def do() -> None:
        bench.put({"a.py": "a = 2\n", "new/c.py": "c\n", "image": b"\0\0", "same": "x"})
        (bench.root / "src" / "b.py").unlink()
        (bench.root / "a.py").chmod(0o755)

    output = run(bench, do)
    names = ["a.py (edited)", "image (edited)", "new/c.py (created)", "src/b.py (deleted)"]
    assert output.result.data == {**QUIET, "changed_files": names}
    assert output.changes == (
        change("a.py", ChangeKind.EDITED, b"a = 1\n", b"a = 2\n", unified_diff("a.py", "a = 1\n", "a = 2\n")),
        change("image", ChangeKind.EDITED, b"\0", b"\0\0"),
        change("new/c.py", ChangeKind.CREATED, None, b"c\n", unified_diff("new/c.py", None, "c\n")),
        change("src/b.py", ChangeKind.DELETED, b"", None),
    )


def test_denied_new_file_is_reported_without_its_content(bench: Bench) -> None:
    output = run(bench, lambda: bench.put({"a/.env": "x"}))
    assert output.result.data["changed_files"] == ["a/.env (created)"]
    [created] = output.changes
    assert (created.path, created.kind, created.sha256_after, created.diff) == ("a/.env", ChangeKind.CREATED, "?", "")


def test_file_rewritten_by_a_command_must_be_read_again(bench: Bench) -> None:
    bench.put({"a.py": "a=1\n"})
    bench.run(read_file, path="a.py")
    output = run(bench, lambda: bench.put({"a.py": "a = 1\n"}))
    bench.files_read.update(output.files_read)
    assert bench.error(write_file, path="a.py", content="a = 2\n").code is ToolErrorCode.CONFLICT


def test_unwatched_workspace_is_reported(bench: Bench) -> None:
    bench.put({"a": ""})
    reason = "the workspace could not be looked through in time"
    assert run(bench, timeout_s=1e-6) == ToolOutput.ok(**QUIET, changed_files=f"not tracked: {reason}")
    late = run(bench, answer=replace(RESULT, timed_out=True), timeout_s=1e-6)
    message = f"What it changed was not tracked: {reason}. It had printed nothing."
    assert late == ToolOutput.failed(timeout(message))


def test_timeout_reports_changed_files(bench: Bench) -> None:
    answer = replace(RESULT, timed_out=True, stderr=CapturedOutput(b"slow", b"", 4))
    output = run(bench, lambda: bench.put(dict.fromkeys("abcdefghijklmnopqrstuv", "")), answer)
    names = ", ".join(f"{name} (created)" for name in "abcdefghijklmnopqrst")
    assert output.result.error == timeout(f"It changed: {names}, ... and 2 more. The end of its output:\nslow")
    assert len(output.changes) == 22


def test_changes_that_cannot_be_recorded_end_the_run(bench: Bench) -> None:
    output = run(bench, lambda: bench.put({"a": "1"}), journal=BrokenJournal("intend"))
    message = "make has run, but what it changed could not be recorded, so it cannot be undone. The disk is full."
    assert output.result.error == ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True)
    assert [change.path for change in output.changes] == ["a"]


def test_change_of_a_failed_command_is_recorded(bench: Bench) -> None:
    refused = ToolError(code=ToolErrorCode.IO_ERROR, message="no")
    output = run(bench, lambda: bench.put({"a": ""}), refused)
    assert output == ToolOutput(ToolResult(ok=False, error=refused), (change("a", ChangeKind.CREATED, None, b""),))


def test_changes_of_a_real_program_are_reported(bench: Bench) -> None:
    commands = open_commands(str(bench.root), CommandRules(("sh",)), lambda name: name.endswith(".env"))
    if isinstance(commands, ToolError):
        pytest.skip(commands.message)
    bench.put({"src/a": "1", "src/b": "2"})
    context: Any = ToolContext(bench.workspace, commands=commands)
    output = run_command.s(context, argv=["sh", "-c", "echo x > new; mv src/a src/c; rm src/b"])
    expected = [("new", "created"), ("src/a", "deleted"), ("src/b", "deleted"), ("src/c", "created")]
    assert output.result.data["changed_files"] == [f"{path} ({kind})" for path, kind in expected]
    assert [(change.path, change.kind) for change in output.changes] == expected


def test_machine_without_a_sandbox_offers_no_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sandbox_problem(monkeypatch, "it is simulated")
    outcome = open_commands(str(tmp_path), CommandRules(("sh",)), lambda _: False)
    assert isinstance(outcome, ToolError)
    assert outcome.code is ToolErrorCode.UNAVAILABLE
    assert "because no sandbox starts: it is simulated; in a container" in outcome.message


TEXTS = [
    (CapturedOutput(), ""),
    (CapturedOutput(b"a\r\n\x1b[31m\t\xc3", b"\xa9", 11), "a\r\n\x1b[31m\té"),
    (CapturedOutput(b"a\0b\xffc", b"", 5), "ab\ufffdc"),
    (CapturedOutput(b"head", b"tail", 10), "head\n[... 2 of 10 bytes left out ...]\ntail"),
    (
        CapturedOutput("a€".encode()[:3], "€b".encode()[1:], 99),
        "a\ufffd\n[... 93 of 99 bytes left out ...]\n\ufffd\ufffdb",
    ),
    (CapturedOutput(b"a", b"\x80" * 4, 99), "a\n[... 94 of 99 bytes left out ...]\n\ufffd\ufffd\ufffd\ufffd"),
]


def test_shortened_output_says_what_is_left_out() -> None:
    assert [output_text(ends) for ends, _ in TEXTS] == [text for _, text in TEXTS]


def test_last_words_are_the_ends_of_both_outputs() -> None:
    long = b"x" * 5_000
    assert last_words(CapturedOutput(), CapturedOutput(b"  \n", b"", 3)) == ""
    assert last_words(CapturedOutput(b"out\n", b"", 4), CapturedOutput(b"err", b"or\n", 6)) == "out\nerror"
    assert last_words(CapturedOutput(b"head", b"\x80tail", 100), CapturedOutput()) == "\ufffdtail"
    assert last_words(CapturedOutput(long, long, 10_000)) == "x" * LONGEST_LAST_WORDS
