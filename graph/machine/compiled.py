"""The compiled machine, as `build_graph` returns it.

`invoke`, `ainvoke`, a server and a parent graph all come through `stream` or `astream`, so this is the one seam: for
secrets in what is given, for limits, for whoever observes, and for checkpointers. Whoever keeps the threads, the
machine's records come back.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing, nullcontext
from copy import copy
from functools import partial
from typing import Any, Final, cast

import ormsgpack
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.state import CompiledStateGraph

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.state import CHECKPOINT_TYPES, AgentInput, AgentOutput, AgentState, serializer
from mendgraph.graph.telemetry.observing import RunObserver, at_work, run_observer
from mendgraph.nodes.begin_turn.turn_start import scrubbed

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
            tell_records(found)
        return found

    def stream(self, *given: Any, **options: Any) -> Iterator[Any]:
        """Run; the parts are LangGraph's own."""
        given, options = _own_limit(self._clean(given), options)
        observer = partial(run_observer, self._run_id(given, options), self.scrub)
        return _observed(observer, super().stream(*given, **options))

    def astream(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        """Run without blocking the event loop."""
        given, options = _own_limit(self._clean(given), options)
        observer = partial(run_observer, self._run_id(given, options), self.scrub)
        return _aobserved(observer, super().astream(*given, **options))

    def _clean(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """What is given, its messages without secrets: LangChain's callbacks hear of them before any node does."""
        asked = given[0] if given and isinstance(given[0], dict) else {}
        messages = asked.get("messages")
        if not isinstance(messages, list) or not all(isinstance(each, BaseMessage) for each in messages):
            return given
        clean = scrubbed(messages, self.scrub)
        return given if clean is None else ({**asked, "messages": clean}, *given[1:])

    def _run_id(self, given: tuple[Any, ...], options: Any) -> str:
        """The thread's id, which is the run's; "" where it is made when the turn begins."""
        config = options.get("config") or (given[1] if len(given) > 1 else None) or {}
        return str((config.get("configurable") or {}).get("thread_id") or "")


def agent_graph(compiled: Machine, scrub: Callable[[str], str], secrets: Sequence[str]) -> AgentGraph:
    """The same machine as an `AgentGraph`."""
    parts = {name: value for name, value in vars(compiled).items() if name != "__orig_class__"}
    return AgentGraph(scrub=scrub, secrets=secrets, **parts)


def _observed(observing: Callable[[], RunObserver | None], parts: Iterator[Any]) -> Iterator[Any]:
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


async def _aobserved(observing: Callable[[], RunObserver | None], parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
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


def _own_limit(given: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What is given, without LangChain's default limit of steps, which `batch` and chains hand on as if it were set.

    The machine has limits of its own, and a bound that follows from them.
    """
    config = options.get("config") or (given[1] if len(given) > 1 else None)
    if not isinstance(config, dict) or config.get("recursion_limit") != DEFAULT_RECURSION_LIMIT:
        return given, options
    own = {name: value for name, value in config.items() if name != "recursion_limit"}
    return (given, {**options, "config": own}) if "config" in options else ((given[0], own, *given[2:]), options)


_NAMES = {(each.__module__, each.__qualname__) for each in CHECKPOINT_TYPES}
_BEGINNINGS = tuple(b"".join(map(ormsgpack.packb, name)) for name in _NAMES)
"""What follows the first byte of a stored record of ours: its module and its name."""


def own_saver(saver: BaseCheckpointSaver[Any], secrets: Sequence[str] = ()) -> BaseCheckpointSaver[Any]:
    """The saver as the machine uses it; what it has stored and its connection are shared with the one that was given.

    A copy of one with LangGraph's plain serializer has ours: our types and LangChain's messages are loaded, nothing
    else, and `secrets` and those of the environment are not stored. Any other keeps its serializer: see `tell_records`.
    """
    if type(saver.serde) is not JsonPlusSerializer:
        tell_records(saver)
        return saver
    ours = copy(saver)
    ours.serde = serializer(secrets)
    return ours


def tell_records(saver: BaseCheckpointSaver[Any]) -> None:
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
