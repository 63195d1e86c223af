"""What `make commits` counts: a commit that is made again byte for byte, what differs, and what no tool can make."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.commits.child import make_again
from benchmarks.commits.history import Repository, Workspace
from benchmarks.commits.result import Row
from benchmarks.commits.run import why_apart
from benchmarks.commits.script import FORMS
from benchmarks.commits.tables import report

LINES = "".join(f"    step({number % 3})\n" for number in range(40))
BEFORE = {
    "app.py": f"def run():\n{LINES}",
    "old name.py": "def kept():\n    return 1\n\n\ndef other():\n    return 2\n",
    "gone.md": "# Gone\n",
    "windows.txt": "one\r\ntwo\r\nthree\r\n",
    "becomes_unix.txt": "one\r\ntwo\r\n",
    "mixed.md": "# Changes\n\n## 2.0\n\n## 1.2\r\n## 1.1\r\n## 1.0\r\n## 0.9\r\n## 0.8\r\n",
    "mark.cs": "\ufeffclass A\n{\n}\n",
    "no_end.json": '{\n "a": 1\n}',
    "routes/[slug]/page.tsx": "export default 1;\n",
}
AFTER = {
    "app.py": f"def run():\n{LINES.replace('step(1)', 'step(4)', 4)}    return 1\n",
    "old name.py": None,
    "new/name.py": "def kept():\n    return 1\n\n\ndef other():\n    return 3\n",
    "gone.md": None,
    "windows.txt": "one\r\n2\r\nthree\r\nfour\r\n",
    "becomes_unix.txt": "one\ntwo\n",
    "mixed.md": "# Changes\n\n## 2.1\n\n## 2.0\n\n## 1.2\r\n## 1.1\r\n## 1.0\r\n## 0.8\r\n",
    "mark.cs": "\ufeffclass B\n{\n}\n",
    "no_end.json": '{\n "a": 2\n}\n',
    "routes/[slug]/page.tsx": "export default 2;\n",
    "empty.txt": "",
    "new.cs": "\ufeffclass C\r\n{\r\n}\r\n",
    "more.cs": "\ufeffclass D\n{\n}\n",
    ".github/workflows/ci.yml": "on: push",
}


class Project:
    """A git repository whose commits a test makes."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.git("init", "--quiet", str(place))

    def git(self, *words: str) -> None:
        somebody = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-C", str(self.place))
        subprocess.run(["git", *(somebody if self.place.exists() else ()), *words], check=True)

    def commit(self, files: Mapping[str, str | bytes | None], message: str = "Change files") -> None:
        for name, content in files.items():
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "-m", message)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    project = Project(tmp_path / "project")
    project.commit(BEFORE)
    return project


def play(project: Project, tmp_path: Path, contestant: str, request: str, form: str) -> Row:
    repository = Repository.at(project.place)
    [commit] = repository.commits(1, "HEAD")
    row = Row("project", commit.sha, contestant, request, form)
    make_again(row, commit, repository, Workspace(repository, tmp_path / "work"), tmp_path / "data")
    return row


@pytest.mark.parametrize("form", FORMS)
def test_commit_is_made_again_byte_for_byte(form: str, project: Project, tmp_path: Path) -> None:
    project.commit(AFTER)
    row = play(project, tmp_path, "default", "names", form)
    assert (row.differences, row.refusals, row.errors) == ([], [], [])
    assert row.outcome == "FINISHED (answered)"
    assert "runs_later" in row.marks


def test_strict_run_makes_a_commit_whose_files_the_request_names(project: Project, tmp_path: Path) -> None:
    project.commit({"app.py": "def run():\n    return 2\n", "gone.md": None, "tests/test_app.py": "assert True\n"})
    assert play(project, tmp_path, "strict", "every", "edit_file").is_identical


def test_file_with_a_secret_is_edited_where_it_cannot_be_written(project: Project, tmp_path: Path) -> None:
    project.commit({"api.py": 'HEADERS = {"Authorization": "Basic dXNlcjpwYXNz"}\nDEPTH = 1\n'})
    project.commit({"api.py": 'HEADERS = {"Authorization": "Basic dXNlcjpwYXNz"}\nDEPTH = 2\n'})
    row = play(project, tmp_path, "default", "names", "write_file")
    assert (row.differences, len(row.errors)) == ([], 1)


def test_what_a_rule_refuses_is_a_difference_with_the_rule(project: Project, tmp_path: Path) -> None:
    project.commit({"app.py": "def run():\n    return 2\n", "Makefile": "all:\n"})
    row = play(project, tmp_path, "strict", "names", "edit_file")
    assert row.differences == ["D Makefile"]
    assert row.refusals == ["protected"]
    assert any("D Makefile (protected)" in line for line in report([row]))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"picture.png": b"\x89PNG\0"}, "binary"),
        ({"latin.txt": b"caf\xe9\n"}, "not UTF-8"),
        ({".env": "KEY=1\n"}, "denied"),
        ({".vscode/settings.json": "{}\n"}, "protected"),
        ({"app.py": "pass\n"}, ""),
    ],
)
def test_commit_that_is_not_tried_has_a_reason(files: dict[str, str | bytes], reason: str, project: Project) -> None:
    project.commit(files)
    repository = Repository.at(project.place)
    assert why_apart(repository, repository.commits(1, "HEAD")[0]) == reason


def test_links_and_modes_are_no_changes_of_text(project: Project) -> None:
    (project.place / "link").symlink_to("app.py")
    project.commit({})
    (project.place / "app.py").chmod(0o755)
    project.commit({})
    repository = Repository.at(project.place)
    assert [why_apart(repository, commit) for commit in repository.commits(2, "HEAD")] == ["mode", "link"]
