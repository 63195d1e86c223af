"""`mendgraph doctor` at the command line."""

import json
import zipfile
from pathlib import Path

import pytest

from mendgraph.graph import cli
from mendgraph.graph.doctor.examination import Finding, Status
from mendgraph.graph.terminal.setup_commands import finding_lines

GOOD = Finding("model", Status.OK, "there")
BAD = Finding("endpoint", Status.PROBLEM, "gone\x1b[2J", "start it")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Finding]:
    """What the checks find; the tests change it."""
    findings = [GOOD]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mendgraph.graph.doctor.examination.examine", lambda *_, **__: tuple(findings))
    return findings


def test_a_finding_is_a_line_and_its_remedy_another() -> None:
    assert [line.text for line in finding_lines((GOOD, BAD))] == [
        "ok       model     there",
        "problem  endpoint  gone\\x1b[2J",
        "                   -> start it",
        "1 problem",
    ]


def test_on_a_terminal_no_word_is_cut() -> None:
    long = Finding("store", Status.PROBLEM, "the disk under /var/lib/mendgraph/runs is full", "make room on it")
    assert [line.text for line in finding_lines((long,), 60)] == [
        "problem  store  the disk under /var/lib/mendgraph/runs is",
        "                full",
        "                -> make room on it",
        "1 problem",
    ]
    assert [line.text for line in finding_lines((long,), 24)] == [
        "problem  store",
        "  the disk under",
        "  /var/lib/mendgraph/runs",
        "  is full",
        "  -> make room on it",
        "1 problem",
    ]


def test_the_exit_code_says_whether_there_is_a_problem(
    found: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all is well"
    found.append(BAD)
    assert cli.main(["doctor"]) == 1


def test_programs_get_one_object(found: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    found.append(BAD)
    assert cli.main(["--json", "doctor"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["checks"][0] == {"name": "model", "status": "ok", "found": "there", "remedy": ""}


def test_options_of_a_run_are_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def examine(_: str, settings: dict[str, object], **options: object) -> tuple[Finding, ...]:
        given.extend([settings, options])
        return ()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mendgraph.graph.doctor.examination.examine", examine)
    assert cli.main(["--model", "m", "doctor", "--offline", "--deep"]) == 0
    assert given == [{"model": "m"}, {"offline": True, "deep": True, "workspace_file": True}]


def test_a_report_is_written_once(found: list[Finding], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert found
    assert cli.main(["doctor", "--bundle"]) == 0
    shown = capsys.readouterr().out
    assert "mendgraph-doctor.zip" in shown
    assert "To reproduce: mendgraph doctor" in shown
    with zipfile.ZipFile(tmp_path / "mendgraph-doctor.zip") as archive:
        assert json.loads(archive.read("doctor.json"))["ok"] is True
    assert cli.main(["doctor", "--bundle"]) == 4
    assert "--force" in capsys.readouterr().err
    assert cli.main(["--json", "doctor", "--bundle", "other.zip"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "other.zip")


def test_a_run_that_is_not_there_is_a_wrong_word(found: list[Finding], tmp_path: Path) -> None:
    assert found
    assert cli.main(["doctor", "--bundle", "--run", "../no"]) == 2
    assert not [*tmp_path.glob("*.zip")]


@pytest.mark.parametrize(
    "words", [["b.zip"], ["--run", "1"], ["--force"], ["--include-messages"], ["--bundle", "--include-messages"]]
)
def test_what_belongs_to_a_report_is_refused_without_one(words: list[str], found: list[Finding]) -> None:
    assert found
    assert cli.main(["doctor", *words]) == 2
