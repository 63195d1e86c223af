"""The status line while a turn is at work: told of events, drawn anew as time passes, gone afterwards."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from rich.console import Console

from graph.events import ToolStarted
from graph.terminal import live_status
from graph.terminal.live_line import LiveLine
from graph.terminal.live_status import LiveStatus
from nodes.call_model.limits import RunLimits
from nodes.records import ToolCall
from tests.graph.terminal.small_terminal import SmallTerminal

GREP = ToolStarted(ToolCall(call_id="1", tool="grep", arguments={"pattern": "x"}, raw_arguments="{}"))


class Scene:
    """A status on a terminal whose clock stands still unless a test moves it."""

    def __init__(self) -> None:
        self.terminal, self.now_s = SmallTerminal(100), 0.0
        console = Console(file=cast("Any", self.terminal), width=100, _environ={"TERM": "xterm"})
        self.live = LiveLine(console, lambda: self.now_s)
        self.status = LiveStatus(self.live, RunLimits(), lambda: False)

    @property
    def shown(self) -> str:
        return "|".join(self.terminal.shown)


def test_it_is_there_while_a_turn_is_at_work() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        with scene.status.shown():
            assert scene.shown.endswith("0 s · waiting for the model")
            scene.status.note(GREP)
            scene.live.refresh()
            assert scene.shown.endswith("0 s · running grep 'x'")
        assert scene.shown == ""

    asyncio.run(turn())


def test_it_is_drawn_anew_as_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_status, "LOOK_S", 0.001)
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        drawn = asyncio.Event()
        write = scene.terminal.write

        def note(text: str) -> int:
            if " · 5 s · " in text:
                drawn.set()
            return write(text)

        with scene.status.shown():
            scene.now_s = 5.0
            monkeypatch.setattr(scene.terminal, "write", note)
            async with asyncio.timeout(60):
                await drawn.wait()

    asyncio.run(turn())
    assert scene.shown == ""


def test_the_time_between_two_parts_of_a_turn_is_a_persons() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def part() -> str:
        with scene.status.shown():
            scene.now_s += 3.0
            scene.live.refresh()
            return scene.shown

    assert " · 3 s · " in asyncio.run(part())
    scene.now_s += 100.0
    assert " · 6 s · " in asyncio.run(part())


def test_it_goes_when_a_turn_is_cut_off() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        with scene.status.shown():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(turn())
    assert scene.shown == ""


def test_a_person_who_wants_it_to_stop_is_told_so() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        with scene.status.shown():
            scene.status.stopping()
            scene.live.refresh()
            assert scene.shown.endswith("stopping after the running step")

    asyncio.run(turn())


def test_a_terminal_that_is_gone_needs_nothing_taken_away() -> None:
    scene = Scene()
    scene.status.begin(dict)
    scene.live.begin(lambda *_: "working")

    def gone(_: str) -> int:
        raise OSError

    cast("Any", scene.terminal).write = gone
    scene.status.end()


def test_without_a_terminal_nothing_is_asked_and_nothing_is_done() -> None:
    status = LiveStatus(None, RunLimits(), lambda: False)

    def usage() -> Mapping[str, Any]:
        raise AssertionError

    status.begin(usage)
    status.note(GREP)
    status.stopping()
    status.end()
    with status.shown():  # outside of any event loop, too
        pass
