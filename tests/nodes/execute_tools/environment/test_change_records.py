"""What the journal speaks of: words that are stored, and a recorder that keeps its promise."""

from pathlib import Path

from nodes.execute_tools.environment.change_records import ChangeRecorder, ChangeState, FileEffect, FileState
from nodes.execute_tools.environment.journal import CallRecorder, Journal


def test_the_words_for_states_are_a_storage_format() -> None:
    assert [state.value for state in ChangeState] == ["intended", "done", "undone", "reverted", "foreign"]


def test_no_file_is_the_state_of_a_path_where_nothing_is() -> None:
    assert FileState() == ("", None)
    assert FileEffect("a.py", FileState(), FileState("f" * 64, 0o644)).before == FileState()


def test_the_journals_recorder_is_one(tmp_path: Path) -> None:
    recorder: ChangeRecorder = CallRecorder(Journal(str(tmp_path)), 1)
    assert isinstance(recorder, CallRecorder)
