from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

from nodes.execute_tools.environment import bubblewrap
from nodes.execute_tools.environment.commands import CommandResult, CommandRules, Commands, Ends, open_commands
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tools.run_command import run_command
from nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.tools.conftest import Bench

RESULT = CommandResult(0, Ends(), Ends(), 0.1, 30.0)


class Recorder:
    """Stands for the commands: remembers what it was asked, and answers what it was told to."""

    def __init__(self, answer: CommandResult | ToolError) -> None:
        self.answer = answer
        self.asked: list[tuple[object, ...]] = []

    def run(self, *asked: object) -> CommandResult | ToolError:
        self.asked.append(asked)
        return self.answer


def ran(
    bench: Bench, answer: CommandResult | ToolError, **arguments: Any
) -> tuple[ToolResult, list[tuple[object, ...]]]:
    recorder = Recorder(answer)
    context = ToolContext(bench.workspace, commands=cast("Commands", recorder), timeout_s=20.0)
    output = run_command.s(context, **{"argv": ["make"], **arguments})
    assert (output.changes, output.files_read, output.plan) == ((), {}, None)
    return output.result, recorder.asked


def test_what_the_other_rooms_know_of_it() -> None:
    assert (run_command.name, run_command.effect, run_command.path_fields) == ("run_command", Effect.EXECUTE, ("cwd",))
    assert (run_command.self_timed, run_command.cacheable, run_command.isolated) == (True, False, False)
    assert list(run_command.spec.parameters["properties"]) == ["argv", "cwd", "timeout_s"]
    assert run_command.spec.parameters["required"] == ["argv"]
    assert run_command.description == (
        "Run an allowed program in a sandbox without network, where `.git` is read-only."
    )


def test_without_commands_it_says_how_to_allow_them(bench: Bench) -> None:
    message = "Commands are off in this run: name the programs in `allowed_programs` (`--allow-program`)."
    assert bench.error(run_command, argv=["make"]) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def test_a_sandbox_that_cannot_start_says_why(bench: Bench) -> None:
    reason = ToolError(code=ToolErrorCode.UNAVAILABLE, message="bubblewrap is not installed")
    output: ToolOutput = run_command.s(ToolContext(bench.workspace, commands=reason), argv=["true"])
    assert output == ToolOutput.failed(reason)


@pytest.mark.parametrize(
    ("result", "data"),
    [
        (RESULT, {"exit_code": 0, "stdout": "", "stderr": ""}),
        (
            replace(RESULT, exit_code=2, stdout=Ends(b"a", b"b", 2), stderr=Ends(b"c\0", b"", 2)),
            {"exit_code": 2, "stdout": "ab", "stderr": "c"},
        ),
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
            replace(RESULT, stderr=Ends(b"a", b"", 9), made_denied=("x/.env",)),
            {
                "exit_code": 0,
                "stdout": "",
                "stderr": "a\n[... 8 of 9 bytes left out ...]\n",
                "stderr_bytes": 9,
                "made_denied": ["x/.env"],
            },
        ),
        (
            replace(RESULT, made_denied=tuple(f"{number}.env" for number in range(52))),
            {
                "exit_code": 0,
                "stdout": "",
                "stderr": "",
                "made_denied": [*(f"{number}.env" for number in range(50)), "... and 2 more"],
            },
        ),
        (
            replace(RESULT, made_denied=None),
            {
                "exit_code": 0,
                "stdout": "",
                "stderr": "",
                "made_denied": "unknown, as the workspace could not be looked through",
            },
        ),
    ],
)
def test_what_a_model_sees(bench: Bench, result: CommandResult, data: JsonMap) -> None:
    assert ran(bench, result)[0] == ToolResult(ok=True, data=data)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (replace(RESULT, limit_s=0.2, timed_out=True), "make was stopped after 0.2 s. It had printed nothing."),
        (
            replace(RESULT, stdout=Ends(b"1 passed\n", b"", 9), stderr=Ends(b"slow", b"", 4), timed_out=True),
            "make was stopped after 30 s. The end of its output:\n1 passed\nslow",
        ),
        (
            replace(RESULT, made_denied=("a/.git", ".env"), timed_out=True),
            "make was stopped after 30 s. It made what is denied: a/.git, .env. It had printed nothing.",
        ),
        (
            replace(RESULT, made_denied=None, timed_out=True),
            (
                "make was stopped after 30 s. Which denied files it made: unknown, as the workspace could not be looked"
                " through. It had printed nothing."
            ),
        ),
    ],
)
def test_a_timeout_is_a_failure_with_the_end_of_the_output(bench: Bench, result: CommandResult, message: str) -> None:
    assert ran(bench, result)[0].error == ToolError(code=ToolErrorCode.TIMEOUT, message=message)


def test_a_refusal_is_handed_on(bench: Bench) -> None:
    refused = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="no")
    assert ran(bench, refused)[0].error == refused


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({}, (["make"], ".", 20.0)),
        ({"argv": ["a", "b c"], "cwd": "src", "timeout_s": 3}, (["a", "b c"], "src", 3.0)),
        ({"timeout_s": 300}, (["make"], ".", 20.0)),
    ],
)
def test_the_shortest_of_all_times_counts(
    bench: Bench, arguments: JsonMap, asked: tuple[list[str], str, float]
) -> None:
    assert ran(bench, RESULT, **arguments)[1] == [asked]


def test_the_time_that_the_turn_has_left_counts_as_well(bench: Bench) -> None:
    recorder = Recorder(RESULT)
    context = ToolContext(bench.workspace, commands=cast("Commands", recorder), timeout_s=20.0, seconds_left=1.5)
    run_command.s(context, argv=["make"])
    assert recorder.asked == [(["make"], ".", 1.5)]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"argv": []},
        {"argv": "make test"},
        {"argv": [1]},
        {"argv": ["a"] * 1_001},
        {"argv": ["make"], "timeout_s": 0},
        {"argv": ["make"], "timeout_s": -1},
        {"argv": ["make"], "timeout_s": inf},
        {"argv": ["make"], "shell": True},
    ],
)
def test_arguments_that_are_refused(arguments: JsonMap) -> None:
    assert isinstance(run_command.validate(arguments), list)


def test_arguments_at_their_bounds() -> None:
    assert run_command.validate({"argv": ["a"] * 1_000, "timeout_s": 0.001}) == {
        "argv": ["a"] * 1_000,
        "cwd": ".",
        "timeout_s": 0.001,
    }


@pytest.fixture
def context(bench: Bench) -> Callable[..., ToolContext]:
    """The context of a run that may start `sh`, where a sandbox can be started."""

    def make(**fields: Any) -> ToolContext:
        found = open_commands(str(bench.root), CommandRules(("sh",)), lambda name: name.endswith(".env"))
        if isinstance(found, ToolError):
            pytest.skip(found.message)
        return ToolContext(bench.workspace, commands=found, **fields)

    return make


def test_a_real_program(bench: Bench, context: Callable[..., ToolContext]) -> None:
    bench.put({"src/.env": "canary"})
    output = run_command.s(context(), argv=["sh", "-c", "pwd; cat .env; exit 4"], cwd="src")
    assert output.result.data == {
        "exit_code": 4,
        "stdout": f"{bench.root.resolve()}/src\n",
        "stderr": "cat: .env: Permission denied\n",
    }


def test_a_real_timeout(context: Callable[..., ToolContext]) -> None:
    output = run_command.s(context(timeout_s=0.3), argv=["sh", "-c", "echo up; sleep 60"])
    message = "sh was stopped after 0.3 s. The end of its output:\nup"
    assert output.result.error == ToolError(code=ToolErrorCode.TIMEOUT, message=message)


def test_a_real_timeout_tells_what_denied_files_were_made(context: Callable[..., ToolContext]) -> None:
    output = run_command.s(context(timeout_s=0.3), argv=["sh", "-c", "echo x > .env; sleep 60"])
    message = "sh was stopped after 0.3 s. It made what is denied: .env. It had printed nothing."
    assert output.result.error == ToolError(code=ToolErrorCode.TIMEOUT, message=message)


def test_a_machine_without_a_sandbox_offers_no_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "sandbox_problem", lambda: "it is simulated")
    message = "Commands cannot be run on this machine, as their sandbox does not start: it is simulated."
    found = open_commands(str(tmp_path), CommandRules(("sh",)), lambda _: False)
    assert found == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
