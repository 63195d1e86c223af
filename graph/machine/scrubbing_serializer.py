"""The last door before the disk, and the first one after it.

No checkpoint holds a secret that is known, or one that a person typed. Everything else was scrubbed where it came in;
this is for what LangGraph stores before any node has run, the input. And a record of ours comes back as it was stored,
or not at all: LangGraph itself would build one from fields that do not fit.
"""

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn

import ormsgpack
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite

from mendgraph.nodes.begin_turn.turn_start import scrubbed
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.store.database import StoreError, UnreadableValueError

COMPRESSED: Final = "+zlib"
"""Ends the kind of bytes that were compressed."""

MOST_BYTES: Final = 256 * 1024 * 1024
"""Of a value that is stored. A run of a thousand steps has some megabytes."""

_DEEPEST = 32
"""How deep a person's words may lie in what is stored: a checkpoint holds channels, one of which holds the input."""

_BOOKKEEPING = frozenset(Checkpoint.__annotations__) - {"channel_values"}
"""Fields of a checkpoint that are LangGraph's own: numbers, times, and names of nodes."""

_SOMETIMES = frozenset({"updated_channels", "pending_sends"})
"""Fields that not every checkpoint has."""

_WORTH_IT = 100
"""Bytes from which on compression is tried: fewer are mostly names that differ."""

_SHORT, _SHORT_TEXTS = 100, 1_000
"""Characters of texts that come again at each step, such as paths and hashes, and how many of them are remembered."""

_OURS = ("mendgraph.graph.", "mendgraph.nodes.")
"""How the modules of our own types begin."""


class ScrubbingSerializer(JsonPlusSerializer):
    """Strict msgpack, without secrets. Known values are blotted out byte by byte, so that lengths stay."""

    def __init__(self, redactor: Redactor, types: Sequence[type], dictionary: bytes = b"") -> None:
        """`types` are those that may be loaded; nothing else is built.

        With a `dictionary`, bytes that most values are made of, values are compressed; it is needed to read them again.
        """
        super().__init__(allowed_msgpack_modules=types)
        self._types = {(each.__module__, each.__qualname__): each for each in types}
        self._redactor, self._dictionary = redactor, dictionary
        self._short = lru_cache(_SHORT_TEXTS)(redactor.text)
        self._known = tuple(form.encode("utf-8", "surrogatepass") for form in redactor.forms)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The kind of the bytes, and the bytes.

        Raises:
            StoreError: the value has no stored form, such as an integer beyond 64 bits.
        """
        try:
            kind, data = super().dumps_typed(self._scrubbed(obj))
        except (TypeError, ValueError) as error:
            message = (
                f"A value cannot be stored with the run ({error}): it may hold integers of 64 bits, and text without"
                " half characters."
            )
            raise StoreError(message) from error
        if len(data) > MOST_BYTES:
            message = f"A value cannot be stored with the run: it has {len(data):,} bytes, and may have {MOST_BYTES:,}."
            raise StoreError(message)
        for form in self._known:
            if form in data:
                data = data.replace(form, b"*" * len(form))
        if self._dictionary and len(data) >= _WORTH_IT:
            packer = zlib.compressobj(level=3, zdict=self._dictionary)  # two thirds of the time, 1 % more bytes
            packed = packer.compress(data) + packer.flush()
            if len(packed) < len(data):
                return kind + COMPRESSED, packed
        return kind, data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """What the bytes hold.

        Raises:
            StoreError: they are damaged, or hold a record that this version does not know.
        """
        kind, stored = data
        if not isinstance(kind, str) or not isinstance(stored, bytes):
            raise UnreadableValueError("A stored value is damaged: it is of another type.")
        refusals: list[UnreadableValueError] = []  # ormsgpack replaces the error of a hook by one of its own
        try:
            if kind.endswith(COMPRESSED):
                kind, stored = kind.removesuffix(COMPRESSED), self._decompressed(stored)
            if kind == "msgpack":
                return self._unpacked(stored, refusals)
            return super().loads_typed((kind, stored))
        except MemoryError as error:
            raise UnreadableValueError("A stored value is damaged: it takes more memory than there is.") from error
        except (ValueError, zlib.error, NotImplementedError, RecursionError) as error:
            raise refusals[0] if refusals else UnreadableValueError(f"A stored value is damaged: {error}.") from error

    def _decompressed(self, data: bytes) -> bytes:
        packer = zlib.decompressobj(zdict=self._dictionary)
        whole = packer.decompress(data, MOST_BYTES)
        if not packer.eof:
            raise zlib.error(
                "its end is missing" if len(whole) < MOST_BYTES else f"it has more than {MOST_BYTES:,} bytes"
            )
        return whole

    def _unpacked(self, data: bytes, refusals: list[UnreadableValueError]) -> Any:
        def built(code: int, inner: bytes) -> Any:
            parts = ormsgpack.unpackb(inner, ext_hook=built, option=ormsgpack.OPT_NON_STR_KEYS)
            if isinstance(parts, list) and len(parts) > 2 and str(parts[0]).startswith(_OURS):
                try:
                    return self._record(parts[0], parts[1], parts[2])
                except UnreadableValueError as refusal:
                    refusals.append(refusal)
                    raise
            return self._unpack_ext_hook(code, inner)

        return ormsgpack.unpackb(data, ext_hook=built, option=ormsgpack.OPT_NON_STR_KEYS)

    def _record(self, module: str, name: str, value: Any) -> Any:
        """The record, named tuple or word of an enum, exactly as it was stored."""
        kind = self._types.get((module, name))
        if kind is None:
            _refuse(name, "there is no such kind of value")
        try:
            return kind(**value) if isinstance(value, dict) else kind(value)
        except (TypeError, ValueError) as error:
            _refuse(name, str(error))

    def _scrubbed(self, obj: Any) -> Any:
        """Of a checkpoint, and nothing that could be anybody's words, the names and versions are left alone."""
        if type(obj) is not dict or obj.keys() | _SOMETIMES != _BOOKKEEPING | _SOMETIMES | {"channel_values"}:
            return self._without_secrets(obj, _DEEPEST)
        return {
            key: value if key in _BOOKKEEPING else self._without_secrets(value, _DEEPEST) for key, value in obj.items()
        }

    def _without_secrets(self, value: Any, depth: int) -> Any:
        """A person's words come as messages, or as the maps, pairs and texts that LangGraph takes for messages."""
        if isinstance(value, HumanMessage):
            clean = scrubbed([value], self._redactor.text)
            return value if clean is None else clean[0]
        if isinstance(value, str):
            return self._redactor.text(value) if len(value) > _SHORT else self._short(value)
        if depth and type(value) in {list, tuple}:  # a named tuple is a record of ours
            return type(value)(self._without_secrets(each, depth - 1) for each in value)
        if depth and isinstance(value, dict):
            return {key: self._without_secrets(each, depth - 1) for key, each in value.items()}
        if depth and isinstance(value, Overwrite | _DeltaSnapshot):
            return type(value)(self._without_secrets(value.value, depth - 1))
        return value


def _refuse(name: str, reason: str) -> NoReturn:
    line = " ".join(reason.split())
    message = (
        f"A stored {name} cannot be read ({line}): another version of mendgraph wrote it. Go on with that version, or"
        " begin a new run."
    )
    raise UnreadableValueError(message, is_damage=False)
