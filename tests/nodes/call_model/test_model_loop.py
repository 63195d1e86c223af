import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar

import pytest

from mendgraph.nodes.call_model.driver import ModelLoop

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")
WAIT_S = 20.0


async def here() -> tuple[asyncio.AbstractEventLoop, str]:
    await asyncio.sleep(0)
    return asyncio.get_running_loop(), WHO.get()


def loop_threads() -> int:
    return sum(thread.name == "mendgraph-model-calls" for thread in threading.enumerate())


@pytest.fixture
def own() -> ModelLoop:
    return ModelLoop()


def test_calls_one_after_the_other_have_the_same_loop_and_leave_no_thread(own: ModelLoop) -> None:
    """Connections that are kept belong to the loop that opened them."""
    assert own.loop is None
    loops = {own.run(here())[0] for _ in range(3)}
    assert loops == {own.loop}
    assert loop_threads() == 0


def test_the_work_knows_the_context_of_its_caller(own: ModelLoop) -> None:
    """LangChain's callbacks are found in it."""
    token = WHO.set("me")
    try:
        assert own.run(here())[1] == "me"
    finally:
        WHO.reset(token)


def test_a_caller_inside_of_an_event_loop_is_no_obstacle(own: ModelLoop) -> None:
    """As in a notebook."""

    async def outside() -> bool:
        return own.run(here())[0] is not asyncio.get_running_loop()

    assert asyncio.run(outside())


def test_calls_of_several_threads_run_side_by_side(own: ModelLoop) -> None:
    together = asyncio.Barrier(3)

    async def meet() -> None:
        async with asyncio.timeout(WAIT_S):
            await together.wait()

    threads = [threading.Thread(target=own.run, args=(meet(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert (together.n_waiting, loop_threads()) == (0, 0)


def test_an_interrupted_wait_cancels_the_work_and_lets_it_tidy_up(own: ModelLoop) -> None:
    ended: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    async def endless() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append("tidy")
            raise

    try:
        with pytest.raises(KeyboardInterrupt):
            own.run(endless())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["tidy"]
    assert loop_threads() == 0
    assert own.run(here())[0] is own.loop


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_ends_the_process_ends_no_call_but_its_own(own: ModelLoop, kind: type[BaseException]) -> None:
    """It ends an event loop, and whoever waits for a call in that would wait for ever."""
    begun, ended, told = threading.Event(), asyncio.Event(), list[object]()

    async def end() -> None:
        raise kind

    async def other() -> str:
        begun.set()
        await ended.wait()
        return "answered"

    async def by_a_task() -> None:
        try:
            await asyncio.create_task(end())
        finally:
            ended.set()

    def call(work: Coroutine[object, object, object]) -> None:
        try:
            told.append(own.run(work))
        except BaseException as error:  # noqa: BLE001 - which is what is looked at
            told.append(type(error))

    threads = [threading.Thread(target=call, args=(work,), daemon=True) for work in (other(), by_a_task())]
    for thread in threads:
        thread.start()
        assert begun.wait(WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(map(str, told)) == sorted(["answered", str(kind)])
    assert loop_threads() == 0


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether it is true in a forked process."""
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    ended_by = time.monotonic() + WAIT_S
    while time.monotonic() < ended_by:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_calls_of_its_own(own: ModelLoop) -> None:
    own.run(here())
    theirs = own.loop
    assert in_a_child(lambda: own.run(here())[0] is not theirs)
    assert own.run(here())[0] is theirs
