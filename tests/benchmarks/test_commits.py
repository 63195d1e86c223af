"""The counts of `make commits`: commits reproduced byte for byte, and differences."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.commits.child import reproduce
from benchmarks.commits.history import Repository, Workspace
from benchmarks.commits.result import Row
from benchmarks.commits.run import skip_reason
from benchmarks.commits.script import FORMS
from benchmarks.commits.tables import report
from tests.extent import slow

BEFORE = {
    "app.py": "def run():\n    step(1)\n    step(2)\n",
    "old name.py": "def kept():\n    return 1\n",
    "gone.md": "# Gone\n",
    "windows.txt": "one\r\ntwo\r\nthree\r\n",
    "mark.cs": "\ufeffclass A\n{\n}\n",
    "no_end.json": '{\n "a": 1\n}',
}
AFTER = {
    "app.py": "def run():\n    step(1)\n    step(4)\n    return 1\n",
    "old name.py": None,
    "new/name.py": "def kept():\n    return 1\n",
    "gone.md": None,
    "windows.txt": "one\r\n2\r\nthree\r\nfour\r\n",
    "mark.cs": "\ufeffclass B\n{\n}\n",
    "no_end.json": '{\n "a": 2\n}\n',
    "empty.txt": "",
}


def git(place: Path, *words: str) -> None:
    somebody = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", "-C", str(place), *somebody, *words], check=True)


def commit(place: Path, files: Mapping[str, str | bytes | None]) -> None:
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(place, "add", "--all", "--force")
    git(place, "commit", "--quiet", "-m", "Change files")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "--quiet")
    commit(place, BEFORE)
    return place


def reproduce_newest(project: Path, contestant: str, form: str) -> Row:
    repository = Repository.at(project)
    [newest] = repository.commits(1, "HEAD")
    row = Row("project", newest.sha, contestant, "names", form)
    reproduce(row, newest, repository, Workspace(repository, project.parent / "work"), project.parent / "data")
    return row


@slow
@pytest.mark.parametrize("form", FORMS)
def test_commit_is_reproduced_byte_for_byte(form: str, project: Path) -> None:
    commit(project, AFTER)
    row = reproduce_newest(project, "default", form)
    assert (row.differences, row.refusals, row.errors) == ([], [], [])
    assert row.outcome == "FINISHED (answered)"


@slow
def test_refused_change_is_a_difference_with_its_rule(project: Path) -> None:
    commit(project, {"app.py": "def run():\n    return 2\n", "Makefile": "all:\n"})
    row = reproduce_newest(project, "strict", "edit_file")
    assert (row.differences, row.refusals) == (["D Makefile"], ["protected"])
    assert any("D Makefile (protected)" in line for line in report([row]))


def test_skipped_commit_has_a_reason(project: Path) -> None:
    reasons: dict[str, Mapping[str, str | bytes | None]] = {
        "binary": {"picture.png": b"\x89PNG\0"},
        "not UTF-8": {"latin.txt": b"caf\xe9\n"},
        "denied": {".env": "KEY=1\n"},
        "protected": {".vscode/settings.json": "{}\n"},
        "": {"app.py": "pass\n"},
    }
    for reason, files in reasons.items():
        commit(project, files)
        repository = Repository.at(project)
        assert skip_reason(repository, repository.commits(1, "HEAD")[0]) == reason
