"""The last door before the disk: no checkpoint holds a secret that is known, or one that a person typed.

Everything else was scrubbed where it came in. This is for what LangGraph stores before any node has run, the input.
"""

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from nodes.begin_turn.scrubbed_messages import scrubbed
from nodes.execute_tools.redact import Redactor

_DEEPEST = 32
"""How deep a person's words may lie in what is stored: a checkpoint holds channels, one of which holds the input."""


class ScrubbingSerializer(JsonPlusSerializer):
    """Strict msgpack, without secrets. Known values are blotted out byte by byte, so that lengths stay."""

    def __init__(self, redactor: Redactor, types: Sequence[type]) -> None:
        """`types` are those that may be loaded; nothing else is built."""
        super().__init__(allowed_msgpack_modules=types)
        self._redactor = redactor
        self._known = tuple(form.encode("utf-8", "surrogatepass") for form in redactor.forms)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The kind of the bytes, and the bytes."""
        kind, data = super().dumps_typed(self._without_secrets(obj, _DEEPEST))
        for form in self._known:
            if form in data:
                data = data.replace(form, b"*" * len(form))
        return kind, data

    def _without_secrets(self, value: Any, depth: int) -> Any:
        """A person's words come as messages, or as the maps, pairs and texts that LangGraph takes for messages."""
        if isinstance(value, HumanMessage):
            clean = scrubbed([value], self._redactor.text)
            return value if clean is None else clean[0]
        if isinstance(value, str):
            return self._redactor.text(value)
        if depth and type(value) in {list, tuple}:  # a named tuple is a record of ours
            return type(value)(self._without_secrets(each, depth - 1) for each in value)
        if depth and isinstance(value, dict):
            return {key: self._without_secrets(each, depth - 1) for key, each in value.items()}
        return value
