"""Texts of a report: cleaned of secrets and control characters, cut to a length; times and money in words. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.language.display import count_of, one_line, plain, usd

_LINE: Final = 200
"""Characters of what stands on one line."""


LONGEST_TEXT: Final = 8_000
"""Characters of one text that are shown."""


class ShownText(NamedTuple):
    """A text of the page, and how many characters were cut from its end."""

    text: str
    left_out: int = 0


class Field(NamedTuple):
    """A named value: of a call's arguments, of a result. A `block` has lines of its own."""

    name: str
    value: ShownText
    block: bool


def visible(text: str) -> str:
    """The text with control characters as escapes; line by line, which is faster for lines without any."""
    return "\n".join(map(plain, text.split("\n")))


@dataclass(frozen=True)
class Texts:
    """Cleans texts of people, models and tools."""

    redactor: Redactor

    def line(self, text: str, limit: int = _LINE) -> str:
        """The text on one line, without secrets."""
        return one_line(self.redactor.text(text), limit)

    def shown(self, text: str, limit: int = LONGEST_TEXT) -> ShownText:
        """The text with its lines, without secrets; these are removed before the text is cut."""
        clean = self.redactor.text(text.replace("\r\n", "\n"))
        return ShownText(visible(clean[:limit]), max(0, len(clean) - limit))

    def fields(self, values: Mapping[str, Any]) -> list[Field]:
        """The values that are not empty, by their names; values other than texts as JSON."""
        clean = self.redactor.content(dict(values))
        if not isinstance(clean, dict):
            clean = {"value": clean}

        return [self._field(name, value) for name, value in clean.items() if value not in (None, "", [], {})]

    def diff(self, diff: str) -> tuple[list[tuple[str, str]], int]:
        """The lines of a unified diff with their kinds, and how many characters were cut.

        A line is `added`, `removed`, `same`, or `file`, `head` and `note`, which are about it.
        """
        text = self.shown(diff.removesuffix("\n"))
        kinds = {"+": "added", "-": "removed", "@": "head", "\\": "note", "[": "note"}
        lines = []

        for number, line in enumerate(text.text.split("\n")):
            kind = kinds.get(line[:1], "same")
            if number < 2 and line.startswith(("--- ", "+++ ")):
                kind = "file"

            lines.append((kind, line))

        return lines, text.left_out

    def _field(self, name: str, value: Any) -> Field:
        text = value
        if not isinstance(value, str):
            text = json.dumps(value, ensure_ascii=False, indent=1, default=str)
            if len(text) < _LINE:
                text = json.dumps(value, ensure_ascii=False, default=str)

        return Field(self.line(name, 80), self.shown(text), block="\n" in text or len(text) > 100)


# --- Times and money


def seconds_words(seconds: float) -> str:
    """`0.4 ms`, `120 ms`, `3.4 s`, `2 min 5 s`, `1 h 3 min`."""
    if 0 < seconds < 0.001:
        return f"{seconds * 1_000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"

    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"

    return f"{minutes} min {seconds_left} s"


def time_words(time: str | datetime) -> str:
    """A time in UTC, as `2026-11-21 01:33:00 UTC`."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)

    offset = time.utcoffset() or timedelta()
    return f"{time - offset:%Y-%m-%d %H:%M:%S} UTC"


def cost_words(cost_usd: float, unpriced: int) -> str:
    """An amount in USD, and the calls without a known price."""
    if not unpriced:
        return usd(cost_usd)

    words = f"{count_of(unpriced, 'call')} without a known price"
    if cost_usd:
        return f"{usd(cost_usd)} and {words}"

    return words
