"""Channels that grow with the work: a checkpoint stores what a node added, not all that there is.

LangGraph rebuilds the value by folding the writes of a checkpoint's ancestors, in any batches, from the last snapshot
on. So each reducer here is a fold: what it gives depends on the value and on the writes in their order alone.
`Overwrite` replaces a value, here as elsewhere.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Annotated, Any, TypeVar
from uuid import UUID, uuid5

from langchain_core.messages import AnyMessage, BaseMessage, BaseMessageChunk, RemoveMessage, convert_to_messages
from langgraph.channels import DeltaChannel
from langgraph.graph.message import add_messages

from mendgraph.nodes.execute_tools.store.database import UnreadableValueError
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

    def replay_writes(self, writes: Sequence[Any]) -> None:
        """As the base class.

        Raises:
            UnreadableValueError: what is stored does not fit the channel.
        """
        try:
            super().replay_writes(writes)
        except (ValueError, TypeError, LookupError, AttributeError, NotImplementedError) as error:
            raise UnreadableValueError(f"What is stored of {self.key} is damaged ({error}).") from error


def fold_messages(messages: list[Any], writes: Sequence[Any]) -> list[Any]:
    """`add_messages` over the writes, one after the other.

    Messages that came without an id (as texts, pairs or maps) get one that is the same at every reading.
    """
    held: Any = messages
    known = _ids(messages)
    if known is None:
        held = _named(messages, ())
    for write in writes:
        named = _named(write, held)
        ids = [each.id for each in named]
        known = _ids(held) if known is None else known
        if known is None or not known.isdisjoint(ids) or len({*ids}) < len(ids) or any(map(_is_special, named)):
            held, known = add_messages(held, named), None  # type: ignore[arg-type]
        else:  # what takes nobody's place comes after all that is there
            held = [*held, *named]
            known.update(ids)
    return list(held)


def append(items: list[Item], writes: Sequence[Sequence[Item]]) -> list[Item]:
    """The items, and those of the writes after them."""
    return [*items, *(item for write in writes for item in write)]


def merge(entries: Mapping[str, Item], writes: Sequence[Mapping[str, Item]]) -> dict[str, Item]:
    """The entries, with those of the writes over them."""
    return {name: item for each in (entries, *writes) for name, item in each.items()}


Messages = Annotated[list[AnyMessage], GrowingChannel(fold_messages, snapshot_frequency=FEWEST_WRITES)]
"""A thread's history."""

Changes = Annotated[list[FileChange], GrowingChannel(append, snapshot_frequency=FEWEST_WRITES)]
"""The file effects of a turn, in order."""

FilesRead = Annotated[dict[str, str], GrowingChannel(merge, snapshot_frequency=FEWEST_WRITES)]
"""The hash that a thread last saw of each file."""


def _ids(messages: Sequence[Any]) -> set[str | None] | None:
    """The ids of messages, or None where some have none, or are no messages yet."""
    try:
        ids = {message.id for message in messages}
    except AttributeError:
        return None
    return None if None in ids else ids


def _is_special(message: BaseMessage) -> bool:
    """Whether `add_messages` makes something else of it."""
    return isinstance(message, RemoveMessage | BaseMessageChunk)


def _named(write: Any, before: Sequence[Any]) -> list[BaseMessage]:
    """The messages of a write, each with an id; those that have none get one made of their place and their content."""
    written = write if isinstance(write, list) else [write]
    if all(isinstance(each, BaseMessage) and each.id is not None for each in written):
        return written
    taken = [each.id for each in before]
    named: list[BaseMessage] = []
    for message in convert_to_messages(written):
        named.append(message if message.id else message.model_copy(update={"id": _new_id(message, taken)}))
        taken.append(named[-1].id)
    return named


def _new_id(message: BaseMessage, taken: Sequence[str | None]) -> str:
    said = f"{taken[-1] if taken else ''} {message.model_dump_json()}"
    numbered = (str(uuid5(_NAMES, f"{number} {said}")) for number in count(len(taken)))
    return next(each for each in numbered if each not in taken)
