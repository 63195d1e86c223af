"""A call that was started before a kill: its recorded result, another try, or "outcome unknown"."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.nodes.execute_tools.engine import Engine
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.run_call import (
    DONE_BEFORE,
    Execution,
    StepResources,
    recorded_outcome,
    recorded_outcomes,
)
from mendgraph.nodes.execute_tools.step import changes_something, run_step
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.trace import RunLog, TraceSink
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ChangeKind,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    ToolCall,
    ToolError,
    ToolErrorCode,
    Verdict,
    VerdictKind,
)
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState, RecordedChange
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal, RecordedCall
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import workspace_folder
from tests.workspace_files import write_files

CALL = ToolCall(call_id="call_1", tool="save", arguments={"path": "a.py"}, raw_arguments='{"path": "a.py"}')
EDITED = FileEffect("a.py", FileState("old", 0o644), FileState("new", 0o644))
MADE = FileEffect("b.py", FileState(), FileState("made", 0o644))


def saving_tool(effect: Effect, *, one_change: bool = False) -> Tool:
    @tool(effect=effect, name="save", one_change=one_change)
    def save(context: ToolContext, path: str) -> ToolOutput:
        """Save a file."""
        raise AssertionError((context, path))

    return save


def recorded(*changes: tuple[ChangeState, Sequence[FileEffect]], outcome: str | None = None) -> RecordedCall:
    key = CallKey("thread", "task", 3, 0, "save", "write", "f" * 64)
    records = [RecordedChange(f"t{at}", 1, 3, tuple(effects), (), state) for at, (state, effects) in enumerate(changes)]
    return RecordedCall(1, key, outcome, tuple(records))


def described(effect: FileEffect) -> FileChange:
    kind = ChangeKind.EDITED if effect.before.sha256 else ChangeKind.CREATED
    return FileChange(
        path=effect.path,
        kind=kind,
        sha256_before=effect.before.sha256,
        sha256_after=effect.after.sha256,
        diff=f"diff of {effect.path}",
    )


@pytest.mark.parametrize("changes", [(), ((ChangeState.UNDONE, [EDITED]),)])
def test_write_with_one_change_not_done_runs_again(
    changes: tuple[tuple[ChangeState, list[FileEffect]], ...],
) -> None:
    assert recorded_outcome(CALL, saving_tool(Effect.WRITE, one_change=True), recorded(*changes), described) is None
    outcome = recorded_outcome(
        CALL, saving_tool(Effect.WRITE), recorded(*changes), described
    )  # who knows what else it does
    assert outcome is not None
    assert error_of(outcome.as_record()).code is ToolErrorCode.OUTCOME_UNKNOWN


def test_write_with_one_change_done_has_succeeded() -> None:
    record = recorded((ChangeState.DONE, [EDITED, MADE]))
    outcome = recorded_outcome(CALL, saving_tool(Effect.WRITE, one_change=True), record, described)
    files = [{"path": "a.py", "action": "edited"}, {"path": "b.py", "action": "created"}]
    output = ToolOutput(
        ToolOutput.ok(path="a.py", note=DONE_BEFORE, files=files).result,
        (described(EDITED), described(MADE)),
        {"a.py": "new", "b.py": "made"},
    )
    assert outcome == ToolOutcome("call_1", "save", output, attempts=1)


def test_recorded_outcome_of_a_reverted_change_is_ignored() -> None:
    outcome = TypeAdapter(ToolOutcome).dump_json(ToolOutcome("", "", ToolOutput.ok(n=1), attempts=1)).decode()
    save = saving_tool(Effect.WRITE, one_change=True)

    restored = recorded_outcome(CALL, save, recorded((ChangeState.DONE, [EDITED]), outcome=outcome), described)
    assert restored == ToolOutcome("call_1", "save", ToolOutput.ok(n=1), attempts=1)
    assert recorded_outcome(CALL, save, recorded((ChangeState.REVERTED, [EDITED]), outcome=outcome), described) is None


def test_write_that_may_make_more_changes_is_unknown_and_not_repeated() -> None:
    outcome = recorded_outcome(CALL, saving_tool(Effect.WRITE), recorded((ChangeState.DONE, [EDITED])), described)
    assert outcome is not None
    assert outcome.result.error is not None
    assert (outcome.result.error.code, outcome.output.changes) == (ToolErrorCode.OUTCOME_UNKNOWN, (described(EDITED),))
    assert "had changed a.py by then" in outcome.result.error.message


@pytest.mark.parametrize("effect", [Effect.WRITE, Effect.EXECUTE])
def test_file_changed_by_somebody_else_ends_the_run(effect: Effect) -> None:
    record = recorded((ChangeState.DONE, [MADE]), (ChangeState.FOREIGN, [EDITED]))
    outcome = recorded_outcome(CALL, saving_tool(effect, one_change=True), record, described)
    assert outcome is not None
    error = error_of(outcome.as_record())
    assert (error.code, error.fatal, "changed a.py" in error.message) == (ToolErrorCode.CONFLICT, True, True)


COUNTED: list[str] = []
LEASES: list[CancellationScope] = []


@tool(effect=Effect.EXECUTE)
def count(context: ToolContext, name: str) -> ToolOutput:  # noqa: ARG001 - a tool has one
    """Count this call."""
    COUNTED.append(name)
    return ToolOutput.ok(calls=len(COUNTED))


@tool(effect=Effect.EXECUTE)
def count_and_give_up(context: ToolContext) -> ToolOutput:
    """Count this call and cancel the run during it."""
    COUNTED.append("given up")
    LEASES[-1].revoke()
    return ToolOutput.failed(ToolError(code=ToolErrorCode.TIMEOUT, message=f"too late: {context.scope}"))


READ = ("read_file", {"path": "a.py", "start_line": 1, "limit": 200})
WRITE = ("write_file", {"path": "new.py", "content": "n = 1\n"})
COUNT = ("count", {"name": "once"})


@tool(effect=Effect.NETWORK)
def order(name: str) -> str:
    """Order something over the network."""
    COUNTED.append(name)
    return f"{name} is on its way"


@pytest.fixture(autouse=True)
def clear_counts() -> None:
    COUNTED.clear()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", {"a.py": "a = 1\n"})
    return str(tmp_path / "root")


@pytest.fixture
def folder(root: str) -> str:
    path = workspace_folder(root)
    assert isinstance(path, str)
    return path


@pytest.fixture
def journal(folder: str) -> Journal:
    return Journal(folder)


def failing_journal(folder: str, method: str, error: Callable[[], BaseException], word: str = "") -> Journal:
    """A journal whose `method` raises `error`; with a `word` only if an argument contains it."""

    class Cut(Journal):
        pass

    def fail(self: Journal, *arguments: Any, **named: Any) -> Any:
        if word and not any(word in str(argument) for argument in arguments):
            return getattr(Journal, method)(self, *arguments, **named)
        raise error()

    setattr(Cut, method, fail)
    return Cut(folder)


class Step:
    """A step with these calls, all allowed; `again` is the same step after a kill."""

    def __init__(self, root: str, *calls: tuple[str, dict[str, Any]]) -> None:
        self.tools = MachineTools({"tools": (*default_tools(), count, count_and_give_up, order)})
        self.workspace = TurnTools(self.tools, AgentContext(workspace=root)).workspace()
        self.calls = [
            ToolCall(call_id=f"c{place}", tool=name, arguments=arguments, raw_arguments="")
            for place, (name, arguments) in enumerate(calls)
        ]
        self.verdicts = [Verdict(kind=VerdictKind.ALLOW)] * len(calls)

    def run(self, journal: Journal | ToolError | None, task: str = "task") -> list[CallResult]:
        registry, sink = self.tools.registry, TraceSink("run", "1")
        LEASES.append(CancellationScope())
        using = StepResources(
            Engine(registry, sink).run_sync,
            registry,
            ToolContext(self.workspace, scope=LEASES[-1]),
            RunLog(None, self.tools.redactor(), "run"),
            Execution("run", task, 1),
            journal,
            beside=lambda call: call.tool == order.name,
        )
        return run_step(self.calls, self.verdicts, [None] * len(self.calls), using).results


def error_of(run: CallResult) -> ToolError:
    assert run.result.error is not None
    return run.result.error


def test_calls_are_recorded_with_their_outcomes(root: str, journal: Journal) -> None:
    runs = Step(root, READ, WRITE, COUNT).run(journal)
    recorded = journal.calls_of_step("run", 1)
    step = Step(root, READ, WRITE, COUNT)
    outcomes = recorded_outcomes(journal, step.tools.registry, step.workspace, Execution("run", "", 1), step.calls)
    assert [outcome.as_record() for outcome in outcomes.values()] == runs
    assert [effect.path for call in recorded.values() for change in call.changes for effect in change.effects] == [
        "new.py"
    ]


def test_call_edited_by_a_person_uses_the_edited_arguments(root: str) -> None:
    Path(root, "b.py").write_text("b = 2\n")
    step = Step(root, READ, ("read_file", {"path": "b.py", "start_line": 1, "limit": 200}))
    step.calls[:] = [call.model_copy(update={"raw_arguments": '{"path": "a.py"}'}) for call in step.calls]
    step.verdicts[1] = Verdict(kind=VerdictKind.ALLOW, edited=("path",))
    assert [run.result.data["path"] for run in step.run(None)] == ["a.py", "b.py"]


def test_repeated_step_gives_the_same_results_without_repeating_effects(root: str, journal: Journal) -> None:
    step = Step(root, READ, WRITE, COUNT)
    first = step.run(journal)
    Path(root, "a.py").write_text("a = 'somebody else'\n")
    assert step.run(journal) == first
    assert COUNTED == ["once"]


def test_interrupted_command_is_not_run_again(root: str, folder: str, journal: Journal) -> None:
    step = Step(root, COUNT)
    with pytest.raises(KeyboardInterrupt):
        step.run(failing_journal(folder, "end", KeyboardInterrupt))
    assert error_of(step.run(journal)[0]).code is ToolErrorCode.OUTCOME_UNKNOWN
    assert COUNTED == ["once"]


def test_only_the_interrupted_call_of_a_parallel_step_is_unknown(root: str, folder: str, journal: Journal) -> None:
    step = Step(root, *[("order", {"name": name}) for name in "abc"])
    with pytest.raises(KeyboardInterrupt):
        step.run(failing_journal(folder, "end", KeyboardInterrupt, "b is on its way"))
    first, cut_off, last = step.run(journal)
    assert error_of(cut_off).code is ToolErrorCode.OUTCOME_UNKNOWN
    assert [result.result.data["value"] for result in (first, last)] == ["a is on its way", "c is on its way"]
    assert sorted(COUNTED) == ["a", "b", "c"]


def test_write_interrupted_after_its_change_has_succeeded(root: str, folder: str, journal: Journal) -> None:
    step = Step(root, WRITE)
    with pytest.raises(KeyboardInterrupt):
        step.run(failing_journal(folder, "end", KeyboardInterrupt))
    before = Path(root, "new.py").stat().st_ino
    (again,) = step.run(journal)
    assert (again.result.ok, again.result.data["path"]) == (True, "new.py")
    assert [change.diff for change in again.changes] == ["--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+n = 1\n"]
    assert Path(root, "new.py").stat().st_ino == before


def test_write_interrupted_before_its_change_runs_again(root: str, folder: str, journal: Journal) -> None:
    step, run = Step(root, WRITE), Execution("run", "", 1)
    with pytest.raises(KeyboardInterrupt):
        step.run(failing_journal(folder, "intend", KeyboardInterrupt))
    assert recorded_outcomes(journal, step.tools.registry, step.workspace, run, step.calls) == {}
    (again,) = step.run(journal)
    assert (again.result.ok, Path(root, "new.py").read_text()) == (True, "n = 1\n")
    (outcome,) = recorded_outcomes(journal, step.tools.registry, step.workspace, run, step.calls).values()
    assert outcome.as_record() == again


def test_outcome_of_a_cancelled_call_is_not_recorded(root: str, journal: Journal) -> None:
    """The files decide what it has done, or its outcome is unknown: an unreported result does not count."""
    step = Step(root, ("count_and_give_up", {}))
    step.run(journal)
    assert [call.outcome for call in journal.calls_of_step("run", 1).values()] == [None]
    assert error_of(step.run(journal)[0]).code is ToolErrorCode.OUTCOME_UNKNOWN
    assert COUNTED == ["given up"]


@pytest.mark.parametrize("method", ["find", "begin"])
def test_call_with_an_effect_does_not_run_if_it_cannot_be_recorded(root: str, folder: str, method: str) -> None:
    broken = failing_journal(folder, method, lambda: StoreError("the disk is full"))
    read, write, counted = Step(root, READ, WRITE, COUNT).run(broken)
    assert read.result.ok
    assert [error_of(run).fatal for run in (write, counted)] == [True, True]
    assert "the disk is full" in error_of(write).message
    assert (COUNTED, Path(root, "new.py").exists()) == ([], False)


def test_call_without_an_effect_runs_without_a_journal(root: str) -> None:
    why = ToolError(code=ToolErrorCode.UNAVAILABLE, message="Another run is working in this workspace.")
    read, write = Step(root, READ, WRITE).run(why)
    assert read.result.ok
    assert (error_of(write).code, error_of(write).fatal) == (ToolErrorCode.UNAVAILABLE, False)
    assert why.message in error_of(write).message


def test_only_allowed_calls_with_an_effect_count_as_changes(root: str) -> None:
    get, unknown = ("http_get", {"url": "http://x"}), ("no_such_tool", {"x": "y"})
    for calls, kind, expected in (
        ([READ], VerdictKind.ALLOW, False),
        ([READ, WRITE], VerdictKind.ALLOW, True),
        ([COUNT], VerdictKind.ALLOW, True),
        ([get], VerdictKind.ALLOW, True),
        ([WRITE], VerdictKind.DENY, False),
        ([unknown], VerdictKind.ALLOW, False),
    ):
        step = Step(root, *calls)
        assert changes_something(step.calls, [Verdict(kind=kind)] * len(calls), step.tools.registry) is expected


def test_outcomes_of_an_interrupted_step_are_matched_by_place(root: str, journal: Journal) -> None:
    step, run = Step(root, READ, WRITE, COUNT, COUNT), Execution("run", "", 1)
    first = step.run(journal)[:2]
    error = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 0, "{", "cut")
    items: list[ToolCall | CallError] = [
        *step.calls[:2],
        CallError(call_id="c2", tool="count", raw_arguments="{", error=error),
    ]
    outcomes = recorded_outcomes(journal, step.tools.registry, step.workspace, run, items)
    assert {place: outcome.as_record() for place, outcome in outcomes.items()} == dict(enumerate(first))
    items[0] = step.calls[0].model_copy(update={"arguments": {"path": "other.py"}})
    assert list(recorded_outcomes(journal, step.tools.registry, step.workspace, run, items)) == [1]
    assert recorded_outcomes(journal, step.tools.registry, step.workspace, Execution("run", "", 2), items) == {}
