"""A report of a run whose every place holds a secret."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.graph.doctor.bundle import Cleaner, Written, bundle, write_bundle
from mendgraph.graph.doctor.examination import Finding, Status
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.doubles.scripted_server import Calls, ScriptedServer, Status as Refusal
from tests.graph.telemetry.conftest import context
from tests.runs.playing import write_files

WORD = "hunter2-hunter2-hunter2"
CLEAN = Cleaner(Redactor((WORD,)), ("/home/alice", ""), "alice")


def files(packed: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_bundle_says_what_is_inside_and_how_to_reproduce_it() -> None:
    found = files(bundle({"run/audit.jsonl": [{"b": 1, "a": 2}, {}], "own.json": 3}, CLEAN, ["mendgraph resume 1"]))
    assert list(found) == ["README.txt", "own.json", "run/audit.jsonl"]
    assert found["run/audit.jsonl"] == '{"a": 2, "b": 1}\n{}\n'
    assert "own.json: more" in found["README.txt"]
    assert "mendgraph resume 1" in found["README.txt"]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/alice/code", "~/code"),
        ("/home/alice", "~"),
        ("/home/alice2/code", "/home/alice2/code"),
        ("by alice, for malice", "by ~, for malice"),
        (f"it is {WORD}", "it is [redacted secret]"),
    ],
)
def test_names_homes_and_secrets_are_taken_out(text: str, cleaned: str) -> None:
    assert CLEAN.text(text) == cleaned
    hidden = cleaned.replace("[redacted secret]", "***")
    assert CLEAN.value({"a": [text, 1, None], text: True}) == {"a": [hidden, 1, None], hidden: True}


def test_a_secret_that_holds_the_users_name_is_taken_out_whole() -> None:
    known = "corp-alice-9f8e7d6c5b4a"
    shown = Cleaner(Redactor((known,)), (), "alice").text(f"alice has {known}")
    assert shown == "~ has [redacted secret]"


JSON: Any = st.recursive(
    st.none() | st.integers() | st.text() | st.just(WORD) | st.just(f"x{WORD}y") | st.just("/home/alice/x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just(WORD), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_canary_is_in_any_bundle(value: object) -> None:
    packed = bundle({"a.json": value, "b.jsonl": [value]}, CLEAN, [])
    for text in files(packed).values():
        assert WORD not in text
        assert "/home/alice" not in text


Entry = Calls | Refusal
CONTENT = "quite-unusual-file-content"
TALK = "quite-unusual-request"
FINDING = Finding("model", Status.OK, f"it is {WORD}")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a run in `tmp_path / "root"` that has failed; the secret is wherever one can be put."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DEPLOY_TOKEN", WORD)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "root"
    root.mkdir()
    write_files(root, {"a.txt": f"{CONTENT} {WORD}\n"})
    named = f'{{"path": "{WORD}.txt", "content": "{CONTENT} {WORD}"}}'
    script: list[Entry] = [
        Calls([("read_file", '{"path": "a.txt"}'), ("write_file", named)], text=f"{TALK} {WORD}"),
        Refusal(400, f"the endpoint says {WORD}"),
    ]
    with ScriptedServer(script) as server:
        done = run_task(
            f"{TALK}: {WORD}",
            context(root, server.base_url, checks=(f"echo {WORD}",)),
            thread_id=f"t-{WORD}",
        )
    return done.thread_id


def written(path: Path, run: str, **options: bool) -> Written | ToolError:
    return write_bundle(str(path), [FINDING], str(path.parent / "root"), run, **options)


def text_of(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_nothing_secret_and_nothing_said_is_inside(tmp_path: Path, run: str) -> None:
    path = tmp_path / "b.zip"
    made = written(path, run)
    assert isinstance(made, Written)
    found = text_of(path)
    assert sorted([*made.files, "README.txt"]) == sorted(found)
    assert "run/messages.json" not in found
    everything = "".join(found.values()) + repr(made)
    for unwanted in (WORD, CONTENT, TALK):
        assert unwanted not in everything
    assert str(tmp_path) not in "".join(found.values())
    assert '"workspace": "~/root"' in found["run/context.json"]
    assert '"tool": "write_file"' in found["run/steps.json"]
    assert "provider_failed" in found["run/run.json"]
    assert '"messages: list[' in found["run/checkpoints.json"]
    assert '"verdict": "allow"' in found["run/audit.jsonl"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_said_is_inside_where_it_is_asked_for_without_secrets(tmp_path: Path, run: str) -> None:
    path = tmp_path / "b.zip"
    assert isinstance(written(path, run, include_messages=True), Written)
    found = text_of(path)
    assert TALK in found["run/messages.json"]
    assert WORD not in "".join(found.values())


def test_it_is_the_same_file_each_time_and_never_written_over_by_accident(tmp_path: Path, run: str) -> None:
    path = tmp_path / "b.zip"
    assert isinstance(written(path, run), Written)
    first = path.read_bytes()
    again = written(path, run)
    assert isinstance(again, ToolError)
    assert (again.code, "--force" in again.message) == (ToolErrorCode.CONFLICT, True)
    assert isinstance(written(path, run, force=True), Written)
    assert path.read_bytes() == first


def test_what_cannot_be_written_or_found_is_an_error(tmp_path: Path, run: str) -> None:
    assert isinstance(written(tmp_path / "b.zip", "no-such-run"), ToolError)
    assert not (tmp_path / "b.zip").exists()
    nowhere = write_bundle(str(tmp_path / "none" / "b.zip"), [], str(tmp_path / "root"))
    assert isinstance(nowhere, ToolError)
    link = tmp_path / "link.zip"
    link.symlink_to(tmp_path / "victim")
    assert isinstance(written(link, run, force=True), ToolError)
    assert not (tmp_path / "victim").exists()
