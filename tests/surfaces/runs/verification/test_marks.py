"""What the first line of an outcome says about single files, in whole runs."""

import json
from pathlib import Path
from typing import Any

from mendgraph import RunResult, report_html
from mendgraph.graph.terminal.json_output import result_object
from mendgraph.graph.terminal.outcome_lines import outcome_lines
from mendgraph.nodes.records import Mark
from tests.doubles.replies import Say
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.surfaces.runs.tool_play import new_workspace, play, reads as read
from tests.workspace_files import write_files

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n    assert add(0, 0) == 0\n"
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "notes.txt": "old\n",
    "tests/test_calc.py": TEST,
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-q'\n",
}


def delete(path: str) -> Use:
    return use(("delete_file", {"path": path}))


def write(path: str, text: str) -> Use:
    return use(("write_file", {"path": path, "content": text}))


def move(path: str, target: str) -> Use:
    return use(("move_file", {"path": path, "target": target}))


def run_replies(root: Path, *replies: Use, words: str = "Repair add, and ignore some tests.", **more: Any) -> RunResult:
    write_files(root, FILES)
    return play(root, *replies, Say("Done: add adds now."), request=words, **more).result


ENDS: tuple[tuple[tuple[Use, ...], str, set[tuple[str, str]]], ...] = (
    ((read("calc.py"), delete("calc.py")), "Deleted calc.py", {("deleted", "calc.py")}),
    (
        (read("calc.py"), delete("calc.py"), read("notes.txt"), write("notes.txt", "new\n")),
        "Changed notes.txt; deleted calc.py",
        {("deleted", "calc.py")},
    ),
    (
        (read("tests/test_calc.py"), delete("tests/test_calc.py")),
        "Tests deleted: tests/test_calc.py",
        {("tests_deleted", "tests/test_calc.py")},
    ),
    (
        (read("tests/test_calc.py"), write("tests/test_calc.py", TEST.replace("assert", "_ ="))),
        "Changed tests/test_calc.py; tests weakened: tests/test_calc.py (2 assertions fewer)",
        {("tests_weakened", "tests/test_calc.py")},
    ),
    (
        (move("tests/test_calc.py", "tests/unit/test_sums.py"),),
        "Changed tests/unit/test_sums.py; deleted tests/test_calc.py",
        {("deleted", "tests/test_calc.py")},
    ),
    (
        (move("tests/test_calc.py", "attic/calc.py"),),
        "Changed attic/calc.py; tests deleted: tests/test_calc.py",
        {("tests_deleted", "tests/test_calc.py")},
    ),
    (
        (read("pyproject.toml"), write("pyproject.toml", FILES["pyproject.toml"].replace("-q", "--ignore=tests"))),
        "Changed pyproject.toml; tests ignored: pyproject.toml (--ignore=tests)",
        {("tests_ignored", "pyproject.toml")},
    ),
    (
        (read("notes.txt"), delete("notes.txt"), write("notes.txt", "old\n"), write("b.txt", "x\n")),
        "Changed b.txt",
        set(),
    ),
)


def test_outcome_says_what_happened_to_single_files(tmp_path: Path) -> None:
    for replies, message, marks in ENDS:
        result = run_replies(new_workspace(tmp_path, {}), *replies)
        assert result.outcome.kind == "FINISHED"
        assert result.outcome.message == f"{message}; not checked: evidence is off, and no check is configured."
        assert {(mark.kind, mark.path) for mark in result.outcome.marks} == marks
        assert result.answer == "Done: add adds now."


CI = "on: push\njobs:\n  test:\n    steps:\n      - uses: actions/checkout@v6 # v6.0.2\n      - run: make test\n"


CI_CHANGES = (
    (".github/workflows/ci.yml", CI.replace("@v6 # v6.0.2", "@3d3c42e5 # v7.0.0"), False),
    (".github/workflows/ci.yml", CI.replace("@v6 # v6.0.2", "@v7"), False),
    (".github/workflows/ci.yml", CI.replace("actions/checkout@v6", "actions/other@v6"), True),
    (".github/workflows/ci.yml", CI.replace("make test", "make tests"), True),
    (".github/workflows/new.yml", CI, True),
    (".pre-commit-config.yaml", "repos:\n- repo: https://example.org/a\n  rev: 2.0\n", False),
    (".pre-commit-config.yaml", "repos:\n- repo: https://example.org/b\n  rev: 1.0\n", True),
    (".github/CONTRIBUTING.md", "# How to\n", False),
)


@slow
def test_new_version_of_a_ci_action_is_not_marked(tmp_path: Path) -> None:
    hooks = "repos:\n- repo: https://example.org/a\n  rev: 1.0\n"
    for path, after, marked in CI_CHANGES:
        root = new_workspace(tmp_path, {".github/workflows/ci.yml": CI, ".pre-commit-config.yaml": hooks})
        result = run_replies(root, read(path), write(path, after))
        assert result.changed_files == (path,)
        assert [mark.kind for mark in result.outcome.marks] == ["runs_later"] * marked, (path, after)


@slow
def test_changed_files_that_the_request_does_not_name_are_reported(tmp_path: Path) -> None:
    written = (write(path, "A = 1\n") for path in ("new.py", "docs/b.py", "src/c.py"))
    result = run_replies(
        tmp_path / "root", read("calc.py"), *written, delete("calc.py"), words="Write new.py and files in src/."
    )
    message = "Changed new.py, src/c.py; changed, not named in the request: docs/b.py; deleted calc.py"
    assert result.outcome.message.startswith(f"{message}; not checked: ")
    assert [(mark.kind, mark.path) for mark in result.outcome.marks] == [
        ("deleted", "calc.py"),
        ("not_named", "docs/b.py"),
    ]


@slow
def test_marks_are_shown_in_the_terminal_in_json_and_in_the_report(tmp_path: Path) -> None:
    root = tmp_path / "root"
    result = run_replies(root, read("calc.py"), delete("calc.py"))
    [line] = outcome_lines(result.outcome)
    assert line.text.startswith("FINISHED (answered): Deleted calc.py; ")
    outcome = json.loads(json.dumps(result_object(result, {}, None, None)))["outcome"]
    assert (outcome["changed_files"], outcome["marks"]) == (
        ["calc.py"],
        [{"kind": "deleted", "path": "calc.py", "detail": ""}],
    )
    page = report_html(result.run_id, str(root))
    assert isinstance(page, str)
    assert "Deleted calc.py; " in page
    assert "calc.py (deleted)" in page


@slow
@needs_sandbox
def test_changes_by_a_program_are_marked(tmp_path: Path) -> None:
    """Also links and large files; files that run later are marked whether they are new or old."""
    program = (
        "import os; os.remove('tests/test_calc.py'); os.symlink('../notes.txt', 'tests/link.txt');"
        "os.symlink('/etc/hosts', 'out'); open('zeros.bin', 'wb').write(bytes(20_000_000));"
        "open('tests/conftest.py', 'w').close()"
    )
    result = run_replies(
        tmp_path / "root", use(("run_command", {"argv": ["python3", "-c", program]})), allowed_programs=("python3",)
    )
    assert [*result.outcome.marks] == [
        Mark(kind="tests_deleted", path="tests/test_calc.py"),
        Mark(kind="link", path="out", detail="out of the workspace"),
        Mark(kind="runs_later", path="tests/conftest.py"),
        Mark(kind="link", path="tests/link.txt", detail="to notes.txt"),
        Mark(kind="large", path="zeros.bin", detail="20 MB"),
    ]
    assert result.outcome.message.startswith(
        "Changed out, tests/conftest.py, tests/link.txt, zeros.bin; tests deleted: tests/test_calc.py;"
        " link: out (out of the workspace), tests/link.txt (to notes.txt); runs later: tests/conftest.py;"
        " large: zeros.bin (20 MB); not checked"
    )
