import asyncio
import errno
import threading
from typing import Any

import pytest

from mendgraph.graph.machine import build as compiled
from mendgraph.graph.machine.build import NodeTimeoutError, bounded_node
from mendgraph.nodes.workspace.files.deadline import ScopeOverError


def test_node_that_exceeds_its_timeout_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "NODE_S", 0.05)
    release = threading.Event()
    node = bounded_node("speak", lambda _: release.wait(30))
    with pytest.raises(NodeTimeoutError, match=r"^The step speak did not end within 0\.05 s"):
        node.invoke({})
    with pytest.raises(NodeTimeoutError, match=r"^The step speak did not end within 0\.05 s"):
        asyncio.run(node.ainvoke({}))
    release.set()


def test_nodes_own_exception_is_not_reported_as_a_timeout() -> None:
    for error in (OSError(errno.ETIMEDOUT, "no answer"), ScopeOverError("over"), ValueError("bad")):

        def fail(_: Any, error: Exception = error) -> None:
            raise error

        node = bounded_node("speak", fail)
        with pytest.raises(type(error)) as raised:
            node.invoke({})
        with pytest.raises(type(error)) as in_loop:
            asyncio.run(node.ainvoke({}))
        assert raised.value is error
        assert repr(in_loop.value) == repr(error)  # asyncio copies a TimeoutError
