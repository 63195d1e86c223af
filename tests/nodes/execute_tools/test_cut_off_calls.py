"""A call that was begun before a kill: its result again, another try, or the word that nobody knows."""

from collections.abc import Sequence

import pytest

from nodes.execute_tools.cut_off_calls import DONE_BEFORE, changed_by_others, outcome_unknown, resumed
from nodes.execute_tools.environment.change_records import ChangeState, FileEffect, FileState, RecordedChange
from nodes.execute_tools.environment.journal import CallKey, RecordedCall
from nodes.execute_tools.recorded_runs import as_json
from nodes.execute_tools.registry import Tool, ToolContext, ToolOutput, tool
from nodes.execute_tools.tool_run import ToolRun
from nodes.records import ChangeKind, Effect, FileChange, ToolCall, ToolErrorCode

CALL = ToolCall(call_id="call_1", tool="save", arguments={"path": "a.py"}, raw_arguments='{"path": "a.py"}')
EDITED = FileEffect("a.py", FileState("old", 0o644), FileState("new", 0o644))
MADE = FileEffect("b.py", FileState(), FileState("made", 0o644))


def one(effect: Effect, *, one_change: bool = False) -> Tool:
    @tool(effect=effect, name="save", one_change=one_change)
    def save(context: ToolContext, path: str) -> ToolOutput:
        """Save a file."""
        raise AssertionError((context, path))

    return save


def recorded(*changes: tuple[ChangeState, Sequence[FileEffect]], outcome: str | None = None) -> RecordedCall:
    key = CallKey("thread", "task", 3, 0, "save", "write", "f" * 64)
    found = [RecordedChange(f"t{at}", 1, 3, tuple(effects), (), state) for at, (state, effects) in enumerate(changes)]
    return RecordedCall(1, key, outcome, tuple(found))


def described(effect: FileEffect) -> FileChange:
    kind = ChangeKind.EDITED if effect.before.sha256 else ChangeKind.CREATED
    return FileChange(
        path=effect.path,
        kind=kind,
        sha256_before=effect.before.sha256,
        sha256_after=effect.after.sha256,
        diff=f"diff of {effect.path}",
    )


def test_a_call_that_had_ended_gives_its_result_again() -> None:
    ended = ToolRun("call_1", "save", ToolOutput.ok(path="a.py"), attempts=1, ms=12)
    known = recorded((ChangeState.DONE, [EDITED]), outcome=as_json(ended))
    assert resumed(CALL, one(Effect.WRITE), known, described) == ended


@pytest.mark.parametrize("changes", [(), ((ChangeState.UNDONE, [EDITED]),)])
def test_a_write_of_one_change_that_is_not_done_is_made_again(
    changes: tuple[tuple[ChangeState, list[FileEffect]], ...],
) -> None:
    assert resumed(CALL, one(Effect.WRITE, one_change=True), recorded(*changes), described) is None
    ran = resumed(CALL, one(Effect.WRITE), recorded(*changes), described)  # who knows what else it does
    assert ran is not None
    assert ran.result.error == outcome_unknown("save")


def test_what_a_person_has_taken_back_is_not_done() -> None:
    ended = ToolRun("call_1", "save", ToolOutput.ok(path="a.py"), attempts=1, ms=12)
    known = recorded((ChangeState.REVERTED, [EDITED]), outcome=as_json(ended))
    assert resumed(CALL, one(Effect.WRITE, one_change=True), known, described) is None


def test_a_write_of_one_change_that_is_done_has_gone_well() -> None:
    known = recorded((ChangeState.DONE, [EDITED, MADE]))
    ran = resumed(CALL, one(Effect.WRITE, one_change=True), known, described)
    files = [{"path": "a.py", "action": "edited"}, {"path": "b.py", "action": "created"}]
    output = ToolOutput(
        ToolOutput.ok(path="a.py", note=DONE_BEFORE, files=files).result,
        (described(EDITED), described(MADE)),
        {"a.py": "new", "b.py": "made"},
    )
    assert ran == ToolRun("call_1", "save", output, attempts=1)


def test_a_write_that_may_make_more_changes_is_said_to_be_unknown_and_not_made_again() -> None:
    ran = resumed(CALL, one(Effect.WRITE), recorded((ChangeState.DONE, [EDITED])), described)
    assert ran is not None
    assert ran.result.error is not None
    assert (ran.result.error.code, ran.output.changes) == (ToolErrorCode.OUTCOME_UNKNOWN, (described(EDITED),))
    assert "had changed a.py by then" in ran.result.error.message


@pytest.mark.parametrize("effect", [Effect.EXECUTE, Effect.NETWORK])
def test_a_command_or_a_request_is_never_made_again(effect: Effect) -> None:
    ran = resumed(CALL, one(effect), recorded(), described)
    assert ran is not None
    assert ran.result.error == outcome_unknown("save")


@pytest.mark.parametrize("effect", [Effect.WRITE, Effect.EXECUTE])
def test_a_file_that_somebody_else_changed_ends_the_run(effect: Effect) -> None:
    known = recorded((ChangeState.DONE, [MADE]), (ChangeState.FOREIGN, [EDITED]))
    ran = resumed(CALL, one(effect, one_change=True), known, described)
    assert ran is not None
    assert ran.result.error == changed_by_others("save", ["a.py"])
    assert ran.result.error.fatal


def test_an_outcome_that_cannot_be_read_is_none() -> None:
    ran = resumed(CALL, one(Effect.EXECUTE), recorded(outcome="{"), described)
    assert ran is not None
    assert ran.result.error == outcome_unknown("save")
