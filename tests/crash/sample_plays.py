"""Plays for the tests of the machinery: writers that are known to be safe, or known not to be."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

OLD, NEW = "old " * 3000, "new " * 4000


def write_naively(folder: str) -> str:
    with open(f"{folder}/file", "w", encoding="utf-8") as file:
        file.write(NEW)
    return "written"


def replace(folder: str) -> str:
    with open(f"{folder}/file.tmp", "w", encoding="utf-8") as file:
        file.write(NEW)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{folder}/file.tmp", f"{folder}/file")
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    return "written"


def replace_or_say(folder: str) -> str:
    """As `replace`; the error's name instead of an error."""
    try:
        return replace(folder)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def write_all(folder: str) -> list[int]:
    """Write with `os.write` until everything is there; how much each call wrote."""
    handle, left, parts = os.open(f"{folder}/file", os.O_WRONLY | os.O_CREAT), NEW.encode(), []
    while left:
        parts.append(os.write(handle, left))
        left = left[parts[-1] :]
    os.close(handle)
    return parts


def commit(folder: str) -> str:
    """A row in each of two tables, in one transaction; or the error's name."""
    try:
        with closing(sqlite3.connect(f"{folder}/db", isolation_level=None)) as database:
            database.execute("PRAGMA synchronous=FULL")
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO one VALUES (?)", ("x" * 9000,))
            database.execute("INSERT INTO two VALUES (?)", ("y" * 9000,))
            database.execute("COMMIT")
    except sqlite3.Error as error:
        return error.sqlite_errorname
    return "committed"


def several_calls(folder: str) -> None:
    """One call of each kind that has a name in Python, and many that are not counted."""
    os.write(1, b"not counted\n")
    sys.stderr.write("nor this\n")
    open(os.devnull, "w").close()
    reading, writing = os.pipe()
    os.write(writing, b"x")
    os.close(writing)
    os.close(reading)
    handle, memory = os.open(folder, os.O_RDONLY), os.memfd_create("memory")
    os.write(memory, b"x")
    file = os.open("a", os.O_RDWR | os.O_CREAT, dir_fd=handle)
    os.write(file, b"content")
    os.writev(file, [b"more", b"parts"])
    os.pwrite(file, b"C", 0)
    os.ftruncate(file, 3)
    os.posix_fallocate(file, 0, 10)
    os.fchmod(file, 0o600)
    os.fchown(file, -1, -1)
    os.utime(file)
    other = os.open(f"{folder}/b", os.O_RDWR | os.O_CREAT)
    os.sendfile(other, file, 0, 2)
    os.copy_file_range(file, other, 1)
    os.fsync(file)
    os.fdatasync(file)
    os.truncate(f"{folder}/b", 1)
    os.chmod("a", 0o644, dir_fd=handle)
    os.mkdir("d", dir_fd=handle)
    os.mkdir(f"{folder}/e")
    os.link(f"{folder}/a", f"{folder}/d/hard")
    os.symlink("a", "soft", dir_fd=handle)
    os.rename("a", "c", src_dir_fd=handle, dst_dir_fd=handle)
    os.replace(f"{folder}/c", f"{folder}/a")
    os.unlink("soft", dir_fd=handle)
    os.unlink(f"{folder}/d/hard")
    os.rmdir(f"{folder}/d")
    os.rmdir("e", dir_fd=handle)
    os.fsync(handle)
    for each in (file, other, handle, memory):
        os.close(each)


def set_attribute(folder: str) -> bool:
    """Whether the file system can do it."""
    file = os.open(f"{folder}/file", os.O_RDWR | os.O_CREAT)
    try:
        os.setxattr(file, "user.mendgraph", b"1")
    except OSError:
        return False
    os.removexattr(file, "user.mendgraph")
    return True


def write_from_threads(folder: str) -> None:
    def act(name: str) -> None:
        Path(folder, name).write_text(name)

    threads = [threading.Thread(target=act, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write_in_a_child(folder: str) -> int:
    """What a child writes is its own affair, before and after it has become another program."""
    child = os.fork()
    if child == 0:
        write_naively(folder)
        command = 'echo more >> "$1"; test -z "$LD_PRELOAD"'
        os.execlp("sh", "sh", "-c", command, "sh", f"{folder}/file")  # noqa: S606 - this very thing is tried
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fill(folder: str) -> list[str]:
    """Try this and that on a disk that may be full: the error's name for each, "" for none."""
    Path(folder, "there").write_text("x")
    tries: list[Callable[[], object]] = [
        lambda: Path(folder, "new").touch(),
        lambda: Path(folder, "there").open("a").close(),
        lambda: Path(folder, "there").write_text("y"),
        lambda: Path(folder, "folder").mkdir(),
        lambda: Path(folder, "there").rename(Path(folder, "moved")),
        lambda: Path(folder, "moved").unlink(),
    ]
    said = []
    for act in tries:
        try:
            act()
        except OSError as error:
            said.append(errno.errorcode[error.errno or 0])
        else:
            said.append("")
    return said


def leave_running(_: object) -> list[int]:
    """A program that outlives the play, and its child, which would outlive both: their process ids."""
    command = ["sh", "-c", "sleep 600 & echo $$ $!; wait"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert program.stdout is not None
    return [int(number) for number in program.stdout.readline().split()]


def hang(fifo: str | None) -> None:
    """For ever; the process id is told first, if anybody reads it."""
    if fifo:
        Path(fifo).write_text(str(os.getpid()))
    threading.Event().wait()


def kill_itself(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave_early(_: object) -> None:
    os._exit(0)


def fail(_: object) -> None:
    raise LookupError("what a play should not do")


def say(words: str) -> str:
    sys.stdout.write(f"{words}\n")
    sys.stderr.write(f"{words}\n")
    return words


def signals(_: object) -> list[bool]:
    """Whether the signals by which one stops a program do what they do by default."""
    return [
        signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        *(signal.getsignal(number) is signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)),
    ]
