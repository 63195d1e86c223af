"""A user's own checkpointer, with the serializer that our checkpoints need."""

from collections.abc import Sequence
from copy import copy
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graph.state import CHECKPOINT_TYPES, serializer

_NAMES = {(each.__module__, each.__qualname__) for each in CHECKPOINT_TYPES}


def own_saver(saver: BaseCheckpointSaver[Any], secrets: Sequence[str] = ()) -> BaseCheckpointSaver[Any]:
    """The saver as the machine uses it; what it has stored and its connection are shared with the one that was given.

    One with LangGraph's plain serializer gets ours: our types and LangChain's messages are loaded, nothing else, and
    `secrets` and those of the environment are not stored. One with a serializer of its own keeps it, such as one that
    encrypts, and is told which types of ours may be loaded.
    """
    if type(saver.serde) is not JsonPlusSerializer:
        known = isinstance(saver.serde, JsonPlusSerializer | EncryptedSerializer)
        return saver.with_allowlist(_NAMES) if known else saver
    ours = copy(saver)
    ours.serde = serializer(secrets)
    return ours
