"""The state of the machine: its channels and their reducers.

`messages` grows only by whole exchanges: a reply enters together with the results of its calls (`loop_check`) or as
the final answer (`stop`). So an endpoint accepts the history of every checkpoint, whatever was killed. Until then the
reply, its calls, verdicts and results are in channels of their own, each written by one node.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Annotated, Any, TypeAlias, TypeVar
from uuid import UUID, uuid5

from langchain_core.messages import AnyMessage, BaseMessage, BaseMessageChunk, RemoveMessage, convert_to_messages
from langgraph.channels import DeltaChannel, LastValue
from langgraph.errors import InvalidUpdateError
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes import records
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.policy.alerts import Vitals
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.records import FileChange

Item = TypeVar("Item")

FEWEST_WRITES = 25
"""Writes between two snapshots, or as many as add a third to the value, if that is more."""

SNAPSHOT_SHARE = 3
"""With one third, all snapshots together have at most four times the size of the value."""

_NAMES = UUID("5d1ab9a5-9e1f-4b0e-8d3c-2f2f6f3f7a11")
"""The UUID namespace of the ids that `fold_messages` assigns."""


class GrowingChannel(DeltaChannel[Any]):
    """A delta channel whose disk space is proportional to its value, however many writes it is made of.

    `snapshot_frequency` is the least number of writes between two snapshots; it grows with the value.
    """

    __slots__ = ("_fewest",)

    @property
    def snapshot_frequency(self) -> int:
        """The number of writes from one snapshot to the next."""
        size = len(self.value) if self.is_available() else 0
        return max(self._fewest, size // SNAPSHOT_SHARE)

    @snapshot_frequency.setter
    def snapshot_frequency(self, fewest: int) -> None:
        self._fewest = fewest


def fold_messages(messages: list[Any], writes: Sequence[Any]) -> list[Any]:
    """Apply `add_messages` to each of the writes.

    Messages without an id (also texts, pairs and maps) get one that is the same at every reading.
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
        else:  # nothing is replaced, so the new messages are appended
            value = [*value, *named]
            known_ids.update(ids)

    return list(value)


def append(items: list[Item], writes: Sequence[Sequence[Item]]) -> list[Item]:
    """Return the items, followed by those of the writes."""
    return [*items, *(item for write in writes for item in write)]


def merge(entries: Mapping[str, Item], writes: Sequence[Mapping[str, Item]]) -> dict[str, Item]:
    """Return the entries, replaced by those of the writes with the same name."""
    return {name: item for write in (entries, *writes) for name, item in write.items()}


Messages = Annotated[list[AnyMessage], GrowingChannel(fold_messages, snapshot_frequency=FEWEST_WRITES)]
"""A thread's history."""

Changes = Annotated[list[FileChange], GrowingChannel(append, snapshot_frequency=FEWEST_WRITES)]
"""The file effects of a turn, in order."""

SystemPrompt = Annotated[list[str], DeltaChannel(lambda old, new: new[-1] if new else old, snapshot_frequency=1)]
"""The user's system prompt. It is not a part of the context, of which every checkpoint has a copy."""

FilesRead = Annotated[dict[str, str], DeltaChannel(merge, snapshot_frequency=FEWEST_WRITES)]
"""The hash of each file when the thread last read or wrote it."""


def _ids(messages: Sequence[Any]) -> set[str | None] | None:
    """Return the ids of the messages; None if one has no id or is not a message yet."""
    try:
        ids = {message.id for message in messages}
    except AttributeError:
        return None

    return None if None in ids else ids


def _named(write: Any, before: Sequence[Any]) -> list[BaseMessage]:
    """Return the messages of a write; those without an id get one that is derived from their place and content."""
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
    """The context of the turn. Only nodes can write it: a client of a server, which writes JSON, could widen it."""

    def update(self, values: Sequence[AgentContext]) -> bool:
        """Set the value. Raises InvalidUpdateError if it is not an `AgentContext`."""
        for value in values:
            if not isinstance(value, AgentContext):
                raise InvalidUpdateError(
                    "A thread's context cannot be written: send another one with the next request."
                )

        return super().update(values)


class StructuredChannel(LastValue[Any]):
    """The value of an answer: stored as plain data, read as an instance that `typ` builds."""

    __slots__ = ()

    def checkpoint(self) -> Any:
        """Return the plain data."""
        return self.value

    def get(self) -> Any:
        """Return the instance; the plain data if it no longer fits the type."""
        value = super().get()
        try:
            return None if value is None else self.typ.build(value)
        except Exception:  # noqa: BLE001 - a user's validator may raise anything
            return value


class AgentInput(TypedDict):
    """The input of a run: the new messages. The request is the last message of a person."""

    messages: Messages


class AgentOutput(TypedDict, total=False):
    """The output of a run."""

    messages: Messages
    outcome: records.Outcome | None
    structured_response: Any
    changes: Changes
    plan: records.Plan
    spending: Spending


RaisedLimits: TypeAlias = dict[str, list[float]]
"""By the names of limits: the setting, and what a person has raised it to."""


class SmallState(TypedDict, total=False):
    """The channels that do not grow with the run. The first group lasts as long as the thread, the others as a turn."""

    step: int
    first_step: int
    run_id: str
    vitals: Vitals
    window: Window
    permissions: list[Permission]
    raised_limits: RaisedLimits
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


Update = dict[str, Any]
"""The return value of a node: the channels that it changes."""
