from pathlib import Path
from time import monotonic

import pytest

from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.tree_walk import Entry, IgnoreRules
from mendgraph.nodes.execute_tools.processes.command_changes import Tree, Unwatched, look_through
from tests.nodes.execute_tools.files.layout import allow, no_env


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def look(
    root: Path, known: Tree | None = None, *, again: bool = False, most: int = 1_000, seconds: float = 600.0
) -> Tree | Unwatched:
    with closing(open_root(str(root))) as handle:
        paths = JudgedPaths(str(root), no_env)
        return look_through(
            paths, handle, most=most, deadline=monotonic() + seconds, known=known or Tree(), again=again
        )


def tree(root: Path, known: Tree | None = None, *, again: bool = False) -> Tree:
    found = look(root, known, again=again)
    assert isinstance(found, Tree)
    return found


def names(root: Path, known: Tree | None = None, *, again: bool = False) -> tuple[list[str], list[str]]:
    found = tree(root, known, again=again)
    return sorted(found.files), sorted(found.folders)


def test_denied_directories_and_git_are_not_entered(tmp_path: Path) -> None:
    put(tmp_path, ".git/config", "sub/.git", "secret/.env/key", "src/a")
    assert names(tmp_path) == (["src/a"], ["", "secret/", "src/", "sub/"])


def test_a_second_look_knows_what_the_first_one_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "src/a.py", "src/a.log", "build/x")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    first = tree(tmp_path)
    asked: list[str] = []
    ignores = IgnoreRules.ignores

    def noting(self: IgnoreRules, entry: Entry) -> bool:
        asked.append(entry.path)
        return ignores(self, entry)

    monkeypatch.setattr(IgnoreRules, "ignores", noting)
    put(tmp_path, "src/b.py", "src/b.log")
    assert names(tmp_path, first) == ([".gitignore", "src/a.py", "src/b.py"], ["", "src/"])
    assert sorted(asked) == ["src/b.log", "src/b.py"]


def test_a_look_again_keeps_the_rules_of_what_it_knows(tmp_path: Path) -> None:
    put(tmp_path, "a.log", "a.py", "deep/b.log", "deep/b.py")
    (tmp_path / ".gitignore").write_text("*.log\n")
    first = tree(tmp_path)
    (tmp_path / ".gitignore").write_text("*.py\n")
    (tmp_path / "deep" / ".gitignore").write_text("*\n")
    put(tmp_path, "new.py", "new.log", "made/c.log", "made/c.py")
    assert names(tmp_path, first, again=True) == (
        [".gitignore", "a.py", "deep/.gitignore", "deep/b.py", "made/c.py", "new.py"],
        ["", "deep/", "made/"],
    )


def test_no_ignore_file_is_read_through_a_link(root: Path) -> None:
    (root.parent / "outside" / "rules").write_text("*\n")
    (root / ".gitignore").symlink_to(root.parent / "outside" / "rules")
    with closing(open_root(str(root))) as handle:
        found = look_through(JudgedPaths(str(root), allow), handle, most=100, deadline=monotonic() + 600, known=Tree())
    assert isinstance(found, Tree)
    assert "a.py" in found.files
    (root.parent / "outside" / "rules").unlink()
