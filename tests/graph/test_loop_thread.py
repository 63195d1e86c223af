"""An event loop in a thread of its own: what runs there, how it is left, and what an interruption does to it."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator
from contextvars import ContextVar

import pytest

from graph.loop_thread import LoopThread

WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")


async def place() -> tuple[str, str]:
    return threading.current_thread().name, WHERE.get()


def test_work_runs_in_the_thread_with_the_callers_variables() -> None:
    token = WHERE.set("here")
    with LoopThread() as loop:
        assert loop.run(place()) == ("mendgraph-loop", "here")
    WHERE.reset(token)
    assert "mendgraph-loop" not in [each.name for each in threading.enumerate()]


def test_what_fails_there_is_raised_here() -> None:
    async def fails() -> None:
        raise LookupError("there")

    with LoopThread() as loop, pytest.raises(LookupError, match="there"):
        loop.run(fails())


def test_what_was_begun_goes_on_in_between() -> None:
    async def begun() -> "asyncio.Task[str]":
        return asyncio.create_task(asyncio.sleep(0, "done"))

    async def ended(task: "asyncio.Task[str]") -> str:
        return await task

    with LoopThread() as loop:
        assert loop.run(ended(loop.run(begun()))) == "done"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_wait_that_is_interrupted_cancels_its_work(monkeypatch: pytest.MonkeyPatch, stubborn: bool) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            if stubborn:
                raise LookupError("on the way out") from None
            raise

    class Interrupted(threading.Event):
        waited = False

        def wait(self, timeout: float | None = None) -> bool:
            if not self.waited:
                self.waited = begun.wait(60)
                raise KeyboardInterrupt
            return super().wait(timeout)

    with LoopThread() as loop:
        monkeypatch.setattr("nodes.call_model.model_loop.Event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(for_ever())
        monkeypatch.undo()
        assert loop.run(place())[0] == "mendgraph-loop"
    gc.collect()  # asyncio would tell now of what nobody has looked at
    assert cancelled.is_set()


def test_a_generator_that_was_left_is_closed() -> None:
    closed = threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    async def first(given: AsyncGenerator[int, None]) -> int:
        return await anext(given)

    left = numbers()
    with LoopThread() as loop:
        assert loop.run(first(left)) == 1
    assert closed.is_set()
