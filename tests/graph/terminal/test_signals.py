"""What signals do while a session is open: to a turn in the event loop, and outside of one."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from signal import SIGINT, SIGTERM

import pytest

from graph.terminal.signals import Signals, Terminated


class Scene:
    """Signals, what they asked for and told, and an event loop in which turns run."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[str] = []
        self.signals = Signals(self.asked.append, lambda: self.told.append("stopping"))

    def turn(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run a turn that does this."""

        async def run() -> None:
            with self.signals.draining():
                await act()

        self.signals.begin()
        with asyncio.Runner() as runner:
            runner.run(run())


@pytest.fixture
def scene() -> Iterator[Scene]:
    before = handlers()
    scene = Scene()
    with scene.signals:
        yield scene
    assert handlers() == before


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (SIGINT, SIGTERM)]


def raising(*numbers: signal.Signals) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        for number in numbers:
            signal.raise_signal(number)
        await asyncio.sleep(0)

    return act


@pytest.mark.parametrize(("number", "by"), [(SIGINT, "Ctrl-C"), (SIGTERM, "SIGTERM")])
def test_the_first_signal_asks_and_the_turn_goes_on(scene: Scene, number: signal.Signals, by: str) -> None:
    scene.turn(raising(number))
    assert (scene.asked, scene.told) == ([f"by {by}"], ["stopping"])
    assert (scene.signals.stopping, scene.signals.last) == (True, by)
    assert scene.signals.terminated is (number == SIGTERM)


def test_a_turn_that_nobody_stops_is_left_alone(scene: Scene) -> None:
    scene.turn(raising())
    assert (scene.asked, scene.told) == ([], [])
    assert (scene.signals.stopping, scene.signals.last, scene.signals.terminated) == (False, "Ctrl-C", False)


@pytest.mark.parametrize("numbers", [(SIGINT, SIGINT), (SIGINT, SIGTERM), (SIGTERM, SIGINT), (SIGTERM, SIGTERM)])
def test_the_second_signal_cancels_the_turn(scene: Scene, numbers: tuple[signal.Signals, ...]) -> None:
    with pytest.raises(asyncio.CancelledError):
        scene.turn(raising(*numbers))
    assert (len(scene.asked), scene.signals.terminated) == (1, SIGTERM in numbers)


def test_the_second_signal_wakes_a_loop_in_which_nothing_happens(scene: Scene) -> None:
    async def wait() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, SIGINT)
        asyncio.get_running_loop().call_soon(signal.raise_signal, SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        scene.turn(wait)


@pytest.mark.parametrize(("number", "kind"), [(SIGINT, KeyboardInterrupt), (SIGTERM, Terminated)])
def test_the_third_signal_ends_even_what_does_not_let_itself_be_cancelled(
    scene: Scene, number: signal.Signals, kind: type[BaseException]
) -> None:
    async def stay() -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        signal.raise_signal(number)

    with pytest.raises(kind) as caught:
        scene.turn(stay)
    assert caught.type is kind


def test_each_turn_has_a_first_signal_of_its_own(scene: Scene) -> None:
    scene.turn(raising(SIGTERM))
    scene.turn(raising(SIGINT))
    assert scene.asked == ["by SIGTERM", "by Ctrl-C"]
    assert scene.signals.terminated


def test_a_turn_in_several_parts_is_one_turn(scene: Scene) -> None:
    async def two_parts() -> None:
        for number in (SIGINT, SIGTERM):
            with scene.signals.draining():
                signal.raise_signal(number)

    with pytest.raises(asyncio.CancelledError), asyncio.Runner() as runner:
        runner.run(two_parts())
    assert scene.asked == ["by Ctrl-C"]


@pytest.mark.parametrize(("number", "kind"), [(SIGINT, KeyboardInterrupt), (SIGTERM, Terminated)])
def test_where_no_turn_is_at_work_a_signal_raises(
    scene: Scene, number: signal.Signals, kind: type[BaseException]
) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(number)
    assert (caught.type, scene.signals.terminated, scene.asked) == (kind, number == SIGTERM, [])


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_what_is_ignored_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        scene = Scene()
        with scene.signals:
            signal.raise_signal(number)
            scene.turn(raising(number, number))
        assert (scene.asked, signal.getsignal(number)) == ([], signal.SIG_IGN)
    finally:
        signal.signal(number, before)


def test_in_another_thread_there_are_no_signals() -> None:
    before = handlers()
    found: list[list[object]] = []

    async def look() -> None:
        found.append(handlers())

    def run() -> None:
        scene = Scene()
        with scene.signals:
            scene.turn(look)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
    assert found == [before]
