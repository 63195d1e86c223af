"""Whether a row that a saver has read is a checkpoint of our machine: a database can be damaged, or be somebody else's.

A value of another type would fail far from here, in the middle of a run.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite

from nodes.execute_tools.environment.database import StoreError, UnreadableValueError

_RAW: Final = "messages"
"""The channel whose writes may be whatever LangChain takes for messages; it judges them itself."""


@contextmanager
def undamaged(run: str, database: str) -> Iterator[None]:
    """Whatever is wrong with the rows of a run comes out as a `StoreError` that says which run it is, and the remedy.

    `database` is what the message calls the store; `run` may be "" where all runs are read.
    """
    who = f"The run {run} cannot be read. " if run else ""
    try:
        yield
    except UnreadableValueError as error:
        if not error.is_damage:
            raise StoreError(f"{who}{error}") from error
        raise StoreError(_damaged(run, who, database, error)) from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise StoreError(_damaged(run, who, database, error)) from error


def _damaged(run: str, who: str, database: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300].rstrip(".")
    undo = f", and `mendgraph undo {run}` takes back what it has changed" if run else ""
    return (
        f"{who}{database} is damaged ({reason}): put a backup in its place, or move it away and begin with a new one."
        f" Its other runs can still be used{undo}."
    )


def checked(found: CheckpointTuple, types: Mapping[str, Any]) -> CheckpointTuple:
    """The same; `types` are those of the channels, by their names. The caller is in `undamaged`.

    A graph that a user's tool runs keeps its checkpoints here as well, in a namespace of its own: its channels have
    names and types that we do not know.

    Raises:
        ValueError: it is no checkpoint of our machine.
    """
    stored: Any = found.checkpoint
    _expect(isinstance(stored, dict), "a checkpoint is no map")
    values, versions, seen = (stored.get(name) for name in ("channel_values", "channel_versions", "versions_seen"))
    _expect(isinstance(stored.get("id"), str), "a checkpoint has no id")
    datetime.fromisoformat(stored.get("ts"))
    _expect(isinstance(values, dict), "a checkpoint has no channels")
    _expect(isinstance(versions, dict) and all(map(_is_version, versions.values())), "its versions are no numbers")
    _expect(isinstance(seen, dict) and all(isinstance(each, dict) for each in seen.values()), "its nodes are no maps")
    _expect(isinstance(found.metadata, dict) and type(found.metadata.get("step", 0)) is int, "its step is no number")
    own = types if not found.config["configurable"].get("checkpoint_ns") else {}
    _check_values(values.items(), own)
    for _, channel, value in found.pending_writes or ():
        _check_values([(channel, value)] if channel != _RAW else [], own)
    return found


def checked_history(
    found: Mapping[str, DeltaChannelHistory], types: Mapping[str, Any]
) -> Mapping[str, DeltaChannelHistory]:
    """The same of the values of growing channels.

    Raises:
        ValueError: one of them fits no channel of our machine.
    """
    for channel, history in found.items():
        _check_values([(channel, history["seed"])] if "seed" in history else [], types)
        _check_values([(channel, value) for _, _, value in history["writes"] if channel != _RAW], types)
    return found


def _check_values(values: Iterable[tuple[str, Any]], types: Mapping[str, Any]) -> None:
    for name, value in values:
        hint = types.get(name)
        _expect(hint is None or _fits(value, hint), f"the channel {name!r} holds a {type(value).__name__}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of this type, with what lies in it."""
    if isinstance(value, _DeltaSnapshot | Overwrite):
        return _fits(value.value, hint)
    kind, inner = get_origin(hint), get_args(hint)
    if kind in {Union, UnionType}:
        return any(_fits(value, each) for each in inner)
    if kind in {list, tuple}:
        return isinstance(value, list | tuple) and all(_fits(each, inner[0]) for each in value)
    if kind is dict:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    return value is None if hint in {None, NoneType} else isinstance(value, hint)


def _is_version(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.partition(".")[0].isdecimal())


def _expect(fits: bool, otherwise: str) -> None:
    if not fits:
        raise ValueError(otherwise)
