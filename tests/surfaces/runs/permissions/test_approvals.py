"""Approvals in the middle of a run: what was shown runs once, and the model gets the decision."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest

from mendgraph import (
    Asked,
    Denied,
    Ended,
    Event,
    Forked,
    StepDone,
    ToolError,
    fork_run,
    report_html,
    steps_of,
    undo_run,
)
from tests.extent import slow
from tests.surfaces.runs.approval_play import AFTER, ANSWER, BUG, THREE, files, last, requested_calls, session

APPEND = 'tool: append_file({"path": "log.txt", "content": "%s"})'


def denied_of(events: Iterable[Event]) -> list[tuple[str, str | None]]:
    """The tools that were denied, and why."""
    denied = [event for event in events if isinstance(event, Denied)]
    return [(event.tool, event.verdict.error.code if event.verdict.error else None) for event in denied]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "calc.py").write_text(BUG, encoding="utf-8")
    return folder


def test_approval_request_holds_two_writes_and_a_command(root: Path) -> None:
    with session(root, THREE) as now:
        calls = requested_calls(now.stream("Fix add"))
    rows = [(call["tool"], call["path"], call["rule"], call["preview"]["kind"], call["choices"]) for call in calls]
    every = "on every file that no rule denies, except project configuration"
    assert rows == [
        ("edit_file", "calc.py", "ask_before_write", "diff", {"approve_for_run": f"edit_file {every}"}),
        ("append_file", "log.txt", "ask_before_write", "diff", {"approve_for_run": f"append_file {every}"}),
        ("ring", "", "ask_before_run", "argv", {"approve_for_run": "ring bell with any further arguments"}),
    ]
    texts = [call["preview"]["text"].splitlines() for call in calls]
    assert (texts[0][-2:], texts[1][3], texts[2]) == (["-    return a - b", "+    return a + b"], "+one", ["bell loud"])
    assert files(root) == {"calc.py": BUG}


def test_one_call_is_approved_another_edited_and_a_third_rejected(root: Path) -> None:
    with session(root, THREE, "Done.") as now:
        requested_calls(now.stream("Fix add"))
        events = list(now.answer(ANSWER))
        history = [message.text for message in now.result().messages]
        again = last(now.answer(ANSWER))
    assert isinstance(events[-1], Ended)
    assert files(root) == AFTER
    assert not (root.parent / "rung").exists()
    assert denied_of(events) == [("ring", "permission_denied")]
    assert history[1] == THREE
    assert '"notice":"A person changed content of this call before it ran.","ran_with":{"content":"two"}' in history[2]
    assert "A person did not approve this call: too loud." in history[2]
    assert isinstance(again, Ended)
    assert again.outcome.reason == "invalid_request"


def test_another_process_can_answer_and_shows_unanswered_requests_again(root: Path) -> None:
    with session(root, THREE) as now:
        first = requested_calls(now.stream("Fix add"))
    with session(root, "Done.") as later:
        assert requested_calls(later.resume()) == first
    with session(root, "Done.") as later:
        assert isinstance(last(later.answer(ANSWER)), Ended)
    assert files(root) == AFTER


@pytest.mark.parametrize("answer", ["approve", "digests"])
def test_approval_of_a_file_that_has_changed_since_runs_nothing_on_it(root: Path, answer: str) -> None:
    with session(root, THREE, "Done.") as now:
        calls = requested_calls(now.stream("Fix add"))
        (root / "calc.py").write_text("# new\n" + BUG, encoding="utf-8")
        decisions = {str(call["index"]): {"action": "approve", "digest": call["digest"]} for call in calls}
        events = list(now.answer("approve" if answer == "approve" else {"decisions": decisions}))
    assert denied_of(events) == [("edit_file", "conflict")]
    assert files(root) == {"calc.py": "# new\n" + BUG, "log.txt": "one"}
    assert (root.parent / "rung").read_text(encoding="utf-8") == "bell loud\n"


def test_edits_of_one_file_are_shown_in_sequence_and_answered_separately(root: Path) -> None:
    reply = "\n".join(
        f'tool: edit_file({{"path": "calc.py", "old_str": "{old}", "new_str": "{new}"}})'
        for old, new in (("add", "plus"), ("a - b", "a + b"), ("plus(a", "plus(x"))
    )
    with session(root, reply, "Done.") as now:
        calls = requested_calls(now.stream("Fix add"))
        assert [call["preview"]["kind"] for call in calls] == ["diff"] * 3
        assert "+def plus(x, b):" in calls[2]["preview"]["text"]
        events = list(now.answer({"decisions": {"1": "approve", "2": "approve"}}))
    assert isinstance(events[-1], Ended)
    assert files(root) == {"calc.py": BUG.replace("-", "+")}


LONG = "".join(f"x{number} = 1\r\n" for number in range(40))


def edit_calls(*names: str) -> str:
    edits = ", ".join(f'{{"old_str": "{name} = 1", "new_str": "{name} = 2"}}' for name in names)
    return f'tool: multi_edit({{"path": "long.py", "edits": [{edits}]}})'


def with_edits(*names: str) -> bytes:
    text = LONG
    for name in names:
        text = text.replace(f"{name} = 1", f"{name} = 2")
    return text.encode()


def test_only_approved_hunks_are_written_reported_and_undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(root.parent / "data"))
    (root / "long.py").write_bytes(LONG.encode())
    with session(root, edit_calls("x3", "x20", "x38"), "Done.") as now:
        (call,) = requested_calls(now.stream("Edit"))
        assert call["hunks"] == 3
        events = list(
            now.answer({"decisions": {"0": {"action": "approve", "hunks": [3, 1], "digest": call["digest"]}}})
        )
        text = now.result().messages[2].text

    assert (root / "long.py").read_bytes() == with_edits("x3", "x38")
    assert '"data":{"path":"long.py","action":"edited","approved_in_part":' in text
    assert "a person approved only 1, 3:" in text
    assert '"hunks":"1, 3 of 3"' in text
    assert ("-x20 = 1" in text, "-x3 = 1" in text, "replacements" in text) == (True, False, False)

    [change] = [
        change
        for event in events
        if isinstance(event, StepDone)
        for result in event.results
        for change in result.changes
    ]
    assert ("+x3 = 2" in change.diff, "+x20 = 2" in change.diff) == (True, False)
    assert "ask_before_write asked a person, who approved hunks 1, 3 of the diff" in str(report_html("t", str(root)))
    assert change.sha256_after == hashlib.sha256(with_edits("x3", "x38")).hexdigest()

    [log] = (root.parent / "data" / "runs").glob("*/audit.jsonl")
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [record["hunks"] for record in records if record["event"] == "call"] == [[1, 3]]

    undone = undo_run("t", str(root))
    assert not isinstance(undone, ToolError)
    assert (root / "long.py").read_bytes() == LONG.encode()


def test_later_call_on_a_declined_hunk_fails_and_another_one_runs(root: Path) -> None:
    (root / "long.py").write_bytes(LONG.encode())
    replies = [
        edit_calls("x3", "x20"),
        'tool: edit_file({"path": "long.py", "old_str": "x20 = 2", "new_str": "x20 = 3"})',
        'tool: edit_file({"path": "long.py", "old_str": "x38 = 1", "new_str": "x38 = 2"})',
    ]
    with session(root, "\n".join(replies), "Done.") as now:
        requested_calls(now.stream("Edit"))
        one = {"action": "approve", "hunks": [1]}
        last(now.answer({"decisions": {"0": one, "1": "approve", "2": "approve"}}))
    assert (root / "long.py").read_bytes() == with_edits("x3", "x38")


def test_hunks_of_a_file_that_has_changed_since_are_not_written(root: Path) -> None:
    (root / "long.py").write_bytes(LONG.encode())
    with session(root, edit_calls("x3", "x20"), "Done.") as now:
        requested_calls(now.stream("Edit"))
        (root / "long.py").write_bytes(b"# new\r\n" + LONG.encode())
        events = list(now.answer({"decisions": {"0": {"action": "approve", "hunks": [1]}}}))
    assert denied_of(events) == [("multi_edit", "conflict")]
    assert (root / "long.py").read_bytes() == b"# new\r\n" + LONG.encode()


@pytest.mark.parametrize(
    ("reply", "comment", "secret"),
    [
        (edit_calls("x3"), "", "unused-secret"),
        (edit_calls("x3", "x20"), "  # cut in the second hunk" * 50, "unused-secret"),
        (edit_calls("x3", "x20"), "", "@@ -18,7 +18,7 @@"),
        ('tool: delete_file({"path": "long.py"})', "", "unused-secret"),
        ('tool: move_file({"path": "long.py", "target": "b.py"})', "", "unused-secret"),
    ],
    ids=["one hunk", "cut", "redacted", "deleted", "moved"],
)
def test_hunks_are_offered_only_for_a_complete_diff_with_several(
    root: Path, reply: str, comment: str, secret: str
) -> None:
    (root / "long.py").write_text(LONG.replace(" = 1\r", f" = 1{comment}"), encoding="utf-8")
    with session(root, reply, secrets=(secret,)) as now:
        (call,) = requested_calls(now.stream("Edit"))
    assert "hunks" not in call


@slow
def test_tool_allowed_for_the_run_is_asked_about_once_per_thread(root: Path) -> None:
    with session(root, APPEND % "a", APPEND % "b", "Done.", "Fine.") as now:
        requested_calls(now.stream("Log"))
        assert isinstance(last(now.answer("approve_for_run")), Ended)
    with session(root, APPEND % "c", 'tool: write_file({"path": "x.toml", "content": "a = 1"})') as later:
        (call,) = requested_calls(later.stream("Log more"))
        assert (call["rule"], call["path"]) == ("project_config", "x.toml")
    assert files(root)["log.txt"] == "a\nb\nc"
    with session(root, APPEND % "d", thread="other") as other:
        requested_calls(other.stream("Log"))
    with session(root, APPEND % "e", "Done.", mode="read-only") as quiet:
        assert isinstance(last(quiet.stream("Log")), Ended)
    assert files(root)["log.txt"] == "a\nb\nc"


def test_link_to_project_configuration_needs_its_own_approval(root: Path) -> None:
    (root / "setup.toml").write_text("a = 1\n", encoding="utf-8")
    (root / "log.txt").symlink_to("setup.toml")
    (root / "other.txt").write_text("x\n", encoding="utf-8")
    with session(root, APPEND.replace("log", "other") % "a", APPEND % "b = 2") as now:
        requested_calls(now.stream("Log"))
        event = last(now.answer("approve_for_run"))
    assert isinstance(event, Asked)
    assert [(call["path"], call["rule"], call["choices"]) for call in event.request["calls"]] == [
        ("setup.toml", "project_config", {})
    ]


def test_edited_call_cannot_reach_a_denied_path(root: Path) -> None:
    with session(root, APPEND % "a", "Done.") as now:
        requested_calls(now.stream("Log"))
        edit = {"action": "edit", "arguments": {"path": ".env", "content": "KEY"}}
        events = list(now.answer({"decisions": {"0": edit}}))
    [denied] = [event for event in events if isinstance(event, Denied)]
    assert denied.verdict.rule == "env_file"
    assert files(root) == {"calc.py": BUG}


UNREADABLE: list[object] = [None, True, {}, [], 7, "yes", {"0": "approve"}]


@slow
def test_invalid_answer_runs_nothing_and_the_request_is_shown_again(root: Path) -> None:
    for number, answer in enumerate(UNREADABLE):
        with session(root, THREE, "I may not.", thread=f"t{number}") as now:
            calls = requested_calls(now.stream("Fix add"))
            for _ in range(2):
                event = last(now.answer(answer))  # type: ignore[arg-type]  # as a program may send it
                assert isinstance(event, Asked)
                assert str(answer) in event.request["problem"]
                assert " is not an answer. Answer " in event.request["problem"]
                assert event.request["calls"] == calls
            assert isinstance(last(now.answer(answer)), Ended)  # type: ignore[arg-type]
    assert files(root) == {"calc.py": BUG}
    assert not (root.parent / "rung").exists()


EDIT = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'


@pytest.mark.parametrize(
    ("answer", "final_answer", "message"),
    [
        ("reject", "I have updated calc.py.", "No file was changed: you refused edit_file calc.py."),
        ("nobody", "It has to be approved.", "No file was changed: nobody could be asked to approve "),
    ],
)
def test_outcome_after_a_rejection_names_what_was_refused(
    root: Path, answer: Literal["reject", "nobody"], final_answer: str, message: str
) -> None:
    with session(root, EDIT, final_answer) as now:
        requested_calls(now.stream("Fix calc.py"))
        event = last(now.answer(answer))
    assert isinstance(event, Ended)
    assert (event.outcome.reason, event.outcome.answer) == ("answered", final_answer)
    assert event.outcome.message.startswith(message)


def test_secrets_and_control_characters_are_not_shown(root: Path) -> None:
    (root / "n.txt").write_text("hunter2-hunter2\n", encoding="utf-8")
    reply = 'tool: append_file({"path": "n.txt", "content": "\\u202egpj\\u001b[2J\\n"})'
    with session(root, reply, secrets=("hunter2-hunter2",)) as now:
        (call,) = requested_calls(now.stream("Write"))
    lines = call["preview"]["text"].splitlines()
    assert lines[2:] == ["@@ -1 +1,2 @@", " [redacted secret]", "+\\u202egpj\\x1b[2J"]
    assert "hunter2" not in str(call)


def test_fork_starts_without_the_permissions_of_the_run(root: Path) -> None:
    with session(root, APPEND % "a", APPEND % "b", "Done.") as now:
        requested_calls(now.stream("Log"))
        last(now.answer("approve_for_run"))
    forked = fork_run("t", 1, str(root))
    assert isinstance(forked, Forked)
    with session(root, APPEND % "c", thread=forked.run_id) as fork:
        assert [call["path"] for call in requested_calls(fork.resume())] == ["log.txt"]
    assert files(root)["log.txt"] == "a"


def test_answer_to_a_previous_request_allows_nothing(root: Path) -> None:
    with session(root, APPEND % "a", APPEND % "b") as now:
        (first,) = requested_calls(now.stream("Log"))
        answer = {"decisions": {"0": {"action": "approve", "digest": first["digest"]}}}
        requested_calls(now.answer(answer))
        events = list(now.answer(answer))
    assert denied_of(events)[0] == ("append_file", "conflict")
    assert files(root)["log.txt"] == "a"


@slow
def test_raised_limit_applies_to_the_thread_until_its_setting_changes(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write = 'tool: write_file({"path": "log.txt", "content": "%s"})'
    settings: dict[str, Any] = {"mode": "auto", "on_limit": "ask"}
    with session(root, write % 1, "Done.", max_calls_per_session=1, **settings) as first:
        assert isinstance(last(first.stream("Write.")), Asked)
        last(first.answer({"decisions": {"0": {"action": "edit", "arguments": {"max_calls_per_session": 50}}}}))
        assert first.usage()["total_calls"] == 2

    steps = steps_of("t", str(root))
    assert not isinstance(steps, ToolError)
    assert [[call.tool for call in step.calls] for step in steps] == [[], ["write_file"], []]

    with session(root, write % 2, "Done.", max_calls_per_session=1, **settings) as second:
        assert isinstance(last(second.stream("Write.")), Ended)

    with session(root, write % 3, "Done.", max_calls_per_session=5, **settings) as third:
        event = last(third.stream("Write."))
        assert isinstance(event, Asked)
        assert event.request["calls"][0]["preview"]["text"].startswith("5 of 5 model calls of this thread are spent")


@slow
def test_number_too_large_to_store_is_not_an_answer_to_a_limit(tmp_path: Path) -> None:
    root = tmp_path / "project"
    with session(root, APPEND % "a", "Done.", mode="auto", on_limit="ask", max_calls_per_session=1) as now:
        list(now.stream("Log"))
        huge = {"action": "edit", "arguments": {"max_calls_per_session": 10**30}}
        again = last(now.answer({"decisions": {"0": huge}}))
        assert isinstance(again, Asked)
        assert "That is not an answer" in again.request["problem"]
        assert isinstance(last(now.answer("approve")), Ended)
