"""Redaction of secrets with the current environment, and of literals: secrets that the model wrote itself.

The model may write `password = "..."`. The call runs with the real text; the state, and with it checkpoints, streams,
traces and the history, holds a mark instead. `WrittenLiterals` keeps the real text in memory, by the redacted record,
until the step is settled. If it is lost (after a kill) or ambiguous (two texts with the same redacted form), a call
with an effect is refused, and the error asks the model to write it again. So no mark gets into a file.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor, known_values
from mendgraph.nodes.language.provider_state import without_secrets
from mendgraph.nodes.records import ModelReply, ToolCall

MOST_RUNS: Final = 1_024
"""Runs whose literals are kept. A run that ends is forgotten; of more runs the oldest is."""

Value = TypeVar("Value")


class CurrentRedactor:
    """A redactor of given secrets and those of the environment, which is built again when the environment changes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(secrets)
        self._environment: dict[bytes, bytes] = {}
        self._redactor: Redactor | None = None

    def now(self) -> Redactor:
        """Return the redactor for the current environment."""
        environment = dict(os.environb)  # a copy as text takes twice as long
        redactor = self._redactor
        if redactor is None or environment != self._environment:
            redactor = Redactor((*self._secrets, *known_values(os.environ)))
            self._environment = environment
            self._redactor = redactor

        return redactor


class WrittenLiterals:
    """The replies and calls with literals of all runs of a machine, by their redacted form."""

    def __init__(self, redactor: Callable[[], Redactor]) -> None:
        """`redactor` returns the current redactor."""
        self._redactor = redactor
        self._originals: dict[str, dict[str, Any]] = {}
        self._lock = Lock()

    def mask(self, run_id: str, update: Mapping[str, Any], *channels: str) -> dict[str, Any]:
        """Return a node's update with marks for the literals in these channels, and keep its replies and calls."""
        redactor = self._redactor()
        masked = {name: self._mask(run_id, update[name], redactor) for name in channels if update.get(name)}
        return {**update, **masked}

    def restore(self, run_id: str, value: Value) -> Value:
        """Return a reply, a call or a list of calls as the model wrote it, or unchanged if that is not known."""
        if not self._originals:
            return value
        if isinstance(value, list):
            return [self.restore(run_id, item) for item in value]  # type: ignore[return-value]
        if not isinstance(value, ModelReply | ToolCall):
            return value

        key = _key(value)
        if MARK not in key:
            return value
        original: Value = self._originals.get(run_id, {}).get(key, value)
        return original

    def forget(self, run_id: str) -> None:
        """Forget the literals of a run: its step is settled, or it has ended."""
        with self._lock:
            self._originals.pop(run_id, None)

    def _mask(self, run_id: str, value: Any, redactor: Redactor) -> Any:
        if isinstance(value, list):
            return [self._mask(run_id, item, redactor) for item in value]

        redacted = _redact(value, redactor)
        if isinstance(value, ModelReply | ToolCall):
            key = _key(redacted)
            if MARK in key:
                self._keep(run_id, key, value, redacted)

        return redacted

    def _keep(self, run_id: str, key: str, value: ModelReply | ToolCall, redacted: Any) -> None:
        with self._lock:
            originals = self._originals.setdefault(run_id, {})
            is_ambiguous = originals.get(key, value) != value
            originals[key] = redacted if is_ambiguous else value
            if len(self._originals) > MOST_RUNS:
                del self._originals[next(iter(self._originals))]


_REDACTED_TYPES = (str, BaseModel, list, tuple, Mapping)


def _key(value: BaseModel) -> str:
    return repr(value.model_dump())


def _redact(value: Any, redactor: Redactor) -> Any:
    """Return a copy of a record without secrets, of the same types."""
    if type(value) is str:
        return redactor.text(value)

    if isinstance(value, ModelReply):
        provider = without_secrets(value.provider, redactor.text, keep_opaque=True)
        fields = {name: field for name, field in value if name != "provider" and isinstance(field, _REDACTED_TYPES)}
        redacted = {name: _redact(field, redactor) for name, field in fields.items()}
        return value.model_copy(update={**redacted, "provider": provider})

    if isinstance(value, BaseModel):
        fields = {name: _redact(item, redactor) for name, item in value if isinstance(item, _REDACTED_TYPES)}
        return value.model_copy(update=fields)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_redact(item, redactor) for item in value))
    if isinstance(value, list | tuple):
        return type(value)([_redact(item, redactor) for item in value])
    if isinstance(value, Mapping):
        return redactor.content(value)

    return value
