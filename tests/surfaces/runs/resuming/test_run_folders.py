"""What a run stores in its own folder: its log, and results that are too large to show."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import Effect, Traced, serializer, tool
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.surfaces.runs.tool_play import DONE, Line, PlayedRun, play, reads
from tests.workspace_files import write_files

WIDE = "x" * 92
LONG = "".join(f"{number:06} {WIDE}\n" for number in range(2_000))


@tool(effect=Effect.NONE)
def recite() -> str:
    """Give back 200 kB of text, in lines of 100 characters."""
    return LONG


RECITE = use(("recite", {}))


def page(start: int) -> Use:
    return use(("read_file", {"path": "@result/1", "start_line": start, "limit": 400}))


def run_replies(root: Path, *replies: Line, thread: str = "t", **more: Any) -> PlayedRun:
    return play(root, *replies, thread_id=thread, tools=(recite,), max_input_tokens_per_session=10**7, **more)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, beside the folder with the runs' own files."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", {"a.py": "a = 1\n"})
    return tmp_path / "root"


@pytest.fixture
def no_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file where the folder of all runs should be."""
    (root.parent / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(root.parent / "file"))
    return str(root.parent / "file")


@slow
def test_large_result_is_stored_and_read_page_by_page(root: Path, tmp_path: Path) -> None:
    starts = (1, 401, 801, 1_201, 1_601)
    first, *pages = run_replies(root, RECITE, *map(page, starts), DONE).results
    assert len(json.dumps(first)) < 66_000
    assert first["data"]["clipped"][-1] == 'all of it: read_file path="@result/1"'
    assert "".join(part["data"]["content"] for part in pages) == LONG
    assert [stored["data"]["has_more"] for stored in pages] == [True, True, True, True, False]
    [stored] = (tmp_path / "data" / "runs").glob("*/results-*/1.txt")
    assert (stored.stat().st_size, stat.S_IMODE(stored.stat().st_mode)) == (200_000, 0o600)


@slow
def test_stored_result_is_available_only_to_its_thread_and_workspace(root: Path, tmp_path: Path) -> None:
    saver = InMemorySaver(serde=serializer())
    run_replies(root, RECITE, DONE, checkpointer=saver)
    again = run_replies(root, page(2_000), DONE, checkpointer=saver)
    assert again.results[-1]["data"]["content"] == f"001999 {WIDE}\n"

    write_files(tmp_path / "elsewhere", {"a.py": "a = 1\n"})
    for other in (run_replies(root, page(1), DONE, thread="other"), run_replies(tmp_path / "elsewhere", page(1), DONE)):
        [result] = other.results
        assert result["error"]["code"] == "not_found"


def test_stored_result_cannot_be_written(root: Path) -> None:
    calls = (
        ("write_file", {"path": "@result/1", "content": "x"}),
        ("edit_file", {"path": "@result/1", "old_str": "x", "new_str": "y"}),
    )
    _, *errors = run_replies(root, RECITE, use(*calls), DONE).results
    assert [error["error"]["code"] for error in errors] == ["invalid_argument"] * 2
    assert all("is a kept result, which can only be read" in error["error"]["message"] for error in errors)


# --- Where the folder may be


@pytest.mark.parametrize("linked", [False, True], ids=["inside", "inside by a link"])
def test_log_inside_the_workspace_is_hidden_from_the_agent(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    (tmp_path / "link").symlink_to(root / "data")
    (root / "data").mkdir()
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "link" if linked else root / "data"))
    other = "data/runs/other/audit.jsonl"
    write_files(root, {other: "a = 2\n"})
    calls = use(
        ("read_file", {"path": other}),
        ("read_file", {"path": "DATA/Runs/other/audit.jsonl"}),
        ("list_files", {"path": "data/runs/other"}),
        ("write_file", {"path": "data/runs/new.txt", "content": "x"}),
        ("search_files", {"pattern": "a = "}),
    )
    run = run_replies(root, calls, DONE)
    *refused, search = run.results
    assert run.rules == ["run_records"] * 4
    assert [error["error"]["code"] for error in refused] == ["permission_denied"] * 4
    assert [match["path"] for match in search["data"]["matches"]] == ["a.py"]
    [log] = [path for path in (root / "data" / "runs").glob("*/audit.jsonl") if path.parent.name != "other"]
    assert [json.loads(line)["event"] for line in log.read_text(encoding="utf-8").splitlines()] == [
        *["call"] * 5,
        "end",
    ]


def test_run_without_a_folder_can_read_and_changes_nothing(root: Path, no_folder: str) -> None:
    """With the user's own saver it may read files; a large result is truncated; nothing unrecorded is changed."""
    saver = InMemorySaver(serde=serializer())
    run = run_replies(root, reads("a.py"), RECITE, DONE, checkpointer=saver)
    traces = [event for event in run.events if isinstance(event, Traced)]
    [reason] = [str(event.payload["reason"]) for event in traces if event.name == "audit.unavailable"]
    assert no_folder in reason
    assert run.outcome.kind == "FINISHED"
    cut = run.results[1]
    assert "@result" not in json.dumps(cut)
    assert len(cut["data"]["clipped"]) == 1

    outcome = run_replies(
        root, use(("write_file", {"path": "new.py", "content": "x"})), DONE, checkpointer=saver
    ).outcome
    assert (outcome.reason, no_folder in outcome.message) == ("workspace_failed", True)
    assert not (root / "new.py").exists()


def test_run_without_a_folder_or_a_saver_does_not_start(root: Path, no_folder: str) -> None:
    run = run_replies(root, reads("a.py"), DONE)
    assert (run.outcome.kind, run.outcome.reason) == ("SYSTEM_ERROR", "store_failed")
    assert no_folder in run.outcome.message
    assert not any(isinstance(event, Traced) for event in run.events)
