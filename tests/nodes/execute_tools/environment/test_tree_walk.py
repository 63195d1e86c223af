from pathlib import Path

import pytest

from nodes.execute_tools.environment import listing
from nodes.execute_tools.environment.handles import open_directory
from nodes.execute_tools.environment.listing import Entry
from nodes.execute_tools.environment.tree_walk import DEEPEST
from nodes.execute_tools.environment.workspace import Workspace
from tests.nodes.execute_tools.environment.layout import DENIAL, allow, no_env


def walked(root: Path, start: str, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return [entry.path for entry in Workspace(str(root), allow).walk(start)]


def test_a_walk_names_everything_in_order_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(".")
    names = walked(tmp_path, ".", {"b/c.py": "", "b/a/x.py": "", "a.py": "", ".git/config": "", "b/.git/config": ""})
    assert names == ["a.py", "b", "b/a", "b/a/x.py", "b/c.py", "loop"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (".", [".gitignore", "keep", "keep/.gitignore", "keep/a.log", "keep/b.py", "src", "src/x.py"]),
        ("keep", ["keep/.gitignore", "keep/a.log", "keep/b.py"]),
        ("src", ["src/x.py"]),
        ("build", ["build/out.log", "build/out.py"]),
    ],
)
def test_a_walk_leaves_out_what_git_ignores(tmp_path: Path, start: str, expected: list[str]) -> None:
    files = {
        ".gitignore": "*.log\n/build/\nsecret\n# a comment\n\n!/keep/a.log\n",
        "build/out.py": "",
        "build/out.log": "",
        "keep/.gitignore": "*.tmp\n",
        "keep/a.log": "",
        "keep/b.py": "",
        "keep/c.tmp": "",
        "keep/d.log": "",
        "src/x.py": "",
        "src/x.log": "",
        "src/secret/y.py": "",
    }
    assert walked(tmp_path, start, files) == expected


def test_a_walk_does_not_enter_what_is_denied(root: Path) -> None:
    workspace = Workspace(str(root), lambda path, _: DENIAL if path == "src" else None)
    assert "src/b.py" not in [entry.path for entry in workspace.walk()]


def test_a_walk_ends_at_its_greatest_depth(tmp_path: Path) -> None:
    deep = "/".join(["d"] * (DEEPEST + 5))
    assert len(walked(tmp_path, ".", {f"{deep}/f": ""})) == DEEPEST


def test_a_walk_may_be_left_early(root: Path) -> None:
    assert next(Workspace(str(root), allow).walk()) == Entry(".env", "file", 6)


def test_a_walk_does_not_enter_what_turns_out_to_be_denied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "open_directory", lambda top, parts: open_directory(top, (".git",) if parts else ()))
    names = [entry.path for entry in Workspace(str(root), no_env).walk()]
    assert "src" in names
    assert [name for name in names if "config" in name] == []
