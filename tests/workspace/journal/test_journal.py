import os
import pickle
import re
import zlib
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from mendgraph.nodes.workspace.files.change_records import (
    UNKNOWN_SHA256,
    ChangeState,
    FileEffect,
    FileState,
    RecordedChange,
)
from mendgraph.nodes.workspace.journal.journal import (
    UNDO_EFFECT,
    CallKey,
    Journal,
    RecordedCall,
    call_fingerprint,
    idempotency_key,
    parent_of,
)
from mendgraph.nodes.workspace.store.database import (
    Database,
    StoreError,
    UnreadableValueError,
    open_database,
    transaction,
    uses_postgres,
)
from tests.broken_stores import make_unusable
from tests.doubles.system_calls import replaced
from tests.workspace.files.layout import sha

KEY = CallKey("run", "task", 3, 0, "write_file", "write", "hash of arguments")
NO_FILE = FileState()
EFFECT = FileEffect("src/a.py", FileState(sha(b"old"), 0o644), FileState(sha(b"new"), 0o600))


pytestmark = pytest.mark.usefixtures("no_open_handles")


@pytest.fixture
def journal(any_store: str, tmp_path: Path) -> Journal:  # noqa: ARG001 - each test runs with both
    return Journal(str(tmp_path))


def recorded(
    journal: Journal, token: str, state: ChangeState = ChangeState.DONE, key: CallKey = KEY, *effects: FileEffect
) -> RecordedChange:
    """A change of a separate call, as it should be found again."""
    call = journal.begin(key)
    journal.intend(call, token, effects or (EFFECT,), {}, ())
    journal.settle(token, state)
    return RecordedChange(token, call, key.step, effects or (EFFECT,), (), state)


# --- Calls


def test_call_is_found_with_its_outcome_and_a_repeated_call_is_separate(journal: Journal) -> None:
    call = journal.begin(KEY)
    assert journal.find("run", "task", 0) == RecordedCall(call, KEY, None, ())
    journal.end(call, '{"ok": true}')
    assert journal.find("run", "task", 0) == RecordedCall(call, KEY, '{"ok": true}', ())

    first = recorded(journal, "first")
    second = journal.begin(KEY._replace(arguments_sha256="other"))
    assert len({call, first.call, second}) == 3
    assert journal.find("run", "task", 0) == RecordedCall(second, KEY._replace(arguments_sha256="other"), None, ())
    assert journal.changes_of("run") == [first]


def test_calls_of_a_step_are_those_of_its_latest_execution(journal: Journal) -> None:
    for key in (KEY, KEY._replace(place=1), KEY._replace(step=4, execution="next")):
        journal.begin(key)
    latest = [KEY._replace(execution="again", place=place) for place in (0, 2)]
    journal.begin(latest[1])  # an earlier try, which counts no more
    calls = [journal.begin(key) for key in latest]
    journal.begin(KEY._replace(execution="undo", effect=UNDO_EFFECT, place=0))
    expected = {key.place: RecordedCall(call, key, None, ()) for call, key in zip(calls, latest, strict=True)}
    assert journal.calls_of_step("run", 3) == expected
    assert journal.calls_of_step("run", 5) == journal.calls_of_step("other", 3) == {}


def test_outcomes_of_earlier_steps_are_dropped_and_interrupted_calls_kept(journal: Journal) -> None:
    ended = [KEY._replace(step=step, execution=f"s{step}") for step in (1, 2, 3)]
    for key in ended:
        journal.begin(key, "outcome")
    journal.begin(KEY._replace(thread="other", step=1, execution="s1"), "outcome")
    journal.begin(KEY._replace(step=1, execution="s1", place=1))
    journal.forget_outcomes("run", before_step=3)

    def outcome(thread: str, execution: str, place: int = 0) -> str | None:
        call = journal.find(thread, execution, place)
        assert call is not None
        return call.outcome

    assert [outcome("run", "s1"), outcome("run", "s2"), outcome("run", "s3")] == ["", "", "outcome"]
    assert (outcome("other", "s1"), outcome("run", "s1", 1)) == ("outcome", None)


def test_commands_that_never_ended_are_listed(journal: Journal) -> None:
    command = KEY._replace(tool="run_command", effect="execute")
    journal.begin(command)
    journal.end(journal.begin(command._replace(place=1)), "ended")
    journal.begin(KEY._replace(place=2))
    journal.begin(command._replace(thread="other", tool="other"))
    assert journal.commands(cut_off=True) == ["run_command", "other"]
    assert (journal.commands("run", 3, cut_off=True), journal.commands("run", 4, cut_off=True)) == (["run_command"], [])
    journal.begin(command, "it was tried again")
    assert journal.commands("run", cut_off=True) == []


# --- Changes


EFFECTS = (
    FileEffect("new/name", NO_FILE, FileState(sha(b"old"), 0o755)),
    FileEffect("old", FileState(sha(b"old"), 0o755), NO_FILE),
    FileEffect("made", NO_FILE, FileState(sha(b""), None)),
    FileEffect("by a command", FileState(UNKNOWN_SHA256, 0o4755), FileState(UNKNOWN_SHA256, None)),
)


def test_intended_change_is_open_until_it_is_settled(journal: Journal) -> None:
    call = journal.begin(KEY)
    journal.intend(call, "one", EFFECTS, {}, ("new",))
    journal.intend(call, "two", [EFFECT], {}, ())
    one = RecordedChange("one", call, 3, EFFECTS, ("new",), ChangeState.INTENDED)
    assert journal.open_changes() == [one, RecordedChange("two", call, 3, (EFFECT,), (), ChangeState.INTENDED)]
    journal.settle("two", ChangeState.UNDONE)
    assert journal.open_changes() == [one]
    journal.settle("one", ChangeState.DONE)
    assert journal.open_changes() == []


def test_changes_of_a_run_are_the_done_ones_from_a_step_newest_first(journal: Journal) -> None:
    first = recorded(journal, "1", key=KEY._replace(step=1, execution="a"))
    second = recorded(journal, "2", key=KEY._replace(step=2, execution="b"))
    again = recorded(journal, "3", key=KEY._replace(step=1, execution="c"))
    recorded(journal, "other run", key=KEY._replace(thread="other"))
    recorded(journal, "undo", key=KEY._replace(execution="undo", effect=UNDO_EFFECT))
    for state in set(ChangeState) - {ChangeState.DONE}:
        recorded(journal, state, state, KEY._replace(execution=state))
    assert journal.changes_of("run") == [again, second, first]
    assert journal.changes_of("run", 2) == [second]
    assert journal.changes_of("run", 3) == []


def test_changes_of_a_child_belong_to_the_step_that_started_it(journal: Journal) -> None:
    child = "run|execute_tools:0f|3|1"
    of_run = recorded(journal, "own", key=KEY._replace(step=2, execution="a"))
    of_child = recorded(journal, "child", key=KEY._replace(thread=child, step=0))
    recorded(journal, "another run's", key=KEY._replace(thread="run|execute_tools", step=9))

    assert [parent_of(thread) for thread in (child, "run")] == [("run", 3), ("run", 0)]
    assert [journal.changes_of("run", step) for step in (0, 3, 4)] == [[of_child, of_run], [of_child], []]
    assert (journal.children("run"), journal.children("other")) == ([child], [])


def test_files_up_to_ten_million_bytes_are_backed_up(journal: Journal) -> None:
    small, large = bytes(10_000_000), bytes(10_000_001)
    journal.intend(journal.begin(KEY), "token", [EFFECT], {sha(small): small, sha(large): large}, ())
    assert journal.backup(sha(small)) == small
    assert journal.backup(sha(large)) is None


def test_change_is_recorded_once_and_atomically(journal: Journal, tmp_path: Path) -> None:
    call = journal.begin(KEY)
    journal.intend(call, "token", [EFFECT], {"a": b"a"}, ())
    journal.intend(call, "token", [EFFECT], {"b": b"b"}, ())
    assert journal.backup("b") is None
    with closing(open_database(str(tmp_path))) as database:
        database.execute(f"DROP {'VIEW' if uses_postgres() else 'TABLE'} backups")
    with pytest.raises(StoreError, match="backups"):
        journal.intend(call, "next", [EFFECT], {"b": b"b"}, ())
    assert [change.token for change in journal.open_changes()] == ["token"]


@settings(max_examples=10)
@given(
    st.lists(
        st.builds(
            FileEffect,
            st.binary(min_size=1).map(os.fsdecode) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            *[st.builds(FileState, st.sampled_from(("", "?", sha(b"a"))), st.none() | st.integers(0, 0o7777))] * 2,
            has_gap=st.just(False),
        ),
        max_size=4,
    ),
    st.lists(st.binary(min_size=1).map(os.fsdecode), max_size=3),
)
def test_effects_round_trip_with_any_bytes_in_names(
    tmp_path_factory: pytest.TempPathFactory, effects: list[FileEffect], new_folders: list[str]
) -> None:
    journal = Journal(str(tmp_path_factory.mktemp("journal")))
    call = journal.begin(KEY)
    journal.intend(call, "token", effects, {}, new_folders)
    assert journal.open_changes() == [
        RecordedChange("token", call, 3, tuple(effects), tuple(new_folders), ChangeState.INTENDED)
    ]


# --- Backups


def test_damaged_backup_is_not_returned(journal: Journal, tmp_path: Path) -> None:
    journal.intend(journal.begin(KEY), "token", [], {sha(b"old"): b"old"}, ())
    assert journal.backup(sha(b"old")) == b"old"
    for damaged in (b"\0", zlib.compress(b"somebody else's")):
        with closing(open_database(str(tmp_path))) as database, transaction(database):
            database.execute("UPDATE backups SET data = ?", (damaged,))
        assert journal.backup(sha(b"old")) is None


def test_damaged_record_of_a_change_is_refused(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    recorded(journal, "token", ChangeState.INTENDED)
    for damage, repair in (
        ("UPDATE effects SET mode_after = 'rw'", "UPDATE effects SET mode_after = 384"),
        ("UPDATE changes SET made = '{}'", "UPDATE changes SET made = '[]'"),
    ):
        for statement, is_damaged in ((damage, True), (repair, False)):
            with closing(open_database(str(tmp_path))) as database, transaction(database):
                database.execute(statement)
            with pytest.raises(UnreadableValueError, match="is damaged") if is_damaged else nullcontext():
                assert [change.token for change in journal.open_changes()] == ["token"]


# --- Who uses it


def test_journal_can_be_pickled_to_another_process(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    with journal.connected():
        done = recorded(journal, "token")
        unpickled = pickle.loads(pickle.dumps(journal))  # noqa: S301 - it is the test's own
        assert unpickled.changes_of("run") == [done]


def test_unsettled_change_is_settled_before_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    journal = Journal(str(tmp_path / "records"))
    recorder = journal.recorder(journal.begin(KEY))
    recorder.intend("first", [EFFECT], {}, ())
    os.rename(tmp_path / "records", tmp_path / "away")
    with pytest.raises(StoreError):
        recorder.settle("first", ChangeState.DONE)

    os.rename(tmp_path / "away", tmp_path / "records")
    recorder.intend("second", [EFFECT], {}, ())
    assert [change.token for change in journal.open_changes()] == ["second"]
    assert [change.token for change in journal.changes_of("run")] == ["first"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose database was opened."""
    folders: list[str] = []

    def note(folder: str) -> Database:
        folders.append(folder)
        return open_database(folder)

    monkeypatch.setattr("mendgraph.nodes.workspace.journal.journal.open_database", note)
    return folders


def test_shared_connection_is_opened_once_per_process(tmp_path: Path, opened: list[str]) -> None:
    journal = Journal(str(tmp_path))
    with journal.connected() as connected:
        assert connected is journal
        first = recorded(journal, "first")
        call = journal.begin(KEY._replace(place=1))
        assert len(opened) == 1
        with replaced(getpid=lambda: -1):
            journal.intend(call, "token", [EFFECT], {}, ())
        assert len(opened) == 2
        assert [change.token for change in journal.open_changes()] == ["token"]
    assert journal.changes_of("run") == [first]
    assert len(opened) == 3


def test_unusable_database_is_named(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = make_unusable(str(tmp_path), monkeypatch)
    with pytest.raises(StoreError, match=re.escape(reason)):
        journal.begin(KEY)
    with pytest.raises(StoreError, match=re.escape(reason)):
        journal.changes_of("run")


# --- Keys of calls

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_maps = st.dictionaries(st.text(), json_values, max_size=4)


def test_key_is_stable_across_processes_and_versions() -> None:
    """The SHA-256 of ["thread",3,0,"write_file",{"content":"ä","path":"a.py"}], as sha256sum gives it."""
    assert idempotency_key("thread", 3, 0, "write_file", {"path": "a.py", "content": "ä"}) == (
        "26c8a5c3b22ba35f09262302f96f364be7000a603db85eb89a84a8320bdfd28a"
    )
    prints = [call_fingerprint("a", {"x": 1}), call_fingerprint("b", {"x": 1}), call_fingerprint("a", {"x": 2})]
    assert len(set(prints)) == 3


@settings(max_examples=30)
@given(json_maps)
@example({"b": 1, "a": "a\ud83d"})
@example({"b": 1, "a": 2**64})
def test_key_does_not_depend_on_the_order_of_arguments(arguments: dict[str, Any]) -> None:
    backwards = dict(reversed(arguments.items()))
    assert idempotency_key("t", 1, 2, "tool", backwards) == idempotency_key("t", 1, 2, "tool", arguments)
    assert call_fingerprint("tool", backwards) == call_fingerprint("tool", arguments)
