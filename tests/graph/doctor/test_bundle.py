"""A report of a run whose every place holds a secret."""

import io
import zipfile
from pathlib import Path

import pytest

from mendgraph.graph.doctor.bundle import cleaned, make_bundle
from mendgraph.graph.doctor.checks import Finding, Status
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import ToolError
from tests.doubles.scripted_server import Calls, ScriptedServer, Status as Refusal
from tests.graph.telemetry.conftest import context
from tests.runs.playing import write_files

WORD = "hunter2-hunter2-hunter2"


def files(packed: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/alice/code", "~/code"),
        ("/home/alice2/code", "/home/alice2/code"),
        ("by alice, for malice", "by ~, for malice"),
        ("alice has corp-alice-9f8e7d6c5b4a", "~ has [redacted secret]"),
    ],
)
def test_names_homes_and_secrets_are_taken_out(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    assert cleaned(text, Redactor(("corp-alice-9f8e7d6c5b4a",))) == shown


Entry = Calls | Refusal
CONTENT = "quite-unusual-file-content"
TALK = "quite-unusual-request"
FINDING = Finding(Status.OK, f"it is {WORD}", name="model")


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


def test_nothing_secret_and_nothing_said_is_inside(tmp_path: Path, run: str) -> None:
    made = make_bundle([FINDING], str(tmp_path / "root"), run)
    assert isinstance(made, tuple)
    found = files(made[0])
    assert [*made[1]] == [*found]
    everything = "".join(found.values())
    for unwanted in (WORD, CONTENT, TALK, str(tmp_path)):
        assert unwanted not in everything
    assert '"workspace": "~/root"' in found["run/run.json"]
    assert '"tool": "write_file"' in found["run/steps.json"]
    assert "provider_failed" in found["run/run.json"]
    assert '"verdict": "allow"' in found["run/audit.jsonl"]


def test_what_cannot_be_found_is_an_error(tmp_path: Path, run: str) -> None:
    assert run
    assert isinstance(make_bundle([FINDING], str(tmp_path / "root"), "no-such-run"), ToolError)
