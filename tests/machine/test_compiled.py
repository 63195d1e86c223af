import asyncio
import errno
import threading
import time
from typing import Any

import pytest

from mendgraph.graph.machine import build as compiled
from mendgraph.graph.machine.build import NodeTimeoutError, bounded
from mendgraph.nodes.execute_tools.files.deadline import ScopeOverError


def test_node_that_does_not_end_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "NODE_S", 0.05)
    release = threading.Event()
    node = bounded("speak", lambda _: release.wait(30))
    with pytest.raises(NodeTimeoutError, match=r"^The step speak did not end within 0\.05 s"):
        node.invoke({})
    with pytest.raises(NodeTimeoutError, match=r"^The step speak did not end within 0\.05 s"):
        asyncio.run(node.ainvoke({}))
    release.set()
    quick = bounded("speak", lambda _: pause_for_ever(), lambda _: True)
    with pytest.raises(NodeTimeoutError, match=r"^The step speak did not end within 0\.05 s"):
        asyncio.run(quick.ainvoke({}))


def pause_for_ever() -> None:
    while True:
        time.sleep(0.001)


def test_quick_node_needs_no_thread() -> None:
    node = bounded("speak", lambda _: threading.get_ident(), lambda state: state["quick"])
    assert asyncio.run(node.ainvoke({"quick": True})) == threading.get_ident()
    assert asyncio.run(node.ainvoke({"quick": False})) != threading.get_ident()


def test_error_of_a_nodes_own_is_not_told_as_our_deadline() -> None:
    for error in (OSError(errno.ETIMEDOUT, "no answer"), ScopeOverError("over"), ValueError("bad")):

        def fail(_: Any, error: Exception = error) -> None:
            raise error

        node = bounded("speak", fail)
        with pytest.raises(type(error)) as here:
            node.invoke({})
        with pytest.raises(type(error)) as in_loop:
            asyncio.run(node.ainvoke({}))
        assert here.value is error
        assert repr(in_loop.value) == repr(error)  # asyncio copies a TimeoutError
