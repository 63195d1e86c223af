"""A step on its way through the engine: recorded before and after, and made once, whatever cut it off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graph.context import AgentContext
from graph.gateway import Gateway
from graph.run_log import RunLog
from graph.tool_step import Execution, ToolStep, calls_made, changes_something
from nodes.execute_tools.engine import Engine
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.deadline import CancellationScope
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.run_folder import workspace_folder
from nodes.execute_tools.recorded_runs import as_json
from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tool_run import ToolRun
from nodes.execute_tools.tools import default_tools
from nodes.execute_tools.trace import TraceSink
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from nodes.records import (
    CallError,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    ToolCall,
    ToolError,
    ToolErrorCode,
    Verdict,
    VerdictKind,
)
from tests.runs.playing import write_files

COUNTED: list[str] = []
SCOPES: list[CancellationScope] = []


@tool(effect=Effect.EXECUTE)
def count(context: ToolContext, name: str) -> ToolOutput:  # noqa: ARG001 - a tool has one
    """Count this call."""
    COUNTED.append(name)
    return ToolOutput.ok(calls=len(COUNTED))


@tool(effect=Effect.EXECUTE)
def count_and_give_up(context: ToolContext) -> ToolOutput:
    """Count this call, in whose middle the run is cancelled."""
    COUNTED.append("given up")
    SCOPES[-1].revoke()
    return ToolOutput.failed(ToolError(code=ToolErrorCode.TIMEOUT, message=f"too late: {context.scope}"))


READ = ("read_file", {"path": "a.py", "start_line": 1, "limit": 200})
WRITE = ("write_file", {"path": "new.py", "content": "n = 1\n"})
COUNT = ("count", {"name": "once"})


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    COUNTED.clear()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", {"a.py": "a = 1\n"})
    return str(tmp_path / "root")


@pytest.fixture
def journal(root: str) -> Journal:
    folder = workspace_folder(root)
    assert isinstance(folder, str)
    return Journal(folder)


class Step:
    """A step with these calls, all allowed; `again` is the same step after a kill."""

    def __init__(self, root: str, *calls: tuple[str, dict[str, Any]]) -> None:
        self.gateway = Gateway((*default_tools(), count, count_and_give_up), DEFAULT_GUARDRAIL_RULES, {}, ())
        self.workspace = self.gateway.workspace(AgentContext(workspace=root))
        self.calls = [
            ToolCall(call_id=f"c{place}", tool=name, arguments=arguments, raw_arguments="")
            for place, (name, arguments) in enumerate(calls)
        ]
        self.state: Any = {"items": self.calls, "verdicts": [Verdict(kind=VerdictKind.ALLOW)] * len(calls)}

    def run(self, journal: Journal | ToolError | None, task: str = "task") -> list[ToolRun]:
        registry, sink = self.gateway.registry, TraceSink("run", "1")
        log = RunLog(None, self.gateway.redactor(), "run")
        step = ToolStep(self.state, Execution("run", task, 1), Engine(registry, sink).run_sync, registry, log, journal)
        SCOPES.append(CancellationScope())
        return [step.run(call, ToolContext(self.workspace, scope=SCOPES[-1])) for call in self.calls]


def error_of(run: ToolRun) -> ToolError:
    assert run.result.error is not None
    return run.result.error


def test_each_call_is_recorded_with_what_came_of_it(root: str, journal: Journal) -> None:
    runs = Step(root, READ, WRITE, COUNT).run(journal)
    recorded = journal.calls_of_step("run", 1)
    assert [call.outcome for call in recorded.values()] == [as_json(run) for run in runs]
    assert [effect.path for call in recorded.values() for change in call.changes for effect in change.effects] == [
        "new.py"
    ]


def test_a_call_that_a_person_has_edited_is_not_what_its_text_says(root: str) -> None:
    Path(root, "b.py").write_text("b = 2\n")
    step = Step(root, READ, ("read_file", {"path": "b.py", "start_line": 1, "limit": 200}))
    step.calls[:] = [call.model_copy(update={"raw_arguments": '{"path": "a.py"}'}) for call in step.calls]
    step.state["verdicts"][1] = Verdict(kind=VerdictKind.ALLOW, edited=("path",))
    assert [run.result.data["path"] for run in step.run(None)] == ["a.py", "b.py"]


def test_a_step_that_is_run_again_gives_the_same_results_and_does_nothing_twice(root: str, journal: Journal) -> None:
    step = Step(root, READ, WRITE, COUNT)
    first = step.run(journal)
    Path(root, "a.py").write_text("a = 'somebody else'\n")
    assert step.run(journal) == first
    assert COUNTED == ["once"]


def test_time_travel_is_another_execution_so_everything_is_done_again(root: str, journal: Journal) -> None:
    step = Step(root, COUNT)
    step.run(journal)
    (again,) = step.run(journal, task="other")
    assert (COUNTED, again.result.data) == (["once", "once"], {"calls": 2})


def test_other_arguments_in_its_place_are_another_call(root: str, journal: Journal) -> None:
    Step(root, COUNT).run(journal)
    Step(root, ("count", {"name": "other"})).run(journal)
    assert COUNTED == ["once", "other"]


def test_a_command_that_was_cut_off_is_not_run_again(
    root: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(root, COUNT)
    cut(monkeypatch, "end", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        step.run(journal)
    monkeypatch.undo()
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(Path(root).parent / "data"))
    assert error_of(step.run(journal)[0]).code is ToolErrorCode.OUTCOME_UNKNOWN
    assert COUNTED == ["once"]


def test_a_write_that_was_cut_off_after_its_change_has_gone_well(
    root: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(root, WRITE)
    cut(monkeypatch, "end", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        step.run(journal)
    monkeypatch.undo()
    before = Path(root, "new.py").stat().st_ino
    (again,) = step.run(journal)
    assert (again.result.ok, again.result.data["path"]) == (True, "new.py")
    assert [change.path for change in again.output.changes] == ["new.py"]
    assert Path(root, "new.py").stat().st_ino == before


def test_a_write_that_was_cut_off_before_its_change_is_made_again(
    root: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(root, WRITE)
    with monkeypatch.context() as patch:
        cut(patch, "intend", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            step.run(journal)
    run = Execution("run", "", 1)
    assert calls_made(journal, step.gateway.registry, step.workspace, run, step.calls) == {}
    (again,) = step.run(journal)
    assert (again.result.ok, Path(root, "new.py").read_text()) == (True, "n = 1\n")
    assert calls_made(journal, step.gateway.registry, step.workspace, run, step.calls) == {0: again}


def test_where_the_end_cannot_be_recorded_the_result_stands(
    root: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, "end", lambda: StoreError("the disk is full"))
    assert [run.result.ok for run in Step(root, WRITE, COUNT).run(journal)] == [True, True]


def test_a_call_whose_run_was_given_up_is_not_recorded_as_failed(root: str, journal: Journal) -> None:
    """What it has done is decided by the files, or unknown: a result that nobody heard is not how it ended."""
    step = Step(root, ("count_and_give_up", {}))
    step.run(journal)
    recorded = journal.calls_of_step("run", 1)
    assert [call.outcome for call in recorded.values()] == [None]
    assert error_of(step.run(journal)[0]).code is ToolErrorCode.OUTCOME_UNKNOWN
    assert COUNTED == ["given up"]


@pytest.mark.parametrize("method", ["find", "begin"])
def test_where_no_record_can_be_made_nothing_with_an_effect_is_run(
    root: str, journal: Journal, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    cut(monkeypatch, method, lambda: StoreError("the disk is full"))
    read, write, counted = Step(root, READ, WRITE, COUNT).run(journal)
    assert read.result.ok
    assert [error_of(run).fatal for run in (write, counted)] == [True, True]
    assert "the disk is full" in error_of(write).message
    assert (COUNTED, Path(root, "new.py").exists()) == ([], False)


def test_without_a_journal_what_has_no_effect_runs(root: str) -> None:
    why = ToolError(code=ToolErrorCode.UNAVAILABLE, message="Another run is at work in this workspace.")
    read, write = Step(root, READ, WRITE).run(why)
    assert read.result.ok
    assert (error_of(write).code, error_of(write).fatal) == (ToolErrorCode.UNAVAILABLE, False)
    assert why.message in error_of(write).message


def test_a_step_without_an_effect_needs_no_journal(root: str) -> None:
    assert [run.result.ok for run in Step(root, READ).run(None)] == [True]


@pytest.mark.parametrize(
    ("calls", "kind", "expected"),
    [
        ((READ,), VerdictKind.ALLOW, False),
        ((READ, WRITE), VerdictKind.ALLOW, True),
        ((COUNT,), VerdictKind.ALLOW, True),
        ((("http_get", {"url": "http://x"}),), VerdictKind.ALLOW, True),
        ((WRITE,), VerdictKind.DENY, False),
        ((("no_such_tool", {}),), VerdictKind.ALLOW, False),
    ],
)
def test_only_calls_that_may_run_and_have_an_effect_change_something(
    root: str, calls: tuple[tuple[str, dict[str, Any]], ...], kind: VerdictKind, expected: bool
) -> None:
    step = Step(root, *calls)
    state: Any = {"items": step.calls, "verdicts": [Verdict(kind=kind)] * len(calls)}
    assert changes_something(state, step.gateway.registry) is expected


def test_what_a_cut_off_step_came_to_is_known_by_places(root: str, journal: Journal) -> None:
    step = Step(root, READ, WRITE, COUNT, COUNT)
    first = step.run(journal)[:2]
    error = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 0, "{", "cut")
    items: list[ToolCall | CallError] = [
        *step.calls[:2],
        CallError(call_id="c2", tool="count", raw_arguments="{", error=error),
    ]
    found = calls_made(journal, step.gateway.registry, step.workspace, Execution("run", "", 1), items)
    assert found == dict(enumerate(first))
    assert calls_made(journal, step.gateway.registry, step.workspace, Execution("run", "", 2), items) == {}


def cut(patch: pytest.MonkeyPatch, method: str, error: Callable[[], BaseException]) -> None:
    def fail(*_: object) -> None:
        raise error()

    patch.setattr(Journal, method, fail)
