"""What a checkpoint may hold, and the serializer that writes it without secrets.

A checkpoint holds the types of `CHECKPOINT_TYPES` and LangChain's messages; a saver builds nothing else.
"""

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, Final, NoReturn

import ormsgpack
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Overwrite

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.langgraph_private import DeltaSnapshot, load_extension, with_record_types
from mendgraph.nodes import records
from mendgraph.nodes.begin_turn.history import scrub_requests
from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import Mending, RunLimits, Spending
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.prompts.estimates import Gauge
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.policy.alerts import Vitals
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.workspace.store.database import StoreError, UnreadableValueError


def _record_types() -> list[type]:
    """Return all records, enums and named tuples of `nodes.records`."""
    classes = [value for value in vars(records).values() if isinstance(value, type)]
    return [cls for cls in classes if cls.__module__ == records.__name__ and cls is not records.Record]


CHECKPOINT_TYPES: tuple[type, ...] = (
    AgentContext,
    APILimits,
    APIUsageStats,
    Gauge,
    HealingAttempt,
    Mending,
    PendingCall,
    Permission,
    ProjectNotes,
    RunLimits,
    Spending,
    Vitals,
    Window,
    *_record_types(),
)
"""The types of this package that a checkpoint may hold."""

COMPRESSED: Final = "+zlib"
"""Suffix of the kind of compressed bytes."""

MOST_BYTES: Final = 256 * 1024 * 1024
"""The largest stored value. A run of a thousand steps has some megabytes."""

_DEEPEST = 32
"""How deep a request may be nested in a stored value: a checkpoint holds channels, one of which holds the input."""

_OPTIONAL_FIELDS = frozenset({"updated_channels", "pending_sends"})
"""Fields that not every checkpoint has."""

_CHECKPOINT_FIELDS = _OPTIONAL_FIELDS.union(Checkpoint.__annotations__)
"""All fields of a checkpoint: the values of its channels, and LangGraph's own numbers, times and names of nodes."""

_LEAST_COMPRESSED = 100
"""Bytes below which compression does not pay."""

_SHORT, _SHORT_TEXTS = 100, 1_000
"""Texts of up to `_SHORT` characters, such as paths and hashes, come again at each step: so many results are cached."""

_SCRUBBED_TYPES = (str, list, tuple, dict, HumanMessage, Overwrite, DeltaSnapshot)

_OWN_MODULES = ("mendgraph.graph.", "mendgraph.nodes.")


class ScrubbingSerializer(JsonPlusSerializer):
    """Strict msgpack without secrets. Known values are replaced byte by byte, so that lengths stay."""

    def __init__(self, redactor: Redactor, dictionary: bytes = b"", types: Sequence[type] = ()) -> None:
        """`types` may be loaded beside ours. With a `dictionary`, which is needed again, values are compressed."""
        types = (*CHECKPOINT_TYPES, *types)
        super().__init__(allowed_msgpack_modules=types)
        self._types = {(cls.__module__, cls.__qualname__): cls for cls in types}
        self._redactor = redactor
        self._dictionary = dictionary
        self._short_text = lru_cache(_SHORT_TEXTS)(redactor.text)
        self._known = tuple(form.encode("utf-8", "surrogatepass") for form in redactor.forms)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the kind of the bytes, and the bytes. LangGraph's own fields of a checkpoint stay as they are.

        Raises StoreError: the value has no stored form, such as an integer beyond 64 bits.
        """
        if type(obj) is dict and obj.keys() | _OPTIONAL_FIELDS == _CHECKPOINT_FIELDS:
            scrubbed: Any = {**obj, "channel_values": self._without_secrets(obj["channel_values"], _DEEPEST)}
        else:
            scrubbed = self._without_secrets(obj, _DEEPEST)

        try:
            kind, data = super().dumps_typed(scrubbed)
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"A value cannot be stored with the run ({error}): it may hold integers of 64 bits, and text without"
                " half characters."
            ) from error

        if len(data) > MOST_BYTES:
            raise StoreError(
                f"A value cannot be stored with the run: it has {len(data):,} bytes, and may have {MOST_BYTES:,}."
            )

        for form in self._known:
            data = data.replace(form, b"*" * len(form))

        if self._dictionary and len(data) >= _LEAST_COMPRESSED:
            packer = zlib.compressobj(level=3, zdict=self._dictionary)  # two thirds of the time, 1 % more bytes
            packed = packer.compress(data) + packer.flush()
            if len(packed) < len(data):
                return kind + COMPRESSED, packed

        return kind, data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value.

        Raises StoreError: the bytes are damaged, or hold a record that this version does not know.
        """
        kind, stored = data
        if not isinstance(kind, str) or not isinstance(stored, bytes):
            raise UnreadableValueError("A stored value is damaged: it is of another type.")

        refusals: list[UnreadableValueError] = []  # ormsgpack replaces the error of a hook by one of its own
        try:
            if kind.endswith(COMPRESSED):
                kind = kind.removesuffix(COMPRESSED)
                stored = self._decompress(stored)

            if kind == "msgpack":
                return self._unpack(stored, refusals)
            return super().loads_typed((kind, stored))
        except (ValueError, zlib.error, NotImplementedError, RecursionError, MemoryError) as error:
            if refusals:
                raise refusals[0] from error
            raise UnreadableValueError(f"A stored value is damaged: {error}.") from error

    def _decompress(self, data: bytes) -> bytes:
        unpacker = zlib.decompressobj(zdict=self._dictionary)
        unpacked = unpacker.decompress(data, MOST_BYTES)

        if not unpacker.eof:
            raise zlib.error("its end is missing, or it is too large")

        return unpacked

    def _unpack(self, data: bytes, refusals: list[UnreadableValueError]) -> Any:
        def load(code: int, inner: bytes) -> Any:
            parts = ormsgpack.unpackb(inner, ext_hook=load, option=ormsgpack.OPT_NON_STR_KEYS)
            if isinstance(parts, list) and len(parts) > 2 and str(parts[0]).startswith(_OWN_MODULES):
                try:
                    return self._record(parts[0], parts[1], parts[2])
                except UnreadableValueError as refusal:
                    refusals.append(refusal)
                    raise

            return load_extension(self, code, inner)

        return ormsgpack.unpackb(data, ext_hook=load, option=ormsgpack.OPT_NON_STR_KEYS)

    def _record(self, module: str, name: str, value: Any) -> Any:
        """Return the record, named tuple or enum member, exactly as it was stored."""
        kind = self._types.get((module, name))
        if kind is None:
            _refuse(name, "there is no such kind of value")

        try:
            if isinstance(value, dict):
                return kind(**value)
            return kind(value)
        except (TypeError, ValueError) as error:
            _refuse(name, str(error))

    def _without_secrets(self, value: Any, depth: int) -> Any:
        """Return the value with its requests scrubbed: messages, or the maps, pairs and texts that LangGraph accepts.

        Records stay as they are: their texts were scrubbed before they entered the state.
        """
        if isinstance(value, HumanMessage):
            return scrub_requests([value], self._redactor.text)[0]

        if isinstance(value, str):
            if len(value) > _SHORT:
                return self._redactor.text(value)
            return self._short_text(value)

        if not depth:
            return value
        if type(value) in {list, tuple}:  # a named tuple is a record
            return type(value)(self._without_secrets_in(enumerate(value), depth).values())
        if isinstance(value, dict):
            return self._without_secrets_in(value.items(), depth)
        if isinstance(value, Overwrite | DeltaSnapshot):
            return type(value)(self._without_secrets(value.value, depth - 1))

        return value

    def _without_secrets_in(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[Any, Any]:
        scrubbed = {}
        for key, item in items:
            if type(item) is str and len(item) <= _SHORT:
                scrubbed[key] = self._short_text(item)
            elif isinstance(item, _SCRUBBED_TYPES):
                scrubbed[key] = self._without_secrets(item, depth - 1)
            else:
                scrubbed[key] = item

        return scrubbed


def _refuse(name: str, reason: str) -> NoReturn:
    line = " ".join(reason.split())
    message = (
        f"A stored {name} cannot be read ({line}): another version of mendgraph wrote it. Continue with that"
        " version, or start a new run."
    )
    raise UnreadableValueError(message, is_damage=False)


def serializer(secrets: Sequence[str] = (), dictionary: bytes = b"", types: Sequence[type] = ()) -> JsonPlusSerializer:
    """Return the serializer of a saver: strict msgpack with the types of this package and LangChain's messages.

    `secrets` and those of the environment are never written. With a `dictionary` values are compressed, for a disk.
    `types` are those of a surrounding graph, whose checkpointer has to load both.
    """
    return ScrubbingSerializer(Redactor((*secrets, *known_values(os.environ))), dictionary, types)


# --- Savers


def own_saver(saver: BaseCheckpointSaver[Any], secrets: Sequence[str] = ()) -> BaseCheckpointSaver[Any]:
    """Return the saver as the machine uses it, on the same connection.

    A saver with LangGraph's plain serializer is copied with ours, which does not store `secrets`. Any other keeps its
    own, which then also loads our types.
    """
    if type(saver.serde) is not JsonPlusSerializer:
        allow_records(saver)
        return saver

    copied = copy(saver)
    copied.serde = serializer(secrets)
    return copied


def allow_records(saver: BaseCheckpointSaver[Any]) -> None:
    """Let the serializer of a server or of a surrounding graph load our types without a warning.

    The saver itself changes, not a copy: its owner reads our records as well.
    """
    serde = saver.serde
    if isinstance(serde, EncryptedSerializer) and isinstance(serde.serde, JsonPlusSerializer):
        saver.serde = copy(serde)  # a copy, as it may be of a user's class
        saver.serde.serde = with_record_types(serde.serde, CHECKPOINT_TYPES)
    elif isinstance(serde, JsonPlusSerializer):
        saver.serde = with_record_types(serde, CHECKPOINT_TYPES)


class PrunedHistoryError(StoreError):
    """Checkpoints of a thread were deleted without which its history cannot be rebuilt.

    LangGraph builds a growing channel from the checkpoints that it can reach, and does not report missing ones. The
    metadata of each checkpoint says how many have added to a channel.
    """

    def __init__(self, thread_id: str, channels: Sequence[str]) -> None:
        """`channels` are the incomplete channels of the thread's state."""
        super().__init__(
            f"The history of the thread {thread_id!r} is incomplete ({', '.join(channels)}): older checkpoints of it"
            " were deleted, and it is stored in parts, one in each. Restore them from a backup, or start a new thread."
            " A retention job may delete whole threads, and no single checkpoints."
        )
        self.thread_id = thread_id
        self.channels = tuple(channels)


_Histories = Mapping[str, DeltaChannelHistory]


def refuse_pruned_histories(saver: BaseCheckpointSaver[Any]) -> BaseCheckpointSaver[Any]:
    """Return a copy of the saver that raises PrunedHistoryError instead of returning a part of a history.

    The copy shares the store and the connection with `saver`, whose other users see no change.
    """
    if "get_delta_channel_history" in vars(saver):
        return saver

    def get_delta_channel_history(*, config: RunnableConfig, channels: Sequence[str]) -> _Histories:
        histories = saver.get_delta_channel_history(config=config, channels=channels)
        if _without_snapshot(histories):
            _check_complete(config, saver.get_tuple(config), histories)

        return histories

    async def aget_delta_channel_history(*, config: RunnableConfig, channels: Sequence[str]) -> _Histories:
        histories = await saver.aget_delta_channel_history(config=config, channels=channels)
        if _without_snapshot(histories):
            _check_complete(config, await saver.aget_tuple(config), histories)

        return histories

    checked = copy(saver)
    for method in (get_delta_channel_history, aget_delta_channel_history):
        setattr(checked, method.__name__, method)

    return checked


def _without_snapshot(histories: _Histories) -> list[str]:
    """Return the channels whose values begin with the thread. From a snapshot on, every ancestor was reached."""
    return [channel for channel, history in histories.items() if "seed" not in history]


def _check_complete(config: RunnableConfig, checkpoint: CheckpointTuple | None, histories: _Histories) -> None:
    metadata: Mapping[str, Any] = checkpoint.metadata if checkpoint is not None else {}
    counters = metadata.get("counters_since_delta_snapshot") or {}
    incomplete = []

    for channel in _without_snapshot(histories):
        writes, _ = counters.get(channel, (0, 0))
        if len(histories[channel]["writes"]) < writes:
            incomplete.append(channel)

    if incomplete:
        raise PrunedHistoryError(str(config["configurable"]["thread_id"]), sorted(incomplete))
