"""The state of the machine: its channels, their reducers, and what a checkpoint may hold.

`messages` grows only by whole exchanges: a reply enters together with the results of its calls (`loop_check`) or as
the final answer (`stop`). So at every checkpoint the history is one that an endpoint accepts, whatever was killed.
Until then the reply, its calls, verdicts and results live in channels of their own, each the word of one node.
"""

import os
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import count
from typing import Annotated, Any, TypeVar
from uuid import UUID, uuid5

import ormsgpack
from langchain_core.messages import AnyMessage, BaseMessage, BaseMessageChunk, RemoveMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel, LastValue
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.errors import InvalidUpdateError
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.redaction import ScrubbingSerializer
from mendgraph.nodes import records
from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import Mending, RunLimits, Spending
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.prompts.estimates import Gauge
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.policy.alerts import Vitals
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.records import FileChange

Item = TypeVar("Item")

FEWEST_WRITES = 25
"""A snapshot is taken after so many writes, or when a third of the value is new, if that is later."""

SNAPSHOT_SHARE = 3
"""With a third, all snapshots together hold four times the value at most."""

_NAMES = UUID("5d1ab9a5-9e1f-4b0e-8d3c-2f2f6f3f7a11")
"""The namespace of the ids that `fold_messages` gives."""


class GrowingChannel(DeltaChannel[Any]):
    """A delta channel that needs disk space in proportion to its value, however many writes that is made of.

    `snapshot_frequency` is the fewest writes between two snapshots; the larger the value, the more there are.
    """

    __slots__ = ("_fewest",)

    @property
    def snapshot_frequency(self) -> int:
        """How many writes there are from one snapshot to the next."""
        size = len(self.value) if self.is_available() else 0
        return max(self._fewest, size // SNAPSHOT_SHARE)

    @snapshot_frequency.setter
    def snapshot_frequency(self, fewest: int) -> None:
        self._fewest = fewest


def fold_messages(messages: list[Any], writes: Sequence[Any]) -> list[Any]:
    """`add_messages` over the writes, one after the other.

    Messages that came without an id (as texts, pairs or maps) get one that is the same at every reading.
    """
    value: Any = messages
    known_ids = _ids(messages)
    if known_ids is None:
        value = _named(messages, ())

    for write in writes:
        named = _named(write, value)
        ids = [message.id for message in named]
        known_ids = _ids(value) if known_ids is None else known_ids

        if (
            known_ids is None
            or not known_ids.isdisjoint(ids)
            or len({*ids}) < len(ids)
            or any(isinstance(message, RemoveMessage | BaseMessageChunk) for message in named)
        ):
            value = add_messages(value, named)  # type: ignore[arg-type]
            known_ids = None
        else:  # what takes nobody's place comes after all that is there
            value = [*value, *named]
            known_ids.update(ids)

    return list(value)


def append(items: list[Item], writes: Sequence[Sequence[Item]]) -> list[Item]:
    """The items, and those of the writes after them."""
    return [*items, *(item for write in writes for item in write)]


def merge(entries: Mapping[str, Item], writes: Sequence[Mapping[str, Item]]) -> dict[str, Item]:
    """The entries, with those of the writes over them."""
    return {name: item for write in (entries, *writes) for name, item in write.items()}


Messages = Annotated[list[AnyMessage], GrowingChannel(fold_messages, snapshot_frequency=FEWEST_WRITES)]
"""A thread's history."""

Changes = Annotated[list[FileChange], GrowingChannel(append, snapshot_frequency=FEWEST_WRITES)]
"""The file effects of a turn, in order."""

SystemPrompt = Annotated[list[str], GrowingChannel(lambda old, new: new[-1] if new else old, snapshot_frequency=1)]
"""The user's own words for the system prompt: beside the context, of which every checkpoint has a copy."""

FilesRead = Annotated[dict[str, str], GrowingChannel(merge, snapshot_frequency=FEWEST_WRITES)]
"""The hash that a thread last saw of each file."""


def _ids(messages: Sequence[Any]) -> set[str | None] | None:
    """The ids of messages, or None where some have none, or are no messages yet."""
    try:
        ids = {message.id for message in messages}
    except AttributeError:
        return None

    return None if None in ids else ids


def _named(write: Any, before: Sequence[Any]) -> list[BaseMessage]:
    """The messages of a write, each with an id; those that have none get one made of their place and their content."""
    written = write if isinstance(write, list) else [write]
    if all(isinstance(message, BaseMessage) and message.id is not None for message in written):
        return written

    taken_ids = [message.id for message in before]
    named: list[BaseMessage] = []
    for message in convert_to_messages(written):
        named.append(message if message.id else message.model_copy(update={"id": _new_id(message, taken_ids)}))
        taken_ids.append(named[-1].id)

    return named


def _new_id(message: BaseMessage, used_ids: Sequence[str | None]) -> str:
    content = f"{used_ids[-1] if used_ids else ''} {message.model_dump_json()}"
    numbered = (str(uuid5(_NAMES, f"{number} {content}")) for number in count(len(used_ids)))
    return next(number for number in numbered if number not in used_ids)


# --- Channels


class ContextChannel(LastValue[AgentContext]):
    """The context of the turn, which only a node can write: clients of a server write JSON, and could widen it."""

    def update(self, values: Sequence[AgentContext]) -> bool:
        """Take the value; InvalidUpdateError for one that no node has made."""
        if not all(isinstance(value, AgentContext) for value in values):
            raise InvalidUpdateError("A thread's context cannot be written: send another one with the next request.")
        return super().update(values)


class StructuredChannel(LastValue[Any]):
    """The value of an answer: plain data where it is stored, and an instance for its readers: `typ` builds it."""

    __slots__ = ()

    def checkpoint(self) -> Any:
        """What is stored."""
        return self.value

    def get(self) -> Any:
        """The instance; the plain value where the type has changed since, and it does not fit any more."""
        value = super().get()
        try:
            return None if value is None else self.typ.build(value)
        except Exception:  # noqa: BLE001 - a user's validator may raise anything
            return value


class AgentInput(TypedDict):
    """What a user sends: the new message or messages. The request is the last person's message."""

    messages: Messages


class AgentOutput(TypedDict, total=False):
    """What a run returns."""

    messages: Messages
    outcome: records.Outcome | None
    structured_response: Any
    changes: Changes
    plan: records.Plan
    spending: Spending


class SmallState(TypedDict, total=False):
    """The channels that do not grow with the run. The first group lasts as long as the thread, the others a turn."""

    step: int
    first_step: int
    run_id: str
    vitals: Vitals
    window: Window
    permissions: list[Permission]
    plan: records.Plan
    spending: Spending

    context: Annotated[AgentContext, ContextChannel(AgentContext)]
    profile: records.Profile
    notes: tuple[ProjectNotes, ...]
    preload: records.ModelReply | None
    pending_call: PendingCall | None
    reply: records.ModelReply | None
    reading: records.Reading | None
    items: list[records.ToolCall | records.CallError]
    errors: list[records.ExtractionError]
    answer: records.Answer | None
    known_files: dict[str, str]
    verdicts: list[records.Verdict]
    results: list[records.CallResult]
    tool_counts: dict[str, int]

    corrections: list[records.Correction]
    healing_attempts: list[HealingAttempt]
    loop: records.LoopRecord
    stop: records.StopCause | None
    outcome: records.Outcome | None
    structured_response: Any


class AgentState(SmallState, total=False):
    """All channels. The history and the hashes of files last as long as the thread, the changes as long as a turn."""

    messages: Messages
    changes: Changes
    files_read: FilesRead
    system_prompt: SystemPrompt


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
    *(
        word
        for word in vars(records).values()
        if isinstance(word, type) and word.__module__ == records.__name__ and word is not records.Record
    ),
)
"""Every type of ours that a checkpoint may hold; a saver refuses to build any other."""


def serializer(secrets: Sequence[str] = (), dictionary: bytes = b"", types: Sequence[type] = ()) -> JsonPlusSerializer:
    """The only serializer that our savers use: strict msgpack, our types and LangChain's messages, nothing else.

    `secrets` and those of the environment are written nowhere. With a `dictionary` values are compressed, for a disk.
    `types` are those of a graph around ours, whose checkpointer has to load both.
    """
    return serializer_with(Redactor((*secrets, *known_values(os.environ))), dictionary, types)


def serializer_with(redactor: Redactor, dictionary: bytes = b"", types: Sequence[type] = ()) -> JsonPlusSerializer:
    """The serializer that writes nothing that `redactor` takes out; see `serializer` for the other arguments."""
    return ScrubbingSerializer(redactor, (*CHECKPOINT_TYPES, *types), dictionary)


_STORED = {(cls.__module__, cls.__qualname__) for cls in CHECKPOINT_TYPES}
_BEGINNINGS = tuple(b"".join(map(ormsgpack.packb, name)) for name in _STORED)
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
    serde = saver.serde
    if isinstance(serde, EncryptedSerializer) and isinstance(serde.serde, JsonPlusSerializer):
        saver.serde = copy(serde)  # not a new one: it may be of a class of the user's
        saver.serde.serde = _with_records(serde.serde)
    elif isinstance(serde, JsonPlusSerializer):
        saver.serde = _with_records(serde)


def _with_records(serde: JsonPlusSerializer) -> JsonPlusSerializer:
    """A serializer that also loads our types.

    A strict one gets them in its allow-list. A permissive one would warn of each of them: a copy of it unpacks ours
    with a strict hook, and everything else as before.
    """
    if serde._allowed_msgpack_modules is not True or serde._custom_unpack_ext_hook:  # noqa: SLF001 - said nowhere else
        return serde.with_msgpack_allowlist(_STORED)

    clone = copy(serde)
    ours, others = (
        serializer._unpack_ext_hook  # noqa: SLF001 - the same
        for serializer in (JsonPlusSerializer(allowed_msgpack_modules=_STORED), serde)
    )

    def built(code: int, data: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(ormsgpack.unpackb(data, ext_hook=built, option=ormsgpack.OPT_NON_STR_KEYS))
        return (ours if data.startswith(_BEGINNINGS, 1) else others)(code, data)

    clone._unpack_ext_hook, clone._custom_unpack_ext_hook = built, True  # noqa: SLF001 - the same
    return clone


class PrunedHistoryError(StoreError):
    """Checkpoints of a thread were deleted without which its history cannot be rebuilt.

    LangGraph builds the value of a growing channel from the checkpoints that it can reach, and does not say when some
    are missing. How many have added to a channel is in the metadata of each.
    """

    def __init__(self, thread_id: str, channels: Sequence[str]) -> None:
        """`channels` are those of the thread's state that are incomplete."""
        super().__init__(
            f"The history of the thread {thread_id!r} is incomplete ({', '.join(channels)}): older checkpoints of it"
            " were deleted, and it is stored in parts, one in each. Restore them from a backup, or begin a new thread."
            " A retention job may delete whole threads, and no single checkpoints."
        )
        self.thread_id = thread_id
        self.channels = tuple(channels)


_Histories = Mapping[str, DeltaChannelHistory]


def refuse_pruned_histories(saver: BaseCheckpointSaver[Any]) -> BaseCheckpointSaver[Any]:
    """A copy of the saver that raises PrunedHistoryError instead of giving a part of a history.

    The copy shares what is stored and the connection with `saver`, whose other users see no change.
    """
    if "get_delta_channel_history" in vars(saver):
        return saver

    last_read: dict[str, CheckpointTuple | None] = {}  # LangGraph reads a checkpoint, and then its histories

    def get_tuple(config: RunnableConfig) -> CheckpointTuple | None:
        stored = last_read["tuple"] = saver.get_tuple(config)
        return stored

    async def aget_tuple(config: RunnableConfig) -> CheckpointTuple | None:
        stored = last_read["tuple"] = await saver.aget_tuple(config)
        return stored

    def get_delta_channel_history(*, config: RunnableConfig, channels: Sequence[str]) -> _Histories:
        last = last_read.pop("tuple", None)
        histories = saver.get_delta_channel_history(config=config, channels=channels)
        if _without_snapshot(histories):
            _check_complete(config, last if _is_of(last, config) else saver.get_tuple(config), histories)

        return histories

    async def aget_delta_channel_history(*, config: RunnableConfig, channels: Sequence[str]) -> _Histories:
        last = last_read.pop("tuple", None)
        histories = await saver.aget_delta_channel_history(config=config, channels=channels)
        if _without_snapshot(histories):
            _check_complete(config, last if _is_of(last, config) else await saver.aget_tuple(config), histories)

        return histories

    checked = copy(saver)
    methods = (get_tuple, aget_tuple, get_delta_channel_history, aget_delta_channel_history)
    vars(checked).update({method.__name__: method for method in methods})

    return checked


def _is_of(checkpoint: CheckpointTuple | None, config: RunnableConfig) -> bool:
    """Whether this is the checkpoint that `config` names."""
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    ids = [str(config["configurable"].get(name, "")) for name in names]
    return checkpoint is not None and ids == [str(checkpoint.config["configurable"].get(name, "")) for name in names]


def _without_snapshot(histories: _Histories) -> list[str]:
    """The channels whose values begin with the thread. From a snapshot on, every ancestor was reached."""
    return [channel for channel, history in histories.items() if "seed" not in history]


def _check_complete(config: RunnableConfig, checkpoint: CheckpointTuple | None, histories: _Histories) -> None:
    metadata: Mapping[str, Any] = checkpoint.metadata if checkpoint is not None else {}
    counters = metadata.get("counters_since_delta_snapshot") or {}
    incomplete = [
        channel
        for channel in _without_snapshot(histories)
        if len(histories[channel]["writes"]) < counters.get(channel, (0, 0))[0]
    ]

    if incomplete:
        raise PrunedHistoryError(str(config["configurable"]["thread_id"]), sorted(incomplete))


Update = dict[str, Any]
"""What a node returns: the channels that it changes."""
