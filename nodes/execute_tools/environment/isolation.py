"""A call in a process of its own, which is killed with its process group when its time is over."""

import ctypes
import os
import pickle
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar, cast

Result = TypeVar("Result")

_CHUNK = 65_536
_SET_PDEATHSIG = 1
"""Source: prctl(2). It is about the thread that forks, which waits for the child."""


def call_isolated(seconds: float, function: Callable[[], Result]) -> Result:
    """What `function` returns or raises in a copy of this process; TimeoutError when the time is over.

    What it changes in memory is lost; what it returns has to be picklable. The process and its process group are gone
    when this returns.

    Raises:
        ChildProcessError: the process ended without an answer, by a signal or by leaving on its own.
    """
    parent, (read_end, write_end) = os.getpid(), os.pipe()
    try:
        with warnings.catch_warnings():  # the copy runs one function and leaves, so other threads' locks do not matter
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if child == 0:
        _end_with(parent)
        _answer(write_end, function)
    os.close(write_end)
    try:
        answer = _read_within(read_end, seconds)
    finally:
        os.close(read_end)
        status = _end(child)
    if not answer:
        raise ChildProcessError(_how_it_ended(status))
    good, value = pickle.loads(answer)  # noqa: S301 - our own child's words
    if good:
        return cast("Result", value)
    raise value


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent is: nothing may happen after the run that it belongs to."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed in between
            os._exit(1)


def _answer(write_end: int, function: Callable[[], Any]) -> NoReturn:
    """The child's whole life."""
    try:
        os.setsid()
        try:
            answer = pickle.dumps((True, function()))
        except BaseException as error:  # noqa: BLE001 - the parent raises it again
            answer = _raised(error)
        rest = memoryview(answer)
        while rest:
            rest = rest[os.write(write_end, rest) :]
    finally:
        os._exit(0)


def _raised(error: BaseException) -> bytes:
    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)  # noqa: S301 - our own words; some exceptions cannot be built again
    except Exception:  # noqa: BLE001 - then its words have to do
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return answer


def _read_within(descriptor: int, seconds: float) -> bytes:
    deadline = time.monotonic() + seconds
    answer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise TimeoutError(f"given up after {seconds:g} s")
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                return bytes(answer)
            answer += chunk


def _end(child: int) -> int:
    """Kill what is left of the child's group, and take its status."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its process was ended by signal {os.WTERMSIG(status)}"
    return "its process left without an answer"
