import builtins
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files import openat2
from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.files.openat2 import ATTEMPTS, available, open_beneath_by_kernel

needs_openat2 = pytest.mark.skipif(not available(), reason="this kernel has no openat2, or a filter forbids it")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f.txt").write_text("inside")
    for name, target in (("in", "d"), ("out", "../outside"), ("magic", "/proc/self/cwd"), ("absolute", str(root))):
        (root / name).symlink_to(target)
    return root


@pytest.fixture
def root_fd(root: Path) -> Iterator[int]:
    with closing(os.open(root, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        before = len(os.listdir("/dev/fd"))
        yield descriptor
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """The answer is not that of an earlier test, and no later test hears ours."""
    openat2._answers.cache_clear()
    yield
    openat2._answers.cache_clear()


@needs_openat2
@pytest.mark.parametrize("path", ["d/e/f.txt", "./d//e/../e/f.txt"])
def test_a_whole_path_is_opened_in_one_call_and_the_handle_is_not_inherited(root_fd: int, path: str) -> None:
    with closing(open_beneath_by_kernel(root_fd, path, os.O_RDONLY)) as descriptor:
        assert (os.read(descriptor, 100), os.get_inheritable(descriptor)) == (b"inside", False)


@needs_openat2
@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("nope", errno.ENOENT),
        ("d/e/f.txt/", errno.ENOTDIR),
        ("d/e/f.txt/x", errno.ENOTDIR),
        ("in/e/f.txt", errno.ELOOP),
        ("in", errno.ELOOP),
        ("in/", errno.ELOOP),
        ("out/secret.txt", errno.ELOOP),
        ("out/", errno.ELOOP),
        ("absolute/d/e/f.txt", errno.ELOOP),
        ("magic/d", errno.ELOOP),
        ("..", errno.EXDEV),
        ("../outside/secret.txt", errno.EXDEV),
        ("d/../../outside/secret.txt", errno.EXDEV),
        ("/etc/hosts", errno.EXDEV),
        ("x" * 256, errno.ENAMETOOLONG),
    ],
)
def test_what_the_kernel_refuses(root_fd: int, path: str, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        open_beneath_by_kernel(root_fd, path, os.O_RDONLY)
    assert (caught.value.errno, caught.value.filename) == (number, path)


@pytest.mark.parametrize("path", ["out/secret.txt", "out/", "../outside/secret.txt", "/etc/passwd"])
def test_the_losing_control_the_plain_call_gets_out(root_fd: int, path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=root_fd))


def test_a_nul_character_does_not_shorten_the_path(root_fd: int) -> None:
    with pytest.raises(ValueError, match="null byte"):
        open_beneath_by_kernel(root_fd, "d\0/nope", os.O_RDONLY | os.O_DIRECTORY)


def answering(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, int]) -> list[tuple[Any, ...]]:
    """The kernel's next answers, each a handle or -1 and an error; the list receives what it is asked."""
    asked: list[tuple[Any, ...]] = []

    def call(*arguments: Any) -> tuple[int, int]:
        asked.append(arguments)
        return answers[len(asked) - 1]

    monkeypatch.setattr(openat2, "_call", call)
    return asked


def test_a_kernel_that_is_always_disturbed_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, *[(-1, errno.EAGAIN)] * (ATTEMPTS + 1))
    with pytest.raises(BlockingIOError):
        open_beneath_by_kernel(7, "a", os.O_RDONLY)
    assert len(asked) == ATTEMPTS


def without_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def load(name: str, *rest: Any, **named: Any) -> Any:
        if name == "ctypes":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", load)


def on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    answering(monkeypatch)  # nobody may ask


def without_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("machine", [without_ctypes, on_macos, without_a_root])
@pytest.mark.usefixtures("asked_anew")
def test_elsewhere_it_is_not_available(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[[pytest.MonkeyPatch], None]
) -> None:
    machine(monkeypatch)
    answer = available()
    monkeypatch.undo()
    assert answer is False


@needs_openat2
def test_who_watches_what_is_opened_sees_it_like_any_other(root_fd: int) -> None:
    code = (
        "import sys, os; from mendgraph.nodes.execute_tools.files.openat2 import open_beneath_by_kernel as it\n"
        "seen = []; sys.addaudithook(lambda event, args: seen.append(args) if event == 'open' else None)\n"
        f"it({root_fd}, 'd/e', os.O_RDONLY)\n"
        "print(('d/e', None, os.O_RDONLY) in seen)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, pass_fds=(root_fd,))
    assert done.stdout == "True\n"
