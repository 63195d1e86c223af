"""Secrets stay out of what is shown and stored: the current redactor, and what a model wrote under a secret's name.

The model may write `password = "..."`. The call runs with the real text; the state, and with it checkpoints, streams,
traces and the history, holds a mark instead. `WrittenLiterals` keeps the real text in memory, by the redacted record,
until the step is settled. If it is lost (after a kill) or ambiguous (two texts with the same redacted form), a call
with an effect is refused, and the error asks the model to write it again. So no mark gets into a file.
"""

import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, Final, NoReturn, TypeVar

import ormsgpack
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite
from pydantic import BaseModel

from mendgraph.nodes.begin_turn.turn_start import scrubbed
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor, known_values
from mendgraph.nodes.execute_tools.store.database import StoreError, UnreadableValueError
from mendgraph.nodes.language.provider_state import without_secrets
from mendgraph.nodes.records import ModelReply, ToolCall

MOST_RUNS: Final = 1_024
"""Runs of which something is remembered; the oldest is forgotten first. Those that end are forgotten before."""

Value = TypeVar("Value")


class CurrentRedactor:
    """The given values and those of the environment first, then shapes and names."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Nothing is looked up yet. `secrets` are values that are never shown."""
        self._secrets = tuple(secrets)
        self._known: tuple[dict[bytes, bytes], Redactor] | None = None

    def now(self) -> Redactor:
        """The same one for as long as the environment is the same."""
        encoded: dict[bytes, bytes] = vars(os.environ)["_data"]  # to decode it takes longer than a node
        secrets = self._known
        if secrets is None or secrets[0] != encoded:
            secrets = self._known = encoded.copy(), _redactor((*self._secrets, *known_values(os.environ.copy())))

        return secrets[1]


@lru_cache(maxsize=8)
def _redactor(values: tuple[str, ...]) -> Redactor:
    return Redactor(values)


class WrittenLiterals:
    """The replies and calls of all runs of one machine that hold such literals, by what a state holds of them."""

    def __init__(self, redactor: Callable[[], Redactor]) -> None:
        """`redactor` gives what takes out secrets now."""
        self._redactor = redactor
        self._originals: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = Lock()

    def mask(self, run_id: str, update: Mapping[str, Any], *channels: str) -> dict[str, Any]:
        """What a node returned, with marks for literals in these channels; replies and calls are remembered."""
        cleaned = {name: self._mask(run_id, update[name]) for name in channels if update.get(name)}
        return {**update, **cleaned}

    def restore(self, run_id: str, value: Value) -> Value:
        """A reply, a call or a list of calls as the model wrote it, or as it is where that is not known any more."""
        if not self._originals:
            return value
        if isinstance(value, list):
            return [self.restore(run_id, item) for item in value]  # type: ignore[return-value]
        if not isinstance(value, ModelReply | ToolCall):
            return value

        key = _key(value)
        return self._originals.get(run_id, {}).get(key, value) if MARK in key else value

    def forget(self, run_id: str) -> None:
        """A step of this run is settled, or the run has ended: nothing of what is remembered runs any more."""
        with self._lock:
            self._originals.pop(run_id, None)

    def _mask(self, run_id: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._mask(run_id, item) for item in value]

        clean = _clean(value, self._redactor())
        if isinstance(value, ModelReply | ToolCall) and MARK in (key := _key(clean)):
            with self._lock:
                originals = self._originals.setdefault(run_id, {})
                is_ambiguous = originals.get(key, value) != value
                originals[key] = clean if is_ambiguous else value
                self._originals.move_to_end(run_id)

                while len(self._originals) > MOST_RUNS:
                    self._originals.popitem(last=False)

        return clean


def _key(value: BaseModel) -> str:
    return repr(value.model_dump())


def _clean(value: Any, redactor: Redactor) -> Any:
    """A copy of a record without secrets, of the same types."""
    if type(value) is str:
        return redactor.text(value)

    if isinstance(value, ModelReply):
        fields = {name: _clean(field, redactor) for name, field in value if name != "provider"}
        provider = without_secrets(value.provider, redactor.text, keep_opaque=True)
        return value.model_copy(update={**fields, "provider": provider})

    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _clean(item, redactor) for name, item in value})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_clean(item, redactor) for item in value))
    if isinstance(value, list | tuple):
        return type(value)([_clean(item, redactor) for item in value])
    if isinstance(value, Mapping):
        return redactor.content(value)

    return value


# --- The serializer of checkpoints

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
        self._types = {(cls.__module__, cls.__qualname__): cls for cls in types}
        self._redactor = redactor
        self._dictionary = dictionary
        self._short = lru_cache(_SHORT_TEXTS)(redactor.text)
        self._known = tuple(form.encode("utf-8", "surrogatepass") for form in redactor.forms)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The kind of the bytes, and the bytes.

        Raises StoreError: the value has no stored form, such as an integer beyond 64 bits.
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

        Raises StoreError: they are damaged, or hold a record that this version does not know.
        """
        kind, stored = data
        if not isinstance(kind, str) or not isinstance(stored, bytes):
            raise UnreadableValueError("A stored value is damaged: it is of another type.")

        refusals: list[UnreadableValueError] = []  # ormsgpack replaces the error of a hook by one of its own
        try:
            if kind.endswith(COMPRESSED):
                kind = kind.removesuffix(COMPRESSED)
                stored = self._decompressed(stored)

            if kind == "msgpack":
                return self._unpacked(stored, refusals)
            return super().loads_typed((kind, stored))
        except (ValueError, zlib.error, NotImplementedError, RecursionError, MemoryError) as error:
            raise refusals[0] if refusals else UnreadableValueError(f"A stored value is damaged: {error}.") from error

    def _decompressed(self, data: bytes) -> bytes:
        packer = zlib.decompressobj(zdict=self._dictionary)
        unpacked = packer.decompress(data, MOST_BYTES)

        if not packer.eof:
            raise zlib.error(
                "its end is missing" if len(unpacked) < MOST_BYTES else f"it has more than {MOST_BYTES:,} bytes"
            )

        return unpacked

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
            if isinstance(value, dict):
                return kind(**value)
            return kind(value)
        except (TypeError, ValueError) as error:
            _refuse(name, str(error))

    def _scrubbed(self, obj: Any) -> Any:
        """The value without secrets. LangGraph's bookkeeping fields of a checkpoint are copied as they are.

        A map is a checkpoint if it has exactly a checkpoint's fields.
        """
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
            if len(value) > _SHORT:
                return self._redactor.text(value)
            return self._short(value)

        if depth and type(value) in {list, tuple}:  # a named tuple is a record of ours
            return type(value)([self._without_secrets(item, depth - 1) for item in value])
        if depth and isinstance(value, dict):
            return {key: self._without_secrets(item, depth - 1) for key, item in value.items()}
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
