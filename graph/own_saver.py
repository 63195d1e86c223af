"""A checkpointer that is not ours, with a serializer that loads our records."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from graph.state import CHECKPOINT_TYPES, serializer

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
