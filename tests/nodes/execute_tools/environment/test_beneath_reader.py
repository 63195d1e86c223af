import os
from pathlib import Path

import pytest

from nodes.execute_tools.environment.beneath_reader import BeneathReader
from nodes.execute_tools.environment.handles import closing, open_directory, open_regular, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from tests.nodes.execute_tools.environment.layout import DENIAL, allow, no_env

MODULE = "nodes.execute_tools.environment.beneath_reader"


def read(root: Path, *names: str, most: int = 100) -> list[bytes | None]:
    paths = JudgedPaths(str(root), no_env)
    with closing(open_root(str(root))) as handle, BeneathReader(paths, handle) as reader:
        return [reader.read(name, most) for name in names]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.py", b"a = 1\r\n"),
        ("src/b.py", b"b = 2\n"),
        ("linked.py", b"b = 2\n"),
        ("link.py", None),
        ("out.txt", None),
        ("out/secret.txt", None),
        (".env", None),
        (".git/config", None),
        ("other.txt", None),
        ("missing", None),
        ("missing/a", None),
        ("src", None),
        ("pipe", None),
    ],
)
def test_only_regular_files_that_are_allowed_under_all_their_names_are_read(
    root: Path, name: str, data: bytes | None
) -> None:
    os.link(root / ".env", root / "other.txt")
    os.link(root / "src" / "b.py", root / "linked.py")
    os.mkfifo(root / "pipe")
    assert read(root, name) == [data]


def test_a_file_is_read_up_to_its_largest_size(root: Path) -> None:
    assert [read(root, "a.py", most=most) for most in (6, 7)] == [[None], [b"a = 1\r\n"]]


def test_files_of_several_directories_in_any_order(root: Path) -> None:
    names = ("src/b.py", "a.py", "missing/a", "missing/b", "src/b.py", "out/secret.txt", "a.py")
    a, b = b"a = 1\r\n", b"b = 2\n"
    assert read(root, *names) == [b, a, None, None, b, None, a]


def test_a_directory_is_opened_once_for_the_files_in_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "src" / "c.py").write_bytes(b"c")
    opened: list[list[str]] = []

    def noting(root_fd: int, parts: list[str]) -> int:
        opened.append(parts)
        return open_directory(root_fd, parts)

    monkeypatch.setattr(f"{MODULE}.open_directory", noting)
    assert read(root, "src/b.py", "src/c.py", "a.py") == [b"b = 2\n", b"c", b"a = 1\r\n"]
    assert opened == [["src"], []]


def test_what_is_denied_by_name_is_not_even_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("it was opened")

    monkeypatch.setattr(f"{MODULE}.open_directory", refuse)
    paths = JudgedPaths(str(root), lambda *_: DENIAL)
    with closing(open_root(str(root))) as handle, BeneathReader(paths, handle) as reader:
        assert reader.read("a.py", 100) is None


def test_a_directory_that_is_another_one_when_it_is_open_gives_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".git" / "b.py").write_bytes(b"secret")
    monkeypatch.setattr(f"{MODULE}.open_directory", lambda top, _: open_directory(top, [".git"]))
    assert read(root, "src/b.py", "src/b.py") == [None, None]


def test_a_file_with_several_names_that_is_another_one_when_it_is_open_is_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("src/b.py", "a.py"):
        os.link(root / name, root / f"{name}.linked")
    with closing(open_root(str(root))) as handle:
        monkeypatch.setattr(f"{MODULE}.open_regular", lambda _, __, flags: open_regular(handle, ("a.py",), flags))
        with BeneathReader(JudgedPaths(str(root), allow), handle) as reader:
            assert (reader.read("src/b.py", 100), reader.read("a.py", 100)) == (None, b"a = 1\r\n")
