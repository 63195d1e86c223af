"""A node as LangGraph runs it: one function for sync runs and one for async runs, called as they are.

A `RunnableLambda` around them would look at their signatures and open a run of its own at every call.
Source: measured on LangGraph 1.2, 0.2 ms a node.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, await_call, call_here

NODE_S: Final = 60.0
"""Seconds after which a node that only reads and decides is given up. It takes milliseconds."""


class NodeTimeoutError(Exception):
    """A node did not end in time. The thread stands before it, as after a kill: a resume runs it again."""


class TwoWays(Runnable[Any, Any]):
    """Calls `sync` or awaits `in_loop` with the node's slice of the state; LangGraph traces it as the node."""

    def __init__(self, name: str, sync: Callable[[Any], Any], in_loop: Callable[[Any], Awaitable[Any]]) -> None:
        """`name` is what is shown of it."""
        self.name = name
        self._sync, self._in_loop = sync, in_loop

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002 - Runnable's
        """Run the node here."""
        return self._sync(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002
        """Run the node in the event loop."""
        return await self._in_loop(input)


def bounded(name: str, node: Callable[[Any], Any]) -> TwoWays:
    """A node that ends within `NODE_S`, whether its code lets itself be interrupted or not.

    In the main thread of a sync run a timer interrupts it; elsewhere it has a thread of its own, which is left behind.
    Neither can end code of C that keeps the interpreter's lock.

    Raises:
        NodeTimeoutError: it did not end. A TimeoutError that the node raises itself comes out as it is.
    """

    def late() -> NodeTimeoutError:
        return NodeTimeoutError(f"The step {name} did not end within {NODE_S:g} s: `mendgraph resume` tries it again.")

    def guarded(state: Any) -> tuple[Any, TimeoutError | None]:
        try:
            return node(state), None
        except TimeoutError as error:  # which would be taken for our own deadline's
            return None, error

    def settled(value: Any, error: TimeoutError | None) -> Any:
        if error is not None:
            raise error
        return value

    def here(state: Any) -> Any:
        try:
            ended = call_here(NODE_S, partial(guarded, state), CancellationScope())
        except TimeoutError:
            raise late() from None
        return settled(*ended)

    async def in_loop(state: Any) -> Any:
        try:
            ended = await await_call(partial(guarded, state), NODE_S)
        except TimeoutError:
            raise late() from None
        return settled(*ended)

    return TwoWays(name, here, in_loop)


class Route(RunnableLambda[Any, str]):
    """A router, called as it is: a pure function of the state has nothing to wait for, in an event loop either.

    LangGraph would call it in a thread there. A run that is cancelled while it waits for that thread has stored what
    the node said, and not where it goes on from there: nothing could resume it.
    """

    def __init__(self, router: Callable[[Any], str]) -> None:
        """`router` says in a word where the run goes on."""
        super().__init__(router)
        self._router = router

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> str:  # noqa: A002, ARG002 - Runnable's
        """The word."""
        return self._router(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> str:  # noqa: A002, ARG002
        """The same in the event loop, without a pause."""
        return self._router(input)
