import asyncio
import contextvars
import threading

import pytest

from nodes.execute_tools.environment.deadline import await_call, call_within, monotonic_ms


def fail(error: BaseException) -> int:
    raise error


def test_the_clock_never_goes_back() -> None:
    assert monotonic_ms() <= monotonic_ms()


def test_a_call_returns_its_result() -> None:
    assert call_within(5, lambda: 1) == 1
    assert asyncio.run(await_call(lambda: 1, 5)) == 1
    assert asyncio.run(await_call(lambda: 1)) == 1


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_a_call_raises_what_it_raised(error: BaseException) -> None:
    with pytest.raises(type(error)):
        call_within(5, lambda: fail(error))


@pytest.mark.parametrize("error", [StopIteration(), StopAsyncIteration(), asyncio.CancelledError(), GeneratorExit()])
def test_what_would_mean_something_else_elsewhere_becomes_a_runtime_error(error: BaseException) -> None:
    expected = f"{type(error).__name__} was raised"
    with pytest.raises(RuntimeError, match=expected):
        call_within(5, lambda: fail(error))
    with pytest.raises(RuntimeError, match=expected):
        asyncio.run(await_call(lambda: fail(error), 5))


def test_a_timeout_does_not_wait_for_the_worker() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        call_within(0.01, release.wait)
    with pytest.raises(TimeoutError):
        asyncio.run(await_call(release.wait, 0.01))
    workers = [thread for thread in threading.enumerate() if thread.name == "tool"]
    assert [worker.daemon for worker in workers] == [True, True]
    release.set()
    for worker in workers:
        worker.join(5)
        assert not worker.is_alive()


def test_context_variables_are_seen_in_the_worker() -> None:
    variable = contextvars.ContextVar("variable", default="no")
    variable.set("yes")
    assert call_within(5, variable.get) == "yes"


def test_the_event_loop_stays_free() -> None:
    async def both() -> bool:
        event = threading.Event()
        waiting = asyncio.ensure_future(await_call(lambda: event.wait(5)))
        await asyncio.sleep(0)
        event.set()
        return await waiting

    assert asyncio.run(both()) is True
