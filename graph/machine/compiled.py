"""The compiled machine, as `build_graph` returns it.

`invoke`, `ainvoke`, a server and a parent graph all come through `stream` or `astream`, so this is the one seam: for
secrets in what is given, for limits, for whoever observes, and for checkpointers. Whoever keeps the threads, the
machine's records come back.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing, nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import ormsgpack
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.errors import GraphInterrupt
from langgraph.graph.state import CompiledStateGraph

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.state import CHECKPOINT_TYPES, AgentInput, AgentOutput, AgentState, serializer
from mendgraph.graph.telemetry.observing import OBSERVER, at_work, run_observer
from mendgraph.nodes.begin_turn.turn_start import scrubbed
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, await_call, call_here

if TYPE_CHECKING:
    from mendgraph.graph.telemetry.spans import RunSpan

Machine = CompiledStateGraph[AgentState, AgentContext, AgentInput, AgentOutput]
"""The compiled graph, as `build_graph` returns it."""

_OVER: Final = object()


class AgentGraph(Machine):
    """Runs as any compiled graph. `scrub` takes out secrets of what is observed, and of what callbacks hear first.

    `secrets` are not stored: see `own_saver`.
    """

    def __init__(self, *, scrub: Callable[[str], str], secrets: Sequence[str], **parts: Any) -> None:
        super().__init__(**parts)
        self.scrub, self.secrets = scrub, secrets
        if isinstance(self.checkpointer, BaseCheckpointSaver):  # a server makes a copy with its own
            self.checkpointer = own_saver(self.checkpointer, secrets)

    def _resolve_checkpointer(self, config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
        """The machine's own checkpointer, or the one that the graph around it lends it."""
        found = super()._resolve_checkpointer(config)
        if found is not None:
            allow_records(found)
        return found

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        """Run; the parts are LangGraph's own."""
        own = _own_limit(config or {})
        return _observed(self._observer(own), super().stream(self._clean(input), own, **options))

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run without blocking the event loop."""
        own = _own_limit(config or {})
        return _aobserved(self._observer(own), super().astream(self._clean(input), own, **options))

    def _observer(self, config: RunnableConfig) -> "Callable[[], RunSpan | None]":
        """Who observes the run, once it begins; its id is that of the thread, "" where it is made then."""
        thread = (config.get("configurable") or {}).get("thread_id")
        return partial(run_observer, str(thread or ""), self.scrub)

    def _clean(self, given: Any) -> Any:
        """What is given, its messages without secrets: LangChain's callbacks hear of them before any node does."""
        messages = given.get("messages") if isinstance(given, dict) else None
        if not isinstance(messages, list) or not all(isinstance(each, BaseMessage) for each in messages):
            return given
        clean = scrubbed(messages, self.scrub)
        return given if clean is None else {**given, "messages": clean}


def _own_limit(config: RunnableConfig) -> RunnableConfig:
    """Without LangChain's default limit of steps, which `batch` and chains hand on as if it were set.

    The machine has limits of its own, and a bound that follows from them.
    """
    if config.get("recursion_limit") != DEFAULT_RECURSION_LIMIT:
        return config
    return cast("RunnableConfig", {name: value for name, value in config.items() if name != "recursion_limit"})


def agent_graph(compiled: Machine, scrub: Callable[[str], str], secrets: Sequence[str]) -> AgentGraph:
    """The same machine as an `AgentGraph`."""
    parts = {name: value for name, value in vars(compiled).items() if name != "__orig_class__"}
    return AgentGraph(scrub=scrub, secrets=secrets, **parts)


def _observed(observing: "Callable[[], RunSpan | None]", parts: Iterator[Any]) -> Iterator[Any]:
    """The parts, observed from the first that is asked for."""
    observer = observing()
    with observer or nullcontext(), closing(cast("Any", parts)):
        if observer is None:
            yield from parts
            return
        while True:
            with at_work(observer):
                part = next(parts, _OVER)
            if part is _OVER:
                return
            yield part


async def _aobserved(observing: "Callable[[], RunSpan | None]", parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
    observer = observing()
    with observer or nullcontext():
        async with aclosing(cast("Any", parts)):
            if observer is None:
                async for part in parts:
                    yield part
                return
            while True:
                with at_work(observer):
                    part = await anext(parts, _OVER)
                if part is _OVER:
                    return
                yield part


_NAMES = {(each.__module__, each.__qualname__) for each in CHECKPOINT_TYPES}
_BEGINNINGS = tuple(b"".join(map(ormsgpack.packb, name)) for name in _NAMES)
"""What follows the first byte of a stored record of ours: its module and its name."""


def own_saver(saver: BaseCheckpointSaver[Any], secrets: Sequence[str] = ()) -> BaseCheckpointSaver[Any]:
    """The saver as the machine uses it; what it has stored and its connection are shared with the one that was given.

    A copy of one with LangGraph's plain serializer has ours: our types and LangChain's messages are loaded, nothing
    else, and `secrets` and those of the environment are not stored. Any other keeps its own (`allow_records`).
    """
    if type(saver.serde) is not JsonPlusSerializer:
        allow_records(saver)
        return saver
    ours = copy(saver)
    ours.serde = serializer(secrets)
    return ours


def allow_records(saver: BaseCheckpointSaver[Any]) -> None:
    """Have a saver with a serializer of LangGraph's load our types, strict or not, without a warning; others as before.

    It is that of a server, or of a graph around ours. They read our records by themselves too, so it is no copy.
    """
    told = _with_records(saver.serde)
    if told is not saver.serde:
        saver.serde = told


def _with_records(serde: SerializerProtocol) -> SerializerProtocol:
    """The serializer, which loads our records too. One that we do not know, or that shows JSON, is left alone."""
    if isinstance(serde, EncryptedSerializer):
        inner = _with_records(serde.serde)
        if inner is serde.serde:
            return serde
        told = copy(serde)  # not a new one: it may be of a class of the user's
        told.serde = inner
        return told
    if not isinstance(serde, JsonPlusSerializer) or serde._custom_unpack_ext_hook:  # noqa: SLF001 - said nowhere else
        return serde
    if serde._allowed_msgpack_modules is not True:  # noqa: SLF001 - the same
        return serde.with_msgpack_allowlist(_NAMES)
    return _without_warnings(serde)


def _without_warnings(serde: JsonPlusSerializer) -> JsonPlusSerializer:
    """One that loads any type, with a warning for each that is not in a list, for which it has no place: ours are."""
    clone = copy(serde)
    records, others = (
        each._unpack_ext_hook  # noqa: SLF001 - the same
        for each in (JsonPlusSerializer(allowed_msgpack_modules=_NAMES), serde)
    )

    def built(code: int, data: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(ormsgpack.unpackb(data, ext_hook=built, option=ormsgpack.OPT_NON_STR_KEYS))
        return (records if data.startswith(_BEGINNINGS, 1) else others)(code, data)

    clone._unpack_ext_hook, clone._custom_unpack_ext_hook = built, True  # noqa: SLF001 - the same
    return clone


# --- A node as LangGraph runs it

NODE_S: Final = 60.0
"""Seconds after which a node that only reads and decides is given up. It takes milliseconds."""


class NodeTimeoutError(Exception):
    """A node did not end in time. The thread stands before it, as after a kill: a resume runs it again."""


class TwoWays(Runnable[Any, Any]):
    """Calls `sync` or awaits `in_loop` with the node's slice of the state; whoever observes the run hears of its end.

    LangGraph traces it as the node. A `RunnableLambda` would look at the functions' signatures and open a run of its
    own at every call. Source: measured on LangGraph 1.2, 0.2 ms a node.
    """

    def __init__(self, name: str, sync: Callable[[Any], Any], in_loop: Callable[[Any], Awaitable[Any]]) -> None:
        """`name` is what is shown of it."""
        self.name: str = name
        self._sync, self._in_loop = sync, in_loop

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002 - Runnable's
        """Run the node here."""
        try:
            return self._ended(self._sync(input))
        except GraphInterrupt:
            self._ended(None)
            raise

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002
        """Run the node in the event loop."""
        try:
            return self._ended(await self._in_loop(input))
        except GraphInterrupt:
            self._ended(None)
            raise

    def _ended(self, update: Any) -> Any:
        """The update, None where the node waits for a person."""
        if observer := OBSERVER.get():
            observer.node_ended(self.name, update)
        return update


def bounded(name: str, node: Callable[[Any], Any]) -> TwoWays:
    """A node that ends within `NODE_S`, whether its code lets itself be interrupted or not.

    In the main thread of a sync run a timer interrupts it; elsewhere it has a thread of its own, which is left behind.
    Neither can end code of C that keeps the interpreter's lock.

    Raises:
        NodeTimeoutError: it did not end. A TimeoutError that the node raises itself comes out as it is.
    """
    late = f"The step {name} did not end within {NODE_S:g} s: `mendgraph resume` tries it again."

    def here(state: Any) -> Any:
        scope = CancellationScope()
        try:
            return call_here(NODE_S, partial(node, state), scope)
        except TimeoutError:
            if scope.over:
                raise NodeTimeoutError(late) from None
            raise

    async def in_loop(state: Any) -> Any:
        scope = CancellationScope()
        try:
            return await await_call(partial(node, state), NODE_S, scope)
        except TimeoutError:
            if scope.over:
                raise NodeTimeoutError(late) from None
            raise

    return TwoWays(name, here, in_loop)


def direct(name: str, node: Callable[[Any], Any]) -> TwoWays:
    """A node that is called as it is, in an event loop too: nothing is waited for in it."""

    async def in_loop(state: Any) -> Any:
        return node(state)

    return TwoWays(name, node, in_loop)


def in_a_thread(name: str, node: Callable[[Any], Any]) -> TwoWays:
    """A node that may wait for the disk: in an event loop it has a thread of its own."""

    async def in_loop(state: Any) -> Any:
        return await await_call(partial(node, state))

    return TwoWays(name, node, in_loop)


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
