import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.handles import (
    closing,
    handle_name,
    open_beneath,
    open_directory,
    open_regular,
    status_beneath,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f.txt").write_text("inside")
    (root / "file_out").symlink_to(outside / "secret.txt")
    (root / "dir_out").symlink_to(outside)
    (root / "dir_in").symlink_to("d")
    return root


@pytest.fixture
def root_fd(tree: Path) -> Iterator[int]:
    with closing(os.open(tree, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        before = len(os.listdir("/dev/fd"))
        yield descriptor
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"


@pytest.mark.parametrize(
    "parts", [("file_out",), ("dir_out", "secret.txt"), ("dir_out",), ("dir_in", "e", "f.txt"), ("dir_in",)]
)
def test_no_link_is_followed_wherever_it_stands_and_wherever_it_leads(root_fd: int, parts: tuple[str, ...]) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)) as caught:
        open_beneath(root_fd, parts, os.O_RDONLY)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("part", ["", "..", "d/e", "dir_out/"])
def test_what_is_not_one_part_is_never_passed_on(root_fd: int, part: str) -> None:
    with pytest.raises(ValueError, match="not one part"):
        open_beneath(root_fd, (part,), os.O_RDONLY)
    with pytest.raises(ValueError, match="not one part"):
        open_beneath(root_fd, (part, "x"), os.O_RDONLY)
    with pytest.raises(ValueError, match="not one part"):
        open_regular(root_fd, ("d", part), os.O_RDONLY)
    with pytest.raises(ValueError, match="not one part"):
        open_directory(root_fd, (part, "new"), made=[])
    with pytest.raises(ValueError, match="not one part"):
        status_beneath(root_fd, ("d", part))


def test_losing_control_a_slash_at_the_end_defeats_o_nofollow(root_fd: int) -> None:
    with closing(os.open("dir_out/", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=root_fd)) as descriptor:
        assert os.listdir(descriptor) == ["secret.txt"]


@pytest.mark.parametrize(
    ("parts", "number"),
    [
        (("nope",), errno.ENOENT),
        (("d", "e", "f.txt", "x"), errno.ENOTDIR),
        (("loop",), errno.ESTALE),
        (("magic", "d"), errno.ESTALE),
        (("dangling",), errno.ESTALE),
    ],
)
@pytest.mark.parametrize("function", [open_beneath, open_directory, open_regular, status_beneath])
def test_errors_say_what_is_there(
    tree: Path, root_fd: int, function: Callable[..., Any], parts: tuple[str, ...], number: int
) -> None:
    for name, target in (("loop", "loop"), ("magic", "/proc/self/cwd"), ("dangling", "nowhere")):
        (tree / name).symlink_to(target)
    arguments = (root_fd, parts, os.O_RDONLY) if function in {open_beneath, open_regular} else (root_fd, parts)
    if function is status_beneath and number == errno.ESTALE and len(parts) == 1:
        assert stat.S_ISLNK(status_beneath(root_fd, parts).st_mode)
        return
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        function(*arguments)
    assert caught.value.errno == number


def test_directories_are_not_made_through_a_link(tree: Path, root_fd: int) -> None:
    made: list[str] = []
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        open_directory(root_fd, ("dir_out", "new"), made=made)
    assert made == []
    assert os.listdir(tree / "dir_out") == ["secret.txt"]


@pytest.mark.parametrize(
    ("kind", "number"), [("fifo", errno.ENXIO), ("socket", errno.ENXIO), ("directory", errno.EISDIR)]
)
def test_what_is_no_regular_file_is_refused_without_waiting(
    tree: Path, root_fd: int, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    if kind == "fifo":
        os.mkfifo("it")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("it")
    else:
        os.mkdir("it")
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        open_regular(root_fd, ("it",), os.O_RDONLY)
    assert caught.value.errno == number


def test_fifo_that_takes_the_place_of_a_file_is_found_out_on_the_handle(
    tree: Path, root_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_status = os.stat(tree / "d" / "e" / "f.txt")
    os.mkfifo(tree / "pipe")
    monkeypatch.setattr(os, "stat", lambda *_, **__: file_status)
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        open_regular(root_fd, ("pipe",), os.O_RDONLY)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels say it in other ways")
@pytest.mark.parametrize("has_another_name", [False, True])
def test_deleted_file_has_no_name(tree: Path, root_fd: int, has_another_name: bool) -> None:
    descriptor, _ = open_regular(root_fd, ("d", "e", "f.txt"), os.O_RDONLY)
    if has_another_name:
        os.link(tree / "d" / "e" / "f.txt", tree / "other")
    (tree / "d" / "e" / "f.txt").unlink()
    with closing(descriptor):
        assert handle_name(descriptor) is None


def test_without_proc_a_handle_has_no_name(root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "")

    monkeypatch.setattr(os, "readlink", refuse)
    monkeypatch.setattr("sys.platform", "linux")
    assert handle_name(root_fd) is None


def test_on_macos_the_kernel_is_asked_in_its_own_way(root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def answer(descriptor: int, request: int, _: bytes) -> bytes:
        asked.append((descriptor, request))
        return b"/Users/me/x".ljust(1024, b"\0")

    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(fcntl, "fcntl", answer)
    assert (handle_name(root_fd), asked) == ("/Users/me/x", [(root_fd, 50)])
