"""Secrets stay out of what is shown and stored: the current redactor, and what a model wrote under a secret's name.

A literal such as `password = "..."` runs as it is written, and is not stored. A state holds such literals as marks, so
that checkpoints, streams, traces and the history do. What a call really says is kept here, in memory only, until its
step is settled. Where it is not known, as after a kill, or where the same marks stood for two things, a call that has
an effect is refused, in words, and the model writes it again. So no mark ever gets into a file, and no call runs as
another one.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from threading import Lock
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from mendgraph.nodes.language.content_blocks import without_secrets
from mendgraph.nodes.records import ModelReply, ToolCall

MOST_RUNS: Final = 1_024
"""Runs of which something is remembered; the oldest is forgotten first. Those that end are forgotten before."""

Value = TypeVar("Value")


class CurrentRedactor:
    """The given values and those of the environment first, then shapes and names."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Nothing is looked up yet. `secrets` are values that are never shown."""
        self._secrets = tuple(secrets)
        self._known: tuple[dict[str, str], Redactor] | None = None

    def now(self) -> Redactor:
        """The same one for as long as the environment is the same."""
        environment, known = os.environ.copy(), self._known
        if known is None or known[0] != environment:
            known = self._known = environment, _redactor((*self._secrets, *known_values(environment)))
        return known[1]


@lru_cache(maxsize=8)
def _redactor(values: tuple[str, ...]) -> Redactor:
    return Redactor(values)


class WrittenWords:
    """The replies and calls of all runs of one machine that hold such literals, by what a state holds of them."""

    def __init__(self, redactor: Callable[[], Redactor]) -> None:
        """`redactor` gives what takes out secrets now."""
        self._redactor = redactor
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = Lock()

    def hidden(self, run_id: str, update: Mapping[str, Any], *channels: str) -> dict[str, Any]:
        """What a node returned, with marks for literals in these channels; replies and calls are remembered."""
        found = {name: self._hidden(run_id, update[name]) for name in channels if update.get(name)}
        return {**update, **found}

    def written(self, run_id: str, value: Value) -> Value:
        """A reply, a call or a list of calls as the model wrote it, or as it is where that is not known any more."""
        if not self._kept:
            return value
        if isinstance(value, list):
            return [self.written(run_id, each) for each in value]  # type: ignore[return-value]
        if not isinstance(value, ModelReply | ToolCall):
            return value
        key = _key(value)
        return self._kept.get(run_id, {}).get(key, value) if MARK in key else value

    def forget(self, run_id: str) -> None:
        """A step of this run is settled, or the run has ended: nothing of what is remembered runs any more."""
        with self._lock:
            self._kept.pop(run_id, None)

    def _hidden(self, run_id: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._hidden(run_id, each) for each in value]
        clean = _clean(value, self._redactor())
        if isinstance(value, ModelReply | ToolCall) and MARK in (key := _key(clean)):
            with self._lock:
                kept = self._kept.setdefault(run_id, {})
                kept[key] = value if kept.get(key, value) == value else clean  # marks of two meanings have none
                self._kept.move_to_end(run_id)
                while len(self._kept) > MOST_RUNS:
                    self._kept.popitem(last=False)
        return clean


def _key(value: BaseModel) -> str:
    return repr(value.model_dump())


def _clean(value: Any, redactor: Redactor) -> Any:
    """A copy of a record without secrets, of the same types."""
    if type(value) is str:
        return redactor.text(value)
    if isinstance(value, ModelReply):
        fields = {name: _clean(each, redactor) for name, each in value if name != "provider"}
        provider = without_secrets(value.provider, redactor.text, keep_sealed=True)
        return value.model_copy(update={**fields, "provider": provider})
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _clean(each, redactor) for name, each in value})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_clean(each, redactor) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(_clean(each, redactor) for each in value)
    return redactor.content(value) if isinstance(value, Mapping) else value
