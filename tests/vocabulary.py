"""Words for what users see, with the values that `docs/` names: tests that need no more import nothing internal."""

from enum import StrEnum
from typing import Any

JsonMap = dict[str, Any]


class Protocol(StrEnum):
    """How calls travel: as `tool:` lines in the text, or as the endpoint's native tool calls."""

    TEXT, NATIVE = "text", "native"


class OutcomeKind(StrEnum):
    """The three ways in which a run ends."""

    FINISHED, BUDGET_STOP, SYSTEM_ERROR = "FINISHED", "BUDGET_STOP", "SYSTEM_ERROR"
