"""What a turn begins with: nothing of the last one's work. What lasts is in the history and the counters."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nodes.records import LoopRecord

FRESH_TURN: Mapping[str, Any] = MappingProxyType(
    {
        "preload": None,
        "reply": None,
        "reading": None,
        "items": [],
        "errors": [],
        "answer": None,
        "verdicts": [],
        "results": [],
        "corrections": [],
        "healing_attempts": [],
        "loop": LoopRecord(),
        "stop": None,
        "outcome": None,
    }
)
"""The channels that last as long as a turn, at their start; `changes`, to which nodes add, is replaced besides."""
