import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.real_model.rivals.adapter import Rival, serve, workspace_tools


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    here = Path.cwd()
    (tmp_path / "w" / "src").mkdir(parents=True)
    (tmp_path / "w" / "src" / "a.py").write_bytes(b"x = 1\r\nx = 1\r\ny = 2\r\n")
    (tmp_path / "secret").write_text("s", "utf-8")
    yield tmp_path / "w"
    os.chdir(here)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("list_files", {}, "src/a.py"),
        ("read_file", {"path": "src/a.py"}, "x = 1\r\nx = 1\r\ny = 2\r\n"),
        ("read_file", {"path": "../secret"}, "Error: ../secret is outside of the workspace"),
        ("read_file", {"path": "/etc/passwd"}, "Error: /etc/passwd is outside of the workspace"),
        ("write_file", {"path": "new/b.py", "content": "b\r\n"}, "Wrote new/b.py."),
        ("write_file", {"path": "../secret", "content": ""}, "Error: ../secret is outside of the workspace"),
        ("edit_file", {"path": "src/a.py", "old_string": "y = 2", "new_string": "y = 3"}, "Edited src/a.py."),
        (
            "edit_file",
            {"path": "src/a.py", "old_string": "x = 1", "new_string": ""},
            "Error: old_string occurs 2 times in src/a.py",
        ),
    ],
)
def test_the_tools_work_inside_of_the_workspace(
    workspace: Path, tool: str, arguments: dict[str, str], said: str
) -> None:
    tools = {each.__name__: each for each in workspace_tools(workspace)}
    assert tools[tool](**arguments) == said
    assert (workspace.parent / "secret").read_text("utf-8") == "s"


def served(
    work: Rival, workspace: Path, monkeypatch: pytest.MonkeyPatch, printed: pytest.CaptureFixture[str]
) -> object:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"workspace": str(workspace), "request": "r"})))
    serve(lambda: work)
    end = json.loads(printed.readouterr().out)
    assert end.pop("seconds") >= 0
    return end


def test_an_answer_is_the_end(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(asked: dict[str, str]) -> str:
        print("noise")  # noqa: T201 - as libraries do
        return f"{asked['request']} in {Path.cwd().name}"

    assert served(work, workspace, monkeypatch, capsys) == {"ended": "done", "answer": "r in w"}


def test_what_a_rival_raises_is_its_end(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_: dict[str, str]) -> str:
        raise LookupError("no more calls")

    end = {"ended": "error", "reason": "LookupError", "error": "no more calls"}
    assert served(work, workspace, monkeypatch, capsys) == end
