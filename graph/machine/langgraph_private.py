"""The private names of LangGraph 1.2 that the machine needs; no other module of `graph/machine` uses one.

`tests/machine/test_langgraph_private.py` fails when LangGraph removes one of them or makes it public.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.state import CompiledStateGraph

DeltaSnapshot = _DeltaSnapshot
"""The stored value of a `DeltaChannel`. See https://github.com/langchain-ai/langgraph/pull/7634."""

_CHECKPOINTER: Final = "__pregel_checkpointer"
_SCRATCHPAD: Final = "__pregel_scratchpad"
UnpackHook = Callable[[int, bytes], Any]


def has_checkpointer(config: RunnableConfig) -> bool:
    """Return whether the running graph has a checkpointer. No public API tells a node that."""
    return config["configurable"].get(_CHECKPOINTER, ...) is not None


def subgraph_config(config: RunnableConfig, namespace: str) -> RunnableConfig:
    """Return the config of a subgraph with this checkpoint namespace below the node that `config` belongs to.

    LangGraph numbers the subgraphs of a node in the order in which they start. Children start in any order, so the
    namespace names them and the number is fixed. See https://github.com/langchain-ai/langgraph/pull/3056.
    """
    configurable = config["configurable"]
    scratchpad = replace(configurable[_SCRATCHPAD], subgraph_counter=lambda: 0)
    below = {"checkpoint_ns": f"{configurable['checkpoint_ns']}|{namespace}", _SCRATCHPAD: scratchpad}
    return {**config, "configurable": {**configurable, **below}}


class PreparedCheckpointerGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph that prepares every checkpointer that it uses, also one that a surrounding graph lends it."""

    def prepare_checkpointer(self, saver: BaseCheckpointSaver[Any]) -> BaseCheckpointSaver[Any]:
        """Return the saver to use instead."""
        return saver

    def _resolve_checkpointer(self, config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
        saver = super()._resolve_checkpointer(config)
        return None if saver is None else self.prepare_checkpointer(saver)


def with_record_types(serde: JsonPlusSerializer, types: Sequence[type]) -> JsonPlusSerializer:
    """Return a copy of the serializer that also loads these types.

    A strict serializer gets them in its allow-list. A permissive one would log a warning for each of them, so its copy
    unpacks these types with a strict hook. See https://github.com/langchain-ai/langgraph/issues/7695.
    """
    names = {(cls.__module__, cls.__qualname__) for cls in types}
    if serde._allowed_msgpack_modules is not True or serde._custom_unpack_ext_hook:  # noqa: SLF001
        return serde.with_msgpack_allowlist(names)

    prefixes = tuple(b"".join(map(ormsgpack.packb, name)) for name in names)
    load_record = JsonPlusSerializer(allowed_msgpack_modules=names)._unpack_ext_hook  # noqa: SLF001
    load_other = serde._unpack_ext_hook  # noqa: SLF001

    def load(code: int, data: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            return DeltaSnapshot(ormsgpack.unpackb(data, ext_hook=load, option=ormsgpack.OPT_NON_STR_KEYS))
        if data.startswith(prefixes, 1):  # after the byte that says how long the list is
            return load_record(code, data)
        return load_other(code, data)

    clone = copy(serde)
    clone._unpack_ext_hook = load  # noqa: SLF001
    clone._custom_unpack_ext_hook = True  # noqa: SLF001
    return clone


def load_extension(serde: JsonPlusSerializer, code: int, data: bytes) -> Any:
    """Return the value of a msgpack extension, as LangGraph loads it."""
    return serde._unpack_ext_hook(code, data)  # noqa: SLF001
