import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.journal import restoring
from mendgraph.nodes.execute_tools.journal.restoring import (
    Found,
    FoundAbove,
    FoundDirectory,
    Unusable,
    bytes_at,
    found_at,
)

A_LINK = Unusable("it is a symbolic link now, or reached through one")


@pytest.fixture
def root_fd(root: Path) -> Iterator[int]:
    with closing(open_root(str(root))) as descriptor:
        yield descriptor


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("link.py", A_LINK),
        ("out.txt", A_LINK),
        ("out/secret.txt", A_LINK),
        ("a.py/b", FoundAbove("a.py")),
        ("src/b.py/c/d", FoundAbove("src/b.py")),
        ("src", FoundDirectory(frozenset({"src/b.py"}), frozenset())),
    ],
)
def test_no_link_is_followed_and_what_is_no_file_is_told(root_fd: int, path: str, found: Found) -> None:
    assert (found_at(root_fd, path), bytes_at(root_fd, path)) == (found, None)


def test_a_pipe_or_a_socket_is_no_file_and_is_not_waited_for(root: Path, root_fd: int) -> None:
    os.mkfifo(root / "pipe")
    here = os.getcwd()
    os.chdir(root)  # the name of a socket may not be long
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)
    for name in ("pipe", "socket"):
        why = f"Cannot read {name!r}: it is not a regular file (a pipe, socket or device)."
        assert found_at(root_fd, name) == Unusable(why)


def test_all_below_a_directory_is_named_and_links_are_not_walked(root: Path, root_fd: int) -> None:
    (root / "d/e/f").mkdir(parents=True)
    (root / "d/x").write_bytes(b"")
    (root / "d/e/y").write_bytes(b"")
    (root / "d/e/out").symlink_to(root.parent / "outside")
    (root / "d/nowhere").symlink_to("nothing")
    assert found_at(root_fd, "d") == FoundDirectory(
        frozenset({"d/x", "d/e/y", "d/nowhere"}), frozenset({"d/e", "d/e/f", "d/e/out"})
    )


def test_a_directory_that_holds_too_much_is_not_looked_through(
    root: Path, root_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "MOST_ENTRIES", 3)
    for name in "abc":
        (root / "src" / name).write_bytes(b"")
    assert found_at(root_fd, "src") == Unusable("it is a directory now, which holds very much")


def test_a_directory_that_cannot_be_looked_into_is_told(
    root: Path, root_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "src/closed").mkdir()
    scandir = os.scandir

    def refuse(folder: int) -> object:
        if os.fstat(folder).st_ino == (root / "src/closed").stat().st_ino:
            raise PermissionError(13, os.strerror(13))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert found_at(root_fd, "src") == Unusable("Cannot read 'src': the file permissions do not allow it.")


def test_directories_that_change_under_the_look_are_told(root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise FileNotFoundError(2, os.strerror(2))

    monkeypatch.setattr(restoring, "status_beneath", gone)
    assert found_at(root_fd, "a.py/b") == Unusable("its directories are being changed at this moment")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(root: Path, root_fd: int) -> None:
    (root / "a.py").chmod(0)
    assert found_at(root_fd, "a.py") == Unusable("Cannot read 'a.py': the file permissions do not allow it.")
