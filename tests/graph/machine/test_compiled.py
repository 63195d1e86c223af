import asyncio
import errno
import threading
from typing import Any

import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from mendgraph.graph.machine import build as compiled
from mendgraph.graph.machine.build import NodeTimeoutError, TwoWays, bounded
from mendgraph.nodes.execute_tools.files.deadline import ScopeOverError


class State(TypedDict, total=False):
    said: str
    unseen: int


class Slice(TypedDict, total=False):
    said: str


def here(state: Slice) -> dict[str, Any]:
    get_stream_writer()("here")
    return {"said": f"{sorted(state)} here"}


async def in_the_loop(state: Slice) -> dict[str, Any]:
    await asyncio.sleep(0)
    get_stream_writer()("in the loop")
    return {"said": f"{sorted(state)} in the loop"}


def machine() -> Any:
    builder = StateGraph(State)
    builder.add_node("speak", TwoWays("speak", here, in_the_loop), input_schema=Slice)
    builder.add_edge(START, "speak")
    builder.add_edge("speak", END)
    return builder.compile()


def test_a_sync_run_calls_the_one_and_an_async_run_awaits_the_other() -> None:
    given = {"said": "", "unseen": 1}
    parts = [*machine().stream(given, stream_mode=["custom", "updates"])]
    assert parts == [("custom", "here"), ("updates", {"speak": {"said": "['said'] here"}})]

    async def parts_of() -> list[Any]:
        return [part async for part in machine().astream(given, stream_mode=["custom", "updates"])]

    assert asyncio.run(parts_of()) == [
        ("custom", "in the loop"),
        ("updates", {"speak": {"said": "['said'] in the loop"}}),
    ]


def test_a_node_that_does_not_end_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "NODE_S", 0.05)
    release = threading.Event()
    node = bounded("speak", lambda _: release.wait(30))
    with pytest.raises(NodeTimeoutError, match=r"^The step speak did not end within 0\.05 s"):
        node.invoke({})
    with pytest.raises(NodeTimeoutError, match=r"^The step speak did not end within 0\.05 s"):
        asyncio.run(node.ainvoke({}))
    release.set()


@pytest.mark.parametrize("error", [OSError(errno.ETIMEDOUT, "no answer"), ScopeOverError("over"), ValueError("bad")])
def test_an_error_of_a_nodes_own_is_not_told_as_our_deadline(error: Exception) -> None:
    def fail(_: Any) -> None:
        raise error

    node = bounded("speak", fail)
    with pytest.raises(type(error)) as here:
        node.invoke({})
    with pytest.raises(type(error)) as in_loop:
        asyncio.run(node.ainvoke({}))
    assert here.value is error
    assert repr(in_loop.value) == repr(error)  # asyncio copies a TimeoutError
