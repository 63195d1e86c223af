import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

from nodes.execute_tools.environment.isolation import _answer, _raised, call_isolated


def fail(error: BaseException) -> None:
    raise error


def children() -> str:
    found = subprocess.run(
        ["ps", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return "\n".join(line for line in found.stdout.splitlines() if "ps -o" not in line)


def test_it_gives_what_the_function_gives() -> None:
    before = children()
    assert call_isolated(5, lambda: {"pid": os.getpid() != 0, "text": "x" * 300_000}) == {
        "pid": True,
        "text": "x" * 300_000,
    }
    assert call_isolated(5, os.getpid) != os.getpid()
    assert children() == before


def test_what_it_changes_in_memory_is_lost() -> None:
    seen: list[int] = []
    call_isolated(5, lambda: seen.append(1))
    assert seen == []


def test_it_raises_what_the_function_raises() -> None:
    with pytest.raises(ValueError, match="bad"):
        call_isolated(5, lambda: fail(ValueError("bad")))


def test_an_exception_that_cannot_travel_is_told_in_words() -> None:
    class OddError(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(f"{a} and {b}")

    with pytest.raises(RuntimeError, match="OddError: 1 and 2"):
        call_isolated(5, lambda: fail(OddError(1, 2)))
    for error, told in ((OddError(1, 2), "RuntimeError('OddError: 1 and 2')"), (ValueError("x"), "ValueError('x')")):
        good, travelled = pickle.loads(_raised(error))  # noqa: S301 - our own words
        assert (good, repr(travelled)) == (False, told)


@pytest.mark.parametrize(("error", "told"), [(None, "(True, 7)"), (ValueError("bad"), "(False, ValueError('bad'))")])
def test_a_copy_answers_and_leaves(monkeypatch: pytest.MonkeyPatch, error: Exception | None, told: str) -> None:
    class LeftError(BaseException):
        """Stands for the end of the process."""

    def leave(status: int) -> None:
        assert status == 0
        raise LeftError

    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(os, "_exit", leave)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as answer:
        with os.fdopen(write_end, "wb"), pytest.raises(LeftError):
            _answer(write_end, lambda: 7 if error is None else fail(error))
        assert repr(pickle.load(answer)) == told  # noqa: S301 - our own words


def test_where_no_process_can_be_made_no_handle_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", refused)
    handles = os.listdir("/dev/fd")
    with pytest.raises(OSError, match="no more processes"):
        call_isolated(5, lambda: 1)
    assert len(os.listdir("/dev/fd")) == len(handles)


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)])
def test_a_process_that_ends_without_an_answer_is_an_error(end: object) -> None:
    with pytest.raises(ChildProcessError, match=r"its process (was ended by signal 9|left without an answer)"):
        call_isolated(5, end)  # type: ignore[arg-type] # callables of no type


def test_a_timeout_returns_at_once_and_leaves_no_process() -> None:
    mark = f"mendgraph-{os.getpid()}-{time.monotonic_ns()}"

    def slow() -> None:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(30)", mark], check=False)

    before, handles = children(), len(os.listdir("/dev/fd"))
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        call_isolated(0.2, slow)
    assert time.monotonic() - started < 2
    assert children() == before
    assert len(os.listdir("/dev/fd")) == handles
    deadline = time.monotonic() + 5
    while mark in subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout:
        assert time.monotonic() < deadline, "the child's own child still runs"


def test_it_works_beside_other_threads() -> None:
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(call_isolated(20, lambda: 1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [1] * 4
