import errno
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from nodes.execute_tools.environment import audit_log
from nodes.execute_tools.environment.audit_log import LOCK_NAME, AuditLog
from tests.architecture.house import ROOT

WRITER = """
import sys
from nodes.execute_tools.environment.audit_log import AuditLog
log = AuditLog(sys.argv[1], max_bytes=int(sys.argv[3]), keep=int(sys.argv[4]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[5])):
    log.write({"who": sys.argv[2], "n": number, "padding": "x" * (number * 37 % 400)})
print(log.lost)
"""


@pytest.fixture(autouse=True)
def no_handle_is_left_open() -> Iterator[None]:
    before = len(os.listdir("/dev/fd"))
    yield
    assert len(os.listdir("/dev/fd")) == before


def records(path: Path) -> list[Any]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def files(folder: Path) -> dict[str, list[Any]]:
    names = sorted(name for name in os.listdir(folder) if name != LOCK_NAME)
    return {name: records(folder / name) for name in names}


def test_nothing_is_touched_before_the_first_event(tmp_path: Path) -> None:
    assert AuditLog(str(tmp_path / "missing")).lost == 0
    assert os.listdir(tmp_path) == []


def test_each_event_is_a_line_in_a_private_file(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        log = AuditLog(str(tmp_path))
        log.write({"event": "one\n"})
        log.write({"event": "two"})
    finally:
        os.umask(old)
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"event":"one\\n"}\n{"event":"two"}\n'
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    assert log.lost == 0


@pytest.mark.parametrize(
    ("keep", "found"),
    [
        (1, {"audit.jsonl": [8]}),
        (2, {"audit.jsonl": [8], "audit.jsonl.1": [6, 7]}),
        (3, {"audit.jsonl": [8], "audit.jsonl.1": [6, 7], "audit.jsonl.2": [4, 5]}),
        (
            9,
            {
                "audit.jsonl": [8],
                "audit.jsonl.1": [6, 7],
                "audit.jsonl.2": [4, 5],
                "audit.jsonl.3": [2, 3],
                "audit.jsonl.4": [0, 1],
            },
        ),
    ],
)
def test_files_are_turned_over_before_they_pass_their_size_and_the_oldest_goes(
    tmp_path: Path, keep: int, found: dict[str, list[int]]
) -> None:
    log = AuditLog(str(tmp_path), max_bytes=2 * len(b'{"n":0}\n'), keep=keep)
    for number in range(9):
        log.write({"n": number})
    assert {name: [each["n"] for each in lines] for name, lines in files(tmp_path).items()} == found
    assert log.lost == 0


def test_threads_lose_nothing(tmp_path: Path) -> None:
    shared, start = AuditLog(str(tmp_path), max_bytes=500, keep=100), threading.Barrier(6)

    def write(who: int) -> None:
        log = shared if who % 2 else AuditLog(str(tmp_path), max_bytes=500, keep=100)
        start.wait()
        for number in range(50):
            log.write({"who": who, "n": number})
        assert log.lost == 0

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    found = files(tmp_path)
    assert len(found) > 5
    assert sorted((each["who"], each["n"]) for lines in found.values() for each in lines) == [
        (who, number) for who in range(6) for number in range(50)
    ]
    assert max((tmp_path / name).stat().st_size for name in found) <= 500


@contextmanager
def writer(folder: Path, who: str, keep: int) -> Iterator[subprocess.Popen[str]]:
    """A process that says "ready", waits for a line, writes 300 events and says how many were lost."""
    command = [sys.executable, "-c", WRITER, str(folder), who, "4000", str(keep), "300"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("keep", [100, 2])
def test_two_processes_write_whole_lines_while_files_are_turned_over(tmp_path: Path, keep: int) -> None:
    with ExitStack() as stack:
        writers = [stack.enter_context(writer(tmp_path, who, keep)) for who in ("a", "b")]
        for each in writers:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in writers:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        assert [each.communicate(timeout=120)[0] for each in writers] == ["0\n", "0\n"]
    found = files(tmp_path)
    assert all((tmp_path / name).stat().st_size <= 4_000 for name in found)
    oldest_first = sorted(found, key=lambda name: -int(name.partition("jsonl.")[2] or 0))
    for who in ("a", "b"):
        numbers = [each["n"] for name in oldest_first for each in found[name] if each["who"] == who]
        assert numbers == (list(range(300)) if keep == 100 else list(range(300))[300 - len(numbers) :])
    assert len(found) == 2 if keep == 2 else len(found) > 10


@pytest.mark.parametrize("torn", [b'{"n":', b"\x00\x00\x00"])
def test_what_a_kill_has_torn_spoils_no_other_line(tmp_path: Path, torn: bytes) -> None:
    log = AuditLog(str(tmp_path))
    log.write({"n": 0})
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(torn)
    log.write({"n": 1})
    log.write({"n": 2})
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"n":0}\n' + torn + b'\n{"n":1}\n{"n":2}\n'


def test_a_line_that_the_disk_took_only_in_part_is_lost_and_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = AuditLog(str(tmp_path)), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
        log.write({"n": 0})
    assert log.lost == 1
    log.write({"n": 1})
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"n\n{"n":1}\n'
    assert log.lost == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("function", ["open", "write", "rename", "fstat"])
def test_a_failure_anywhere_is_counted_and_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    log = AuditLog(str(tmp_path), max_bytes=1)
    log.write({"n": 0})
    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        log.write({"n": 1})
        log.write({"n": 2})
    assert log.lost == 2
    log.write({"n": 3})
    assert (log.lost, records(tmp_path / "audit.jsonl")) == (2, [{"n": 3}])


def test_a_folder_that_is_missing_or_a_link_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for name in ("missing", "link", "real/audit.jsonl/x", "nul\x00"):
        log = AuditLog(str(tmp_path / name))
        log.write({"n": 0})
        assert log.lost == 1
    assert (os.listdir(tmp_path / "real"), sorted(os.listdir(tmp_path))) == ([], ["link", "real"])


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_takes_nothing_and_nobody_waits_for_it(tmp_path: Path, kind: str) -> None:
    place, outside = tmp_path / "log" / "audit.jsonl", tmp_path / "outside"
    place.parent.mkdir()
    outside.write_text("kept")
    if kind == "link":
        place.symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    log = AuditLog(str(place.parent))
    log.write({"n": 0})
    assert (log.lost, outside.read_text()) == (1, "kept")


def test_a_turn_that_never_comes_costs_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "LONGEST_WAIT_S", 0.05)
    log = AuditLog(str(tmp_path), max_bytes=1)
    with FileLock(str(tmp_path / LOCK_NAME)):
        log.write({"n": 0})
        log.write({"n": 1})
    assert (files(tmp_path), log.lost) == ({"audit.jsonl": [{"n": 0}, {"n": 1}]}, 0)
    log.write({"n": 2})
    assert files(tmp_path) == {"audit.jsonl": [{"n": 2}], "audit.jsonl.1": [{"n": 0}, {"n": 1}]}


def test_where_the_file_system_has_no_locks_lines_are_appended_and_no_file_is_turned_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    log = AuditLog(str(tmp_path), max_bytes=1)
    monkeypatch.setattr("fcntl.flock", without)
    log.write({"n": 0})
    log.write({"n": 1})
    assert (files(tmp_path), log.lost) == ({"audit.jsonl": [{"n": 0}, {"n": 1}]}, 0)


def test_the_lock_is_given_back_although_a_copy_of_the_process_has_the_handle(tmp_path: Path) -> None:
    copies: list[int] = []

    def copying(path: str, *arguments: Any, **options: Any) -> int:
        descriptor = opened(path, *arguments, **options)
        if path == LOCK_NAME:
            copies.append(os.dup(descriptor))  # what a fork would do
        return descriptor

    opened = os.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", copying)
        AuditLog(str(tmp_path), max_bytes=1).write({"n": 0})
    AuditLog(str(tmp_path), max_bytes=1).write({"n": 1})
    assert files(tmp_path) == {"audit.jsonl": [{"n": 1}], "audit.jsonl.1": [{"n": 0}]}
    for copy in copies:
        os.close(copy)
