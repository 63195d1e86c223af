import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial

import pytest

from mendgraph.nodes.workspace.files.deadline import (
    CancellationScope,
    ScopeOverError,
    await_call,
    call_here,
    call_within,
    calls_in_loop,
)


def in_a_thread(seconds: float, function: Callable[[], object]) -> object:
    return call_within(seconds, function)


def in_a_loop(seconds: float, function: Callable[[], object]) -> object:
    return asyncio.run(await_call(function, seconds))


def in_this_thread(seconds: float, function: Callable[[], object]) -> object:
    return call_here(seconds, function, CancellationScope())


def fail(error: BaseException) -> int:
    raise error


def tool_threads_ended() -> bool:
    until = time.monotonic() + 5
    while any(thread.name == "tool" for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.001)
    return all(thread.name != "tool" for thread in threading.enumerate())


def test_call_returns_its_result_or_raises_an_unambiguous_exception() -> None:
    errors = (StopIteration(), StopAsyncIteration(), asyncio.CancelledError(), CancelledError(), GeneratorExit())
    for way in (in_a_thread, in_a_loop, in_this_thread):
        assert way(5, lambda: 1) == 1
        for error in errors:
            with pytest.raises(RuntimeError, match=f"{type(error).__name__} was raised"):
                way(5, partial(fail, error))
    assert tool_threads_ended()


def test_timeout_does_not_wait_for_the_worker() -> None:
    release = threading.Event()
    for way in (in_a_thread, in_a_loop):
        with pytest.raises(TimeoutError):
            way(0.01, release.wait)
    workers = [thread for thread in threading.enumerate() if thread.name == "tool"]
    assert [worker.daemon for worker in workers] == [True, True]
    release.set()
    assert tool_threads_ended()


def test_timeout_in_the_main_thread_leaves_no_thread() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"given up after 0\.2 s"):
        in_this_thread(0.2, lambda: time.sleep(30))
    assert time.monotonic() - started < 2
    assert [thread for thread in threading.enumerate() if thread.name == "tool"] == []


def test_without_a_deadline_the_call_runs_in_the_callers_thread() -> None:
    def function() -> tuple[float, int]:
        return signal.getitimer(signal.ITIMER_REAL)[0], threading.get_ident()

    assert in_this_thread(float("inf"), function) == (0.0, threading.get_ident())
    assert in_a_thread(5, lambda: in_this_thread(float("inf"), lambda: 1)) == 1


def test_handler_and_timer_set_by_the_call_are_kept() -> None:
    def install(interval: float) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 50, interval)

    for interval in (0.0, 1.0, 50.0):
        try:
            in_this_thread(5, partial(install, interval))
            assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
            seconds, again = signal.getitimer(signal.ITIMER_REAL)
            assert (seconds > 5, again) == (True, interval)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_timer_in_use_is_not_replaced() -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        assert in_this_thread(5, lambda: threading.current_thread().name) == "tool"
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGALRM, before)


def test_nothing_changes_after_a_timeout() -> None:
    for way in (call_here, call_within):
        scope, entered = CancellationScope(), threading.Event()

        def wait(scope: CancellationScope = scope, entered: threading.Event = entered) -> None:
            try:
                entered.set()
                deadline = time.monotonic() + 5
                while not scope.over and time.monotonic() < deadline:
                    pass
            finally:
                with scope.effect():
                    pytest.fail("an effect after the timeout")

        with pytest.raises((TimeoutError, ScopeOverError)):
            way(0.05, wait, scope)
        assert entered.is_set()
        assert tool_threads_ended()


def test_started_effect_is_finished_before_the_timeout() -> None:
    scope, done = CancellationScope(), []

    def write() -> str:
        with scope.effect():
            time.sleep(0.2)
            done.append(True)
        time.sleep(30)
        return "never"

    with pytest.raises(TimeoutError):
        call_here(0.05, write, scope)
    assert done == [True]


def test_call_in_the_loop_is_cancelled_when_its_thread_is_left() -> None:
    async def wait(started: asyncio.Event, over: asyncio.Event) -> None:
        started.set()
        await over.wait()

    async def is_cancelled() -> bool:
        started, over = asyncio.Event(), asyncio.Event()
        with calls_in_loop() as in_loop:
            waiting = asyncio.ensure_future(asyncio.to_thread(in_loop, wait(started, over)))
            await started.wait()
        await asyncio.wait({waiting}, timeout=5)
        over.set()
        await asyncio.wait({waiting})
        return waiting.cancelled()

    assert asyncio.run(is_cancelled())


def test_closed_scope_finishes_the_running_effect_and_starts_no_other() -> None:
    step = CancellationScope()
    call = CancellationScope(step)
    step.close()
    with call.effect():
        assert call.busy
    assert (step.closed, call.closed) == (True, True)
    assert (step.over, call.over) == (False, False)


def test_pause_ends_with_the_scope() -> None:
    scope = CancellationScope()
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(scope.pause(60)))
    thread.start()
    scope.revoke()
    thread.join(10)
    assert ended == [False]
    assert not scope.pause(60)
